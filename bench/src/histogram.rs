//! Counts of times in buckets whose width grows with the value, as HdrHistogram has them: a thousandth of error at
//! most, any number of values in little memory, and two histograms add up.

use std::time::Duration;

/// Bits of a value that are kept: buckets of one microsecond up to 2^11, then 2^10 buckets for each doubling.
const BITS: u32 = 10;
/// About 19 hours; longer times count as this one.
const MICROSECONDS_MAX: u64 = 1 << 36;

/// Times with a resolution of 1 µs and an error of at most 1/1024.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    largest: u64,
}

impl Histogram {
    pub(crate) fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(MICROSECONDS_MAX);
        let bucket = bucket_of(micros);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.largest = self.largest.max(micros);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        self.count += other.count;
        self.largest = self.largest.max(other.largest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_micros(self.largest)
    }

    /// The nearest-rank percentile for a share from 0 to 1; zero if nothing was recorded.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return Duration::from_micros(largest_in(bucket).min(self.largest));
            }
        }
        Duration::ZERO
    }
}

impl FromIterator<Duration> for Histogram {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut histogram = Self::default();
        times.into_iter().for_each(|time| histogram.record(time));
        histogram
    }
}

fn bucket_of(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (micros >> shift)) as usize
}

/// The largest number of microseconds that falls into a bucket.
fn largest_in(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    ((bucket - (shift << BITS) + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Histogram = (1..=1000).map(Duration::from_micros).collect();
        assert_eq!(times.percentile(0.5), Duration::from_micros(500));
        assert_eq!(times.percentile(0.99), Duration::from_micros(990));
        assert_eq!(times.percentile(0.999), Duration::from_micros(999));
        assert_eq!(times.percentile(1.0), Duration::from_micros(1000));
        assert_eq!(times.percentile(0.0), Duration::from_micros(1));
        let one: Histogram = [Duration::from_millis(1)].into_iter().collect();
        assert_eq!(one.percentile(0.99), Duration::from_millis(1));
        assert_eq!(Histogram::default().percentile(0.99), Duration::ZERO);
    }

    #[test]
    fn every_value_lies_in_its_bucket_with_an_error_of_a_thousandth() {
        for micros in (0..5000).chain((1..36).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]))
        {
            let largest = largest_in(bucket_of(micros));
            assert!(largest >= micros, "{micros} is above the end {largest} of its bucket");
            assert!(largest - micros <= micros / 1024, "{micros} is told as {largest}");
            assert!(bucket_of(micros) <= bucket_of(micros + 1), "buckets are out of order at {micros}");
        }
    }

    #[test]
    fn two_histograms_add_up_to_that_of_all_values() {
        let (low, high) = (1..500, 500..90_000);
        let mut sum: Histogram = low.clone().map(Duration::from_micros).collect();
        sum.merge(&high.clone().map(Duration::from_micros).collect());
        assert_eq!(sum, low.chain(high).map(Duration::from_micros).collect());
        assert_eq!(sum.count(), 89_999);
    }

    #[test]
    fn a_time_beyond_the_range_counts_as_its_end() {
        let times: Histogram = [Duration::from_secs(1 << 40)].into_iter().collect();
        assert_eq!(times.max(), Duration::from_micros(MICROSECONDS_MAX));
        assert_eq!(times.percentile(0.5), times.max());
    }
}
