//! What a leader knows of one follower in the current leader epoch: how far its log reaches, since when it has kept
//! up, and under which registration it fetches. All of it is forgotten when the epoch changes, because an offset
//! fetched in an older epoch may have been truncated since (R12, R13).

use zurau_common::id::BrokerEpoch;
use zurau_common::rule::{Rule, holds};

/// A follower's Fetch as the leader sees it. Its offset is the follower's log end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowerFetch {
    pub offset: i64,
    /// Registration of the follower that sends it; `None` from a follower that does not say (Fetch below v15).
    pub broker_epoch: Option<BrokerEpoch>,
    /// Milliseconds of the shell's monotonic clock.
    pub now_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastFetch {
    at_ms: u64,
    leader_log_end: i64,
}

/// Progress of one follower. `caught_up_ms <= now`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The follower's log end (exclusive); `None` until it fetched in this leader epoch.
    log_end: Option<i64>,
    broker_epoch: Option<BrokerEpoch>,
    /// The follower's log start; `None` until it told one in this leader epoch.
    log_start: Option<i64>,
    last_fetch: Option<LastFetch>,
    /// The last time at which the follower held everything that the leader held.
    caught_up_ms: u64,
    /// Since when the leader has been working on the answer to this follower's fetch.
    held_since_ms: Option<u64>,
    /// When the controller said that the follower's broker is gone.
    gone_since_ms: Option<u64>,
}

impl Progress {
    /// A follower of which nothing is known yet. It gets a full lag time before it counts as lagging.
    pub fn new(now_ms: u64) -> Self {
        Self {
            log_end: None,
            broker_epoch: None,
            log_start: None,
            last_fetch: None,
            caught_up_ms: now_ms,
            held_since_ms: None,
            gone_since_ms: None,
        }
    }

    /// Notes a fetch that the leader accepted. Returns false, and notes nothing, if it comes from an earlier
    /// registration of the follower than the newest one seen (F3).
    pub fn record_fetch(&mut self, fetch: FollowerFetch, leader_log_end: i64) -> bool {
        if fetch.broker_epoch < self.broker_epoch && holds(Rule::RegistrationOfFetch) {
            return false;
        }
        self.broker_epoch = self.broker_epoch.max(fetch.broker_epoch);
        if leader_log_end <= fetch.offset {
            self.caught_up_ms = self.caught_up_ms.max(fetch.now_ms);
        } else if let Some(last) = self.last_fetch
            && last.leader_log_end <= fetch.offset
        {
            self.caught_up_ms = self.caught_up_ms.max(last.at_ms);
        }
        self.log_end = Some(fetch.offset);
        self.last_fetch = Some(LastFetch { at_ms: fetch.now_ms, leader_log_end });
        self.held_since_ms = Some(fetch.now_ms);
        true
    }

    /// As if the registration had been heard of in this epoch.
    #[cfg(feature = "model")]
    pub(super) fn adopt_registration(&mut self, former: &Self) {
        self.broker_epoch = former.broker_epoch;
    }

    /// The leader has answered the fetch that came at `fetched_ms`: from now on time counts against the follower again
    /// (D5), unless a later fetch is being answered.
    pub fn record_answer(&mut self, fetched_ms: u64, now_ms: u64) {
        if let Some(held_since_ms) = self.held_since_ms.take_if(|since_ms| *since_ms <= fetched_ms) {
            let held_ms = now_ms.saturating_sub(held_since_ms);
            self.caught_up_ms = self.caught_up_ms.saturating_add(held_ms).min(now_ms);
        }
    }

    /// What a fetch says of the follower's log start; negative when it does not say.
    pub fn record_log_start(&mut self, log_start: i64) {
        self.log_start = (0 <= log_start).then_some(log_start);
    }

    pub fn log_start(&self) -> Option<i64> {
        self.log_start
    }

    pub fn record_gone(&mut self, now_ms: u64) {
        self.gone_since_ms.get_or_insert(now_ms);
    }

    pub fn record_alive(&mut self) {
        self.gone_since_ms = None;
    }

    pub fn is_gone(&self) -> bool {
        self.gone_since_ms.is_some()
    }

    /// Whether the broker is gone and was not heard of since, allowing `grace_ms` before the news for a fetch that
    /// was under way (D15).
    pub fn is_silent_and_gone(&self, grace_ms: u64, now_ms: u64) -> bool {
        let Some(gone_since_ms) = self.gone_since_ms else { return false };
        match self.last_fetch {
            None => true,
            Some(last) if gone_since_ms < last.at_ms => false,
            Some(last) => last.at_ms.saturating_add(grace_ms) <= now_ms,
        }
    }

    pub fn log_end(&self) -> Option<i64> {
        self.log_end
    }

    pub fn broker_epoch(&self) -> Option<BrokerEpoch> {
        self.broker_epoch
    }

    pub fn last_fetch_ms(&self) -> Option<u64> {
        self.last_fetch.map(|fetch| fetch.at_ms)
    }

    /// Milliseconds since the follower last held everything.
    pub(crate) fn behind_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.caught_up_ms)
    }

    /// Whether the follower has not held everything for longer than `lag_max_ms`. Time that its fetch spends inside
    /// the leader does not count (D5), and a follower that holds everything never lags, however silent it is.
    pub fn is_lagging(&self, leader_log_end: i64, lag_max_ms: u64, now_ms: u64) -> bool {
        let until_ms = self.held_since_ms.unwrap_or(now_ms);
        self.log_end != Some(leader_log_end) && lag_max_ms < until_ms.saturating_sub(self.caught_up_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(offset: i64, now_ms: u64) -> FollowerFetch {
        FollowerFetch { offset, broker_epoch: Some(BrokerEpoch(1)), now_ms }
    }

    #[test]
    fn isr_13_a_follower_keeps_up_by_reaching_the_end_of_its_previous_fetch() {
        let mut progress = Progress::new(0);
        assert_eq!(progress.log_end(), None);
        progress.record_fetch(fetch(0, 10), 100);
        progress.record_answer(10, 10);
        assert!(!progress.is_lagging(100, 30, 30));
        assert!(progress.is_lagging(100, 30, 31), "it never reached 100");
        // It reaches what the leader held at 10; the leader is at 200 by now.
        progress.record_fetch(fetch(100, 50), 200);
        progress.record_answer(50, 50);
        assert!(!progress.is_lagging(200, 30, 40));
        assert!(progress.is_lagging(200, 30, 41));
        progress.record_fetch(fetch(200, 60), 200);
        progress.record_answer(60, 60);
        assert!(!progress.is_lagging(200, 30, 1_000), "it holds everything");
        assert!(progress.is_lagging(201, 30, 1_000));
    }

    #[test]
    fn isr_14_time_inside_a_slow_leader_does_not_count() {
        let mut progress = Progress::new(0);
        progress.record_fetch(fetch(0, 10), 100);
        assert!(!progress.is_lagging(100, 30, 500), "the answer is still being made");
        progress.record_answer(9, 400);
        assert!(!progress.is_lagging(100, 30, 500), "that was the answer to an earlier one");
        progress.record_answer(10, 500);
        assert!(!progress.is_lagging(100, 30, 520));
        assert!(progress.is_lagging(100, 30, 521), "10 ms before the fetch, 21 after the answer");
    }

    #[test]
    fn isr_06_an_older_registration_is_not_heard() {
        let mut progress = Progress::new(0);
        let older = FollowerFetch { offset: 90, broker_epoch: Some(BrokerEpoch(3)), now_ms: 5 };
        let newer = FollowerFetch { offset: 10, broker_epoch: Some(BrokerEpoch(4)), now_ms: 6 };
        assert!(progress.record_fetch(older, 100));
        assert!(progress.record_fetch(newer, 100));
        assert!(!progress.record_fetch(older, 100));
        assert_eq!((progress.log_end(), progress.broker_epoch()), (Some(10), Some(BrokerEpoch(4))));
        let nameless = FollowerFetch { offset: 100, broker_epoch: None, now_ms: 7 };
        assert!(!progress.record_fetch(nameless, 100), "a follower that does not say who it is");
    }

    #[test]
    fn a_gone_broker_is_silent_unless_it_fetched_since() {
        //   last fetch, gone, now, silent
        let rows = [
            (None, 100, 100, true),
            (Some(10), 100, 100, true),  // long before the news: at once
            (Some(90), 100, 100, false), // may have been under way
            (Some(90), 100, 140, true),
            (Some(101), 100, 900, false), // fetched since: the lag rule decides
        ];
        for (last, gone, now, silent) in rows {
            let mut progress = Progress::new(0);
            if let Some(at) = last.filter(|at| *at < gone) {
                progress.record_fetch(fetch(5, at), 10);
            }
            progress.record_gone(gone);
            if let Some(at) = last.filter(|at| gone < *at) {
                progress.record_fetch(fetch(5, at), 10);
            }
            assert_eq!(progress.is_silent_and_gone(50, now), silent, "{last:?} {gone} {now}");
            progress.record_alive();
            assert!(!progress.is_silent_and_gone(50, now) && !progress.is_gone());
        }
    }
}
