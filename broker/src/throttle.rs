//! Throttled replication (KIP-73): how many bytes of throttled replicas went by lately, and whether that is too much.
//!
//! What is copied for a throttled replica counts, in sync or not; only copies to replicas that are not in sync wait, so a
//! throttle never pushes a replica out of the ISR (RSN-11). The rate is the mean over `replication.quota.window.num`
//! samples of `replication.quota.window.size.seconds`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zurau_common::config::Settings;
use zurau_common::id::BrokerId;

/// Longest time after which somebody who waits looks again: the rate may have been raised.
const LOOK_AGAIN_MS: u64 = 1_000;

#[derive(Debug, Clone, Copy)]
struct Sample {
    start_ms: u64,
    bytes: u64,
}

/// Bytes of the last samples.
#[derive(Debug)]
struct Window {
    samples_max: usize,
    sample_ms: u64,
    samples: VecDeque<Sample>,
}

impl Window {
    fn new(samples_max: usize, sample_ms: u64) -> Self {
        Self { samples_max: samples_max.max(1), sample_ms: sample_ms.max(1), samples: VecDeque::new() }
    }

    fn forget_old(&mut self, now_ms: u64) {
        let age_ms = self.sample_ms.saturating_mul(self.samples_max as u64);
        while self.samples.front().is_some_and(|oldest| oldest.start_ms.saturating_add(age_ms) <= now_ms) {
            self.samples.pop_front();
        }
    }

    fn record(&mut self, bytes: u64, now_ms: u64) {
        self.forget_old(now_ms);
        match self.samples.back_mut() {
            Some(newest) if now_ms < newest.start_ms.saturating_add(self.sample_ms) => {
                newest.bytes = newest.bytes.saturating_add(bytes);
            }
            _ => self.samples.push_back(Sample { start_ms: now_ms, bytes }),
        }
    }

    /// Milliseconds until the mean is not above `rate` if nothing more is recorded; 0 when it is not now.
    fn wait_ms(&mut self, rate: u64, now_ms: u64) -> u64 {
        self.forget_old(now_ms);
        let Some(oldest) = self.samples.front() else { return 0 };
        let bytes = self.samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.bytes));
        if rate == 0 {
            return if bytes == 0 { 0 } else { u64::MAX };
        }
        let elapsed_ms = now_ms.saturating_sub(oldest.start_ms).max(self.sample_ms);
        let needed_ms = u128::from(bytes) * 1_000 / u128::from(rate);
        u64::try_from(needed_ms).unwrap_or(u64::MAX).saturating_sub(elapsed_ms)
    }
}

/// One of the quotas.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Bytes a second.
    rate: AtomicU64,
    window: Mutex<Window>,
}

impl Throttle {
    fn new(samples_max: usize, sample_ms: u64) -> Self {
        Self { rate: AtomicU64::new(u64::MAX), window: Mutex::new(Window::new(samples_max, sample_ms)) }
    }

    /// `now_ms` never goes back by more than a sample.
    pub(crate) fn record(&self, bytes: usize, now_ms: u64) {
        self.window.lock().record(bytes as u64, now_ms);
    }

    /// `None`: go on. Otherwise after how many milliseconds to look again.
    pub(crate) fn exceeded(&self, now_ms: u64) -> Option<u64> {
        let wait_ms = self.window.lock().wait_ms(self.rate.load(Ordering::Relaxed), now_ms);
        (0 < wait_ms).then(|| wait_ms.min(LOOK_AGAIN_MS))
    }
}

/// The quotas of a broker.
#[derive(Debug)]
pub(crate) struct Throttles {
    /// `leader.replication.throttled.rate`.
    pub(crate) leader: Throttle,
    /// `follower.replication.throttled.rate`.
    pub(crate) follower: Throttle,
    /// `replica.alter.log.dirs.io.max.bytes.per.second`.
    pub(crate) log_dir_moves: Throttle,
}

impl Throttles {
    pub(crate) fn new(settings: &Settings) -> Self {
        let throttle = |of: &str| {
            let samples = number(settings, &format!("{of}.quota.window.num"));
            let sample_s = number(settings, &format!("{of}.quota.window.size.seconds"));
            Throttle::new(usize::try_from(samples).unwrap_or(usize::MAX), sample_s.saturating_mul(1_000))
        };
        let throttles = Self {
            leader: throttle("replication"),
            follower: throttle("replication"),
            log_dir_moves: throttle("alter.log.dirs.replication"),
        };
        throttles.set_rates(settings);
        throttles
    }

    /// Takes the rates of a changed configuration.
    pub(crate) fn set_rates(&self, settings: &Settings) {
        for (throttle, key) in [
            (&self.leader, "leader.replication.throttled.rate"),
            (&self.follower, "follower.replication.throttled.rate"),
            (&self.log_dir_moves, "replica.alter.log.dirs.io.max.bytes.per.second"),
        ] {
            throttle.rate.store(number(settings, key), Ordering::Relaxed);
        }
    }
}

/// A key that has a default; its value was checked.
fn number(settings: &Settings, key: &str) -> u64 {
    settings.get(key).and_then(|(value, _)| value.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// Which partitions of a topic are throttled on this broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Throttled {
    #[default]
    None,
    All,
    Some(Arc<BTreeSet<i32>>),
}

impl Throttled {
    /// From `leader.` or `follower.replication.throttled.replicas`: `*`, or `partition:broker` separated by commas.
    pub(crate) fn parse(value: &str, own: BrokerId) -> Self {
        if value.trim() == "*" {
            return Self::All;
        }
        let pairs = value.split(',').filter_map(|pair| {
            let (partition, broker) = pair.trim().split_once(':')?;
            Some((partition.trim().parse::<i32>().ok()?, broker.trim().parse::<i32>().ok()?))
        });
        let own: BTreeSet<i32> =
            pairs.filter(|(_, broker)| *broker == own.0).map(|(partition, _)| partition).collect();
        if own.is_empty() { Self::None } else { Self::Some(Arc::new(own)) }
    }

    pub(crate) fn contains(&self, partition: i32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(partitions) => partitions.contains(&partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of `bytes` in pieces, as fast as the quota lets it; returns the milliseconds it took.
    fn copy(throttle: &Throttle, bytes: usize, piece: usize) -> u64 {
        let (mut now_ms, mut copied) = (1_000_000, 0);
        let start_ms = now_ms;
        while copied < bytes {
            match throttle.exceeded(now_ms) {
                Some(wait_ms) => now_ms += wait_ms,
                None => {
                    throttle.record(piece, now_ms);
                    copied += piece;
                    now_ms += 1;
                }
            }
        }
        now_ms - start_ms
    }

    fn throttle(rate: u64) -> Throttle {
        let throttle = Throttle::new(11, 1_000);
        throttle.rate.store(rate, Ordering::Relaxed);
        throttle
    }

    #[test]
    fn a_copy_takes_as_long_as_the_rate_says() {
        const MIB: usize = 1 << 20;
        for (mebibytes, rate, piece, seconds) in
            [(100, 1, MIB, 100), (100, 10, MIB, 10), (64, 2, 64 << 10, 32), (300, 5, 2 * MIB, 60)]
        {
            let took_ms = copy(&throttle(rate << 20), mebibytes * MIB, piece);
            let expected_ms = seconds * 1_000;
            // One piece may be ahead of its time, at the start and whenever the samples begin anew.
            assert!(
                expected_ms * 80 / 100 <= took_ms && took_ms <= expected_ms * 110 / 100,
                "{mebibytes} MiB at {rate} MiB/s took {took_ms} ms"
            );
        }
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let limitless = Throttle::new(11, 1_000);
        assert_eq!(copy(&limitless, 1 << 30, 1 << 20), 1_024);
        assert_eq!(limitless.exceeded(u64::MAX), None);
    }

    #[test]
    fn a_rate_that_is_raised_counts_at_once() {
        let throttle = throttle(0);
        throttle.record(1, 5_000);
        assert_eq!(throttle.exceeded(5_001), Some(LOOK_AGAIN_MS));
        throttle.rate.store(1 << 20, Ordering::Relaxed);
        assert_eq!(throttle.exceeded(5_001), None);
    }

    #[test]
    fn replicas_are_named_by_partition_and_broker() {
        let own = BrokerId(3);
        let rows: [(&str, &[i32]); 5] =
            [("0:3, 2:3,1:4", &[0, 2]), ("", &[]), ("1:4", &[]), ("nonsense,2:x,5:3", &[5]), ("33:3", &[33])];
        for (value, expected) in rows {
            let throttled = Throttled::parse(value, own);
            let found: Vec<i32> = (0..40).filter(|partition| throttled.contains(*partition)).collect();
            assert_eq!(found, expected, "'{value}'");
        }
        assert!(Throttled::parse("*", own).contains(77));
    }
}
