//! The arithmetic of a lease (coordination.md, section 5), without a clock: half the negotiated session timeout,
//! counted from the moment when the last confirmed write of the session was sent.

use std::time::Duration;

/// A reading of CLOCK_BOOTTIME: time since the machine started, time asleep included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The time from `earlier` until `self`; zero when `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The arithmetic, without a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    session_timeout: Duration,
    /// When the last confirmed write was sent.
    confirmed: Option<BootTime>,
    ended: bool,
}

impl Term {
    pub(crate) fn new(session_timeout: Duration) -> Self {
        Self { session_timeout, confirmed: None, ended: false }
    }

    /// The server granted the session another timeout when it was attached again. A longer one changes nothing.
    pub(crate) fn grant(&mut self, session_timeout: Duration) {
        self.session_timeout = self.session_timeout.min(session_timeout);
    }

    /// Answers may come in another order than the writes were sent: the latest sending counts.
    pub(crate) fn confirm(&mut self, sent: BootTime) {
        self.confirmed = self.confirmed.max(Some(sent));
    }

    pub(crate) fn held_until(&self) -> Option<BootTime> {
        let sent = self.confirmed.filter(|_| !self.ended)?;
        Some(BootTime(sent.0 + self.session_timeout / 2))
    }

    pub(crate) fn is_held(&self, now: BootTime) -> bool {
        self.held_until().is_some_and(|until| now < until)
    }

    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// How long the keeper may wait before it must write again; zero when it is time.
    pub(crate) fn renewal_due_in(&self, now: BootTime) -> Duration {
        let pause = self.session_timeout / 8;
        self.confirmed.map_or(Duration::ZERO, |sent| pause.saturating_sub(now.since(sent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime(Duration::from_millis(millis))
    }

    fn term() -> Term {
        Term::new(Duration::from_millis(8_000))
    }

    #[test]
    fn nothing_is_held_before_a_confirmed_write() {
        assert!(!term().is_held(at(0)));
        assert_eq!(term().held_until(), None);
        assert_eq!(term().renewal_due_in(at(5)), Duration::ZERO);
    }

    #[test]
    fn it_lasts_half_the_session_timeout_from_the_sending() {
        let mut term = term();
        term.confirm(at(1_000));
        assert_eq!(term.held_until(), Some(at(5_000)));
        assert!(term.is_held(at(4_999)));
        assert!(!term.is_held(at(5_000)), "the end is exclusive");
    }

    #[test]
    fn a_late_answer_to_an_early_write_does_not_shorten_it() {
        let mut term = term();
        term.confirm(at(3_000));
        term.confirm(at(1_000));
        assert_eq!(term.held_until(), Some(at(7_000)));
    }

    #[test]
    fn a_lapsed_lease_is_renewed_in_the_same_session() {
        let mut term = term();
        term.confirm(at(1_000));
        assert!(!term.is_held(at(9_000)));
        term.confirm(at(9_100));
        assert!(term.is_held(at(9_200)));
    }

    #[test]
    fn a_shorter_session_timeout_shortens_the_lease_that_is_held() {
        let mut term = term();
        term.confirm(at(1_000));
        term.grant(Duration::from_millis(9_000));
        assert_eq!(term.held_until(), Some(at(5_000)));
        term.grant(Duration::from_millis(4_000));
        assert_eq!(term.held_until(), Some(at(3_000)));
    }

    #[test]
    fn the_end_of_the_session_ends_it_for_good() {
        let mut term = term();
        term.confirm(at(1_000));
        term.end();
        assert!(!term.is_held(at(1_001)));
        term.confirm(at(1_002));
        assert!(!term.is_held(at(1_003)), "a confirmation that comes after the end revives nothing");
    }

    #[test]
    fn the_keeper_writes_every_eighth_of_the_timeout_unless_something_else_was_written() {
        let mut term = term();
        term.confirm(at(1_000));
        assert_eq!(term.renewal_due_in(at(1_400)), Duration::from_millis(600));
        term.confirm(at(1_900));
        assert_eq!(term.renewal_due_in(at(2_000)), Duration::from_millis(900));
        assert_eq!(term.renewal_due_in(at(2_900)), Duration::ZERO);
        assert_eq!(term.renewal_due_in(at(9_999)), Duration::ZERO);
    }

    #[test]
    fn no_time_is_negative() {
        assert_eq!(at(3).since(at(5)), Duration::ZERO);
        assert_eq!(at(5).since(at(3)), Duration::from_millis(2));
    }
}
