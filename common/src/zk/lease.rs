//! The lease of a leader on a real clock (coordination.md, section 5). Answers to pings and reads prove nothing (F10),
//! so they never come here. CLOCK_BOOTTIME goes on while the machine sleeps; the successor's clock does too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

pub use super::lease_term::BootTime;
use super::lease_term::Term;

impl BootTime {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).expect("time since boot is not negative");
        let nanoseconds =
            u32::try_from(time.tv_nsec).expect("a timespec holds less than a second of nanoseconds");
        Self(Duration::new(seconds, nanoseconds))
    }
}

/// The lease of one session. Clones share it.
#[derive(Debug, Clone)]
pub struct Lease {
    term: Arc<Mutex<Term>>,
}

impl Lease {
    pub(crate) fn new(session_timeout: Duration) -> Self {
        Self { term: Arc::new(Mutex::new(Term::new(session_timeout))) }
    }

    /// Whether the lease is held at this moment. To be asked right before each acknowledgement.
    pub fn is_held(&self) -> bool {
        self.term.lock().is_held(BootTime::now())
    }

    /// The first moment at which the lease is no longer held, unless it is renewed before. May lie in the past;
    /// `None` before the first confirmed write and after the end of the session.
    pub fn held_until(&self) -> Option<BootTime> {
        self.term.lock().held_until()
    }

    /// How long the lease is still held; zero when it is not.
    pub fn remaining(&self) -> Duration {
        self.held_until().map_or(Duration::ZERO, |until| until.since(BootTime::now()))
    }

    /// A write that was sent at `sent` is confirmed.
    pub(crate) fn confirm(&self, sent: BootTime) {
        self.term.lock().confirm(sent);
    }

    pub(crate) fn grant(&self, session_timeout: Duration) {
        self.term.lock().grant(session_timeout);
    }

    pub(crate) fn end(&self) {
        self.term.lock().end();
    }

    pub(crate) fn renewal_due_in(&self) -> Duration {
        self.term.lock().renewal_due_in(BootTime::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_and_a_fresh_write_is_a_lease() {
        let earlier = BootTime::now();
        assert!(BootTime::now() >= earlier);
        let lease = Lease::new(Duration::from_secs(3600));
        assert!(!lease.is_held());
        lease.confirm(BootTime::now());
        assert!(lease.is_held());
        assert!(lease.remaining() > Duration::from_secs(1700));
        lease.clone().end();
        assert!(!lease.is_held());
        assert_eq!(lease.remaining(), Duration::ZERO);
    }
}
