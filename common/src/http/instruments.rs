//! What the hot paths count with: relaxed atomics, no locks, no allocation. Read when somebody asks for `/metrics`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::exposition::{Exposition, Family, Kind, Labels};

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
/// The last step is above two minutes, or 128 MiB.
const BUCKETS: usize = 16 + 23 * STEPS;
const QUANTILES: [(&str, f64); 6] =
    [("0.5", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999)];

/// Values and their quantiles.
#[derive(Debug)]
struct Histogram {
    started: Instant,
    count: AtomicU64,
    sum: AtomicU64,
    /// Number of the window that is being filled; the other one is that of before.
    window: AtomicU64,
    windows: [[AtomicU32; BUCKETS]; 2],
}

impl Default for Histogram {
    fn default() -> Self {
        let window = || std::array::from_fn(|_| AtomicU32::new(0));
        Self {
            started: Instant::now(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            window: AtomicU64::new(0),
            windows: [window(), window()],
        }
    }
}

impl Histogram {
    fn record(&self, value: u64) {
        self.record_at(value, self.started.elapsed());
    }

    fn record_at(&self, value: u64, now: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        let window = self.turn(now);
        self.windows[window][bucket_of(value)].fetch_add(1, Ordering::Relaxed);
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

    /// Writes the quantiles, the sum and the count as samples of a summary, divided by `unit`.
    fn expose(&self, family: &mut Family<'_>, labels: Labels<'_>, unit: f64) {
        self.turn(self.started.elapsed());
        let mut with_quantile = labels.to_vec();
        with_quantile.push(("quantile", ""));
        let quantiles = self.quantiles();
        for (index, (name, _)) in QUANTILES.iter().enumerate() {
            if let Some(last) = with_quantile.last_mut() {
                last.1 = name;
            }
            family.sample(&with_quantile, quantiles[index] / unit);
        }
        family.suffixed("_sum", labels, self.sum.load(Ordering::Relaxed) as f64 / unit);
        family.suffixed("_count", labels, self.count.load(Ordering::Relaxed));
    }

    /// NaN when nothing was recorded lately, as Prometheus' summaries have it.
    fn quantiles(&self) -> [f64; QUANTILES.len()] {
        let counts: [u64; BUCKETS] = std::array::from_fn(|bucket| {
            self.windows.iter().map(|window| u64::from(window[bucket].load(Ordering::Relaxed))).sum()
        });
        let total: u64 = counts.iter().sum();
        QUANTILES.map(|(_, quantile)| {
            if total == 0 {
                return f64::NAN;
            }
            let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                rank <= seen
            });
            end_of(found.unwrap_or(BUCKETS - 1)) as f64
        })
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Durations, in microseconds inside and milliseconds outside, as Kafka's timers.
#[derive(Debug, Default)]
pub struct Timer(Histogram);

/// Microseconds in what a [`Timer`] tells.
const MILLISECOND: f64 = 1000.0;

impl Timer {
    pub fn record(&self, took: Duration) {
        self.0.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Writes the quantiles, the sum and the count as samples of a summary.
    pub fn expose(&self, family: &mut Family<'_>, labels: Labels<'_>) {
        self.0.expose(family, labels, MILLISECOND);
    }

    pub fn count(&self) -> u64 {
        self.0.count()
    }
}

/// Sizes in bytes, as Kafka's histograms of them.
#[derive(Debug, Default)]
pub struct Sizes(Histogram);

impl Sizes {
    pub fn record(&self, bytes: usize) {
        self.0.record(bytes as u64);
    }

    /// As [`Timer::expose`].
    pub fn expose(&self, family: &mut Family<'_>, labels: Labels<'_>) {
        self.0.expose(family, labels, 1.0);
    }
}

/// Durations of what happens seldom: their largest and their mean of lately, as those of Kafka's sensors. Behind a lock.
#[derive(Debug)]
pub struct SeldomTimer {
    started: Instant,
    state: Mutex<Seldom>,
}

/// Kafka's `metrics.sample.window.ms`; two samples are looked at.
const SAMPLE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Seldom {
    /// Number of the sample that is being filled.
    number: u64,
    /// That one, and the one before it.
    samples: [Sample; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    count: u32,
    sum: Duration,
    max: Duration,
}

impl Default for SeldomTimer {
    fn default() -> Self {
        Self { started: Instant::now(), state: Mutex::default() }
    }
}

impl SeldomTimer {
    pub fn record(&self, took: Duration) {
        self.record_at(took, self.started.elapsed());
    }

    fn record_at(&self, took: Duration, now: Duration) {
        let mut state = self.state.lock();
        state.turn(now);
        let sample = &mut state.samples[0];
        sample.count = sample.count.saturating_add(1);
        sample.sum += took;
        sample.max = sample.max.max(took);
    }

    /// Writes `[prefix]_max` and `[prefix]_avg`, in milliseconds; NaN when nothing was recorded in the last 30 to 60
    /// seconds, as in Kafka.
    pub fn expose(&self, page: &mut Exposition, prefix: &str, help: &str) {
        let (max, mean) = self.lately_at(self.started.elapsed());
        for (suffix, which, value) in [("max", "Largest", max), ("avg", "Mean", mean)] {
            let help = format!("{help} {which} of the last 30 to 60 seconds, in milliseconds.");
            page.family(&format!("{prefix}_{suffix}"), Kind::Gauge, &help).sample(&[], value);
        }
    }

    /// Largest and mean, in milliseconds.
    fn lately_at(&self, now: Duration) -> (f64, f64) {
        let mut state = self.state.lock();
        state.turn(now);
        let [this, before] = state.samples;
        let count = this.count.saturating_add(before.count);
        if count == 0 {
            return (f64::NAN, f64::NAN);
        }
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        (ms(this.max.max(before.max)), ms(this.sum + before.sum) / f64::from(count))
    }
}

impl Seldom {
    fn turn(&mut self, now: Duration) {
        let number = now.as_secs() / SAMPLE.as_secs();
        if self.number < number {
            let before = if self.number + 1 == number { self.samples[0] } else { Sample::default() };
            self.samples = [Sample::default(), before];
            self.number = number;
        }
    }
}

fn bucket_of(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let exponent = value.ilog2() as usize;
    let step = (value >> (exponent - 3)) as usize % STEPS;
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
        let timer = Histogram::default();
        let record = |ms: u64, at_s: u64| timer.record_at(ms * 1000, Duration::from_secs(at_s));
        for ms in 1..=100 {
            record(ms, 1);
        }
        let between = |quantile: f64, low: f64, high: f64| {
            let index = QUANTILES.iter().position(|(_, one)| (one - quantile).abs() < f64::EPSILON).unwrap();
            let found = timer.quantiles()[index] / MILLISECOND;
            assert!((low..=high).contains(&found), "{quantile}: {found}");
        };
        between(0.5, 50.0, 57.0);
        between(0.999, 100.0, 113.0);
        record(1000, 61);
        between(0.5, 50.0, 57.0);
        record(1000, 121);
        between(0.5, 1000.0, 1130.0);
        record(2, 1000);
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

    #[test]
    fn each_instrument_tells_its_own_unit() {
        let (timer, sizes) = (Timer::default(), Sizes::default());
        timer.record(Duration::from_micros(1500));
        sizes.record(1500);
        let mut page = Exposition::default();
        timer.expose(&mut page.family("t", Kind::Summary, "T."), &[]);
        sizes.expose(&mut page.family("s", Kind::Summary, "S."), &[]);
        let text = page.into_text();
        for line in
            ["t{quantile=\"0.5\"} 1.535", "t_sum 1.5", "s{quantile=\"0.5\"} 1535", "s_sum 1500", "s_count 1"]
        {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn what_is_seldom_is_told_for_a_while() {
        let timer = SeldomTimer::default();
        let lately = |at_s: u64| timer.lately_at(Duration::from_secs(at_s));
        let is = |(max, mean): (f64, f64), expected: (f64, f64)| {
            assert!((max - expected.0).abs() < 1e-9 && (mean - expected.1).abs() < 1e-9, "{max} {mean}");
        };
        assert!(lately(0).0.is_nan() && lately(0).1.is_nan());
        for (ms, at_s) in [(10, 1), (30, 29), (20, 31)] {
            timer.record_at(Duration::from_millis(ms), Duration::from_secs(at_s));
        }
        is(lately(59), (30.0, 20.0));
        is(lately(60), (20.0, 20.0));
        assert!(lately(90).0.is_nan() && lately(91).1.is_nan());
        let mut page = Exposition::default();
        timer.record(Duration::from_millis(7));
        timer.expose(&mut page, "load_time", "Loads.");
        let text = page.into_text();
        assert!(
            text.contains("# TYPE load_time_max gauge\nload_time_max ") && text.contains("load_time_avg "),
            "{text}"
        );
    }
}
