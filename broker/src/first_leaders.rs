//! For how long answers about a new topic wait for its first leaders. Pure.
//!
//! The wait is one for each creation, from the first question on. Whoever asks later shares what is left of it: while
//! leaders cannot be chosen (the controller or ZooKeeper is away) nobody waits again.

use std::collections::HashMap;

use zurau_common::id::{TopicId, TopicName};

/// How long answers wait for the first leaders of topics that they name, from the first question on.
const WAIT_MS: u64 = 500;
/// A topic that the controller has not told of is forgotten after this time: it may have been deleted.
const UNTOLD_MS: u64 = 600_000;

/// A topic that waits for first leaders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewTopic {
    pub(crate) name: TopicName,
    /// `None` until the controller has told of it.
    pub(crate) topic_id: Option<TopicId>,
    pub(crate) partitions: usize,
}

#[derive(Debug)]
struct Awaited {
    topic_id: Option<TopicId>,
    partitions: usize,
    until_ms: u64,
}

/// What is waited for, and what was.
#[derive(Debug, Default)]
pub(crate) struct FirstLeaders {
    awaited: HashMap<TopicName, Awaited>,
}

impl FirstLeaders {
    /// Which of the topics asked for are still to be waited for, and until when.
    pub(crate) fn wait_for(&mut self, asked: Vec<NewTopic>, now_ms: u64) -> (Vec<TopicName>, u64) {
        let (mut names, mut until_ms) = (Vec::new(), now_ms);
        for NewTopic { name, topic_id, partitions } in asked {
            let fresh = || Awaited { topic_id, partitions, until_ms: now_ms + WAIT_MS };
            let awaited = self.awaited.entry(name.clone()).or_insert_with(fresh);
            let is_another = awaited.topic_id.is_some() && topic_id.is_some() && awaited.topic_id != topic_id;
            let has_grown = awaited.topic_id.is_some() && awaited.partitions < partitions;
            if is_another || has_grown {
                *awaited = fresh();
            }
            if topic_id.is_some() {
                (awaited.topic_id, awaited.partitions) = (topic_id, partitions);
            }
            if now_ms < awaited.until_ms {
                until_ms = until_ms.max(awaited.until_ms);
                names.push(name);
            }
        }
        (names, until_ms)
    }

    #[cfg(test)]
    pub(crate) fn has_awaited(&self, topic_id: TopicId) -> bool {
        self.awaited.values().any(|awaited| awaited.topic_id == Some(topic_id))
    }

    /// Forgets what is waited for no more: topics whose partitions have all had a leader, or that nobody tells of.
    /// `waits`: whether a topic that the controller tells of waits; `None` if it does not tell of it.
    pub(crate) fn forget(&mut self, waits: impl Fn(&str) -> Option<bool>, now_ms: u64) {
        self.awaited.retain(|name, awaited| match waits(name) {
            Some(waits) => waits,
            None => awaited.topic_id.is_none() && now_ms < awaited.until_ms + UNTOLD_MS,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::id;

    fn new(topic_id: Option<u128>, partitions: usize) -> Vec<NewTopic> {
        vec![NewTopic { name: "t".into(), topic_id: topic_id.map(id), partitions }]
    }

    #[test]
    fn each_creation_is_waited_for_once() {
        let mut leaders = FirstLeaders::default();
        //   the topic as the controller tells it, when it is asked for, until when the answer waits
        let rows = [
            (None, 0, 1_000, Some(1_500)),
            (None, 0, 1_200, Some(1_500)),
            // The same creation, told of.
            (Some(1), 2, 1_300, Some(1_500)),
            (Some(1), 2, 1_500, None),
            (Some(1), 2, 9_000, None),
            // More partitions; another incarnation.
            (Some(1), 3, 10_000, Some(10_500)),
            (Some(1), 3, 10_500, None),
            (Some(2), 1, 10_600, Some(11_100)),
            (Some(2), 1, 11_100, None),
        ];
        for (topic_id, partitions, now_ms, until) in rows {
            let (names, until_ms) = leaders.wait_for(new(topic_id, partitions), now_ms);
            assert_eq!((!names.is_empty()).then_some(until_ms), until, "at {now_ms}");
        }
    }

    #[test]
    fn one_that_waits_in_vain_does_not_hold_up_the_others() {
        let mut leaders = FirstLeaders::default();
        leaders.wait_for(new(Some(1), 1), 0);
        let other = NewTopic { name: "u".into(), topic_id: Some(id(2)), partitions: 1 };
        let asked = [new(Some(1), 1), vec![other]].concat();
        assert_eq!(leaders.wait_for(asked, 600), (vec!["u".into()], 1_100));
    }

    #[test]
    fn what_is_led_or_gone_is_forgotten() {
        let mut leaders = FirstLeaders::default();
        leaders.wait_for(new(Some(1), 1), 0);
        leaders.forget(|_| Some(true), 1_000);
        assert!(leaders.wait_for(new(Some(1), 1), 1_000).0.is_empty());
        leaders.forget(|_| Some(false), 1_000);
        assert!(leaders.awaited.is_empty());
        leaders.wait_for(new(None, 0), 1_000);
        leaders.forget(|_| None, UNTOLD_MS);
        assert_eq!(leaders.awaited.len(), 1, "the controller may be away");
        leaders.forget(|_| None, 2 * UNTOLD_MS);
        assert!(leaders.awaited.is_empty());
        leaders.wait_for(new(Some(1), 1), 0);
        leaders.forget(|_| None, 0);
        assert!(leaders.awaited.is_empty(), "deleted");
    }
}
