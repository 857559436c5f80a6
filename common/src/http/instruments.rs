//! What the hot paths count with: relaxed atomics, no locks, no allocation. Read when somebody asks for `/metrics`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::exposition::{Family, Labels};

/// Only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Quantiles are over this time and the one before, so that they tell of now and not of the last months.
const WINDOW: Duration = Duration::from_secs(60);
/// Values below are exact; from here on eight steps for each power of two, so a quantile is at most 13 % too large.
const EXACT: u64 = 16;
const STEPS: usize = 8;
/// The last step is above two minutes.
const BUCKETS: usize = 16 + 23 * STEPS;
const QUANTILES: [(&str, f64); 6] =
    [("0.5", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999)];

/// Durations, in microseconds inside and milliseconds outside, as Kafka's timers.
#[derive(Debug)]
pub struct Timer {
    started: Instant,
    count: AtomicU64,
    sum_us: AtomicU64,
    /// Number of the window that is being filled; the other one is that of before.
    window: AtomicU64,
    windows: [[AtomicU32; BUCKETS]; 2],
}

impl Default for Timer {
    fn default() -> Self {
        let window = || std::array::from_fn(|_| AtomicU32::new(0));
        Self {
            started: Instant::now(),
            count: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
            window: AtomicU64::new(0),
            windows: [window(), window()],
        }
    }
}

impl Timer {
    pub fn record(&self, took: Duration) {
        self.record_at(took, self.started.elapsed());
    }

    fn record_at(&self, took: Duration, now: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took_us, Ordering::Relaxed);
        let window = self.turn(now);
        self.windows[window][bucket_of(took_us)].fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the window of this moment the one that is filled. A value recorded by another thread in the same instant
    /// may be dropped with the old window; it stays in the count.
    fn turn(&self, now: Duration) -> usize {
        let number = now.as_secs() / WINDOW.as_secs();
        let current = self.window.load(Ordering::Relaxed);
        let turned = || {
            let order = Ordering::Relaxed;
            self.window.compare_exchange(current, number, order, order).is_ok()
        };
        if current < number && turned() {
            let parts: &[usize] = if current + 1 == number { &[0] } else { &[0, 1] };
            for part in parts {
                let window = &self.windows[(number as usize + part) % 2];
                window.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
            }
        }
        number as usize % 2
    }

    /// Writes the quantiles, the sum and the count as samples of a summary.
    pub fn expose(&self, family: &mut Family<'_>, labels: Labels<'_>) {
        self.turn(self.started.elapsed());
        let mut with_quantile = labels.to_vec();
        with_quantile.push(("quantile", ""));
        for (name, quantile) in QUANTILES {
            if let Some(last) = with_quantile.last_mut() {
                last.1 = name;
            }
            family.sample(&with_quantile, self.quantile_ms(quantile));
        }
        family.suffixed("_sum", labels, self.sum_us.load(Ordering::Relaxed) as f64 / 1000.0);
        family.suffixed("_count", labels, self.count.load(Ordering::Relaxed));
    }

    /// NaN when nothing was recorded lately, as Prometheus' summaries have it.
    fn quantile_ms(&self, quantile: f64) -> f64 {
        let counts: Vec<u64> = (0..BUCKETS)
            .map(|bucket| self.windows.iter().map(|w| u64::from(w[bucket].load(Ordering::Relaxed))).sum())
            .collect();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return f64::NAN;
        }
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        let found = counts.iter().position(|count| {
            seen += count;
            rank <= seen
        });
        end_of(found.unwrap_or(BUCKETS - 1)) as f64 / 1000.0
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

fn bucket_of(us: u64) -> usize {
    if us < EXACT {
        return us as usize;
    }
    let exponent = us.ilog2() as usize;
    let step = (us >> (exponent - 3)) as usize % STEPS;
    (EXACT as usize + (exponent - 4) * STEPS + step).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn end_of(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(EXACT as usize) else { return bucket as u64 };
    let (exponent, step) = (above / STEPS + 4, (above % STEPS) as u64);
    ((STEPS as u64 + step + 1) << (exponent - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::exposition::{Exposition, Kind};

    #[test]
    fn every_value_lies_in_its_bucket() {
        for us in (0..100_000).chain([1 << 20, (1 << 26) + 7, u64::MAX]) {
            let bucket = bucket_of(us);
            assert!(bucket == BUCKETS - 1 || us <= end_of(bucket), "{us}");
            assert!(bucket == 0 || end_of(bucket - 1) < us, "{us}");
        }
    }

    #[test]
    fn quantiles_forget_and_counts_do_not() {
        let timer = Timer::default();
        for ms in 1..=100 {
            timer.record_at(Duration::from_millis(ms), Duration::from_secs(1));
        }
        let between = |quantile: f64, low: f64, high: f64| {
            let found = timer.quantile_ms(quantile);
            assert!((low..=high).contains(&found), "{quantile}: {found}");
        };
        between(0.5, 50.0, 57.0);
        between(0.999, 100.0, 113.0);
        timer.record_at(Duration::from_millis(1000), Duration::from_secs(61));
        between(0.5, 50.0, 57.0);
        timer.record_at(Duration::from_millis(1000), Duration::from_secs(121));
        between(0.5, 1000.0, 1130.0);
        timer.record_at(Duration::from_millis(2), Duration::from_secs(1000));
        between(0.99, 2.0, 2.2);
        assert_eq!(timer.count(), 103);
        let mut page = Exposition::default();
        Timer::default().expose(&mut page.family("x", Kind::Summary, "X."), &[("a", "b")]);
        let text = page.into_text();
        assert!(
            text.contains("x{a=\"b\",quantile=\"0.999\"} NaN\nx_sum{a=\"b\"} 0\nx_count{a=\"b\"} 0\n"),
            "{text}"
        );
    }
}
