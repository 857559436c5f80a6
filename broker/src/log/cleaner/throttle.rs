//! `log.cleaner.io.max.bytes.per.second` as arithmetic: how long to pause after bytes were moved.
//!
//! Pure. Unused time is not saved up for more than a second, so that a pass never comes as a burst.

use std::time::Duration;

/// Time that may be unused before it is lost.
const SAVED_MAX: Duration = Duration::from_secs(1);

/// The pace of one thread.
#[derive(Debug)]
pub(crate) struct Throttle {
    bytes_per_second: f64,
    /// When the bytes moved so far are paid for, since the thread's start.
    paid_until: Duration,
}

impl Throttle {
    /// `bytes_per_second`: above 0.
    pub(crate) fn new(bytes_per_second: f64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1.0), paid_until: Duration::ZERO }
    }

    /// `bytes` were read or written up to `now` (since the thread's start): how long to pause.
    pub(crate) fn pause_after(&mut self, bytes: u64, now: Duration) -> Duration {
        let cost = Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second);
        let cost = cost.unwrap_or(Duration::from_secs(3600));
        self.paid_until = self.paid_until.max(now.saturating_sub(SAVED_MAX)) + cost;
        self.paid_until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_over_time() {
        let mut throttle = Throttle::new(1000.0);
        let second = Duration::from_secs(1);
        assert_eq!(throttle.pause_after(500, Duration::ZERO), second / 2);
        assert_eq!(throttle.pause_after(500, second / 2), second / 2);
        assert_eq!(throttle.pause_after(500, second * 60), Duration::ZERO, "a second is saved up");
        assert_eq!(throttle.pause_after(1500, second * 60), second, "not a minute");
        let mut unlimited = Throttle::new(f64::MAX);
        assert_eq!(unlimited.pause_after(u64::MAX, Duration::ZERO), Duration::ZERO);
    }
}
