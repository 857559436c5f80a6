//! BrokerTopicMetrics: what is produced to and fetched from each topic, and in all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zurau_common::http::instruments::Counter;
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;

/// Of one topic, or of all together.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) messages_in: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) bytes_rejected: Counter,
    pub(crate) produce_requests: Counter,
    pub(crate) fetch_requests: Counter,
    pub(crate) failed_produce_requests: Counter,
    pub(crate) failed_fetch_requests: Counter,
    pub(crate) damaged: Counter,
    pub(crate) invalid_magic: Counter,
}

/// Of one topic on this broker; a partition holds them, so that counting needs no look-up.
#[derive(Debug)]
pub(crate) struct TopicCounters {
    own: Counters,
    /// Kept apart, so that it does not shrink when a topic goes.
    all: Arc<Counters>,
}

impl TopicCounters {
    fn each(&self, count: impl Fn(&Counters)) {
        count(&self.own);
        count(&self.all);
    }

    /// Records were appended; a batch that was stored before counts as a request only.
    pub(crate) fn appended(&self, records: i64, bytes: usize) {
        self.each(|counters| {
            counters.produce_requests.add(1);
            counters.messages_in.add(u64::try_from(records).unwrap_or(0));
            counters.bytes_in.add(bytes as u64);
        });
    }

    /// Records were refused. As in Kafka, what only says that the client asked the wrong broker is no failure.
    pub(crate) fn refused(&self, rejection: Rejection, bytes: usize) {
        self.each(|counters| {
            counters.produce_requests.add(1);
            match rejection {
                Rejection::MessageTooLarge | Rejection::RecordListTooLarge => {
                    counters.bytes_rejected.add(bytes as u64);
                }
                Rejection::CorruptMessage => counters.damaged.add(1),
                Rejection::UnsupportedForMessageFormat => {
                    counters.invalid_magic.add(1);
                    counters.failed_produce_requests.add(1);
                }
                Rejection::NotLeaderOrFollower | Rejection::UnknownTopicOrPartition => {}
                _ => counters.failed_produce_requests.add(1),
            }
        });
    }

    /// A consumer's fetch was answered with so many bytes.
    pub(crate) fn fetched(&self, bytes: usize) {
        self.each(|counters| {
            counters.fetch_requests.add(1);
            counters.bytes_out.add(bytes as u64);
        });
    }

    pub(crate) fn fetch_failed(&self) {
        self.each(|counters| {
            counters.fetch_requests.add(1);
            counters.failed_fetch_requests.add(1);
        });
    }
}

/// Of all topics.
#[derive(Debug, Default)]
pub(crate) struct TopicMetrics {
    all: Arc<Counters>,
    /// A topic's counters live as long as this broker has a partition of it.
    topics: Mutex<HashMap<TopicName, Weak<TopicCounters>>>,
}

impl TopicMetrics {
    /// The counters of a topic, for one of its partitions to keep.
    pub(crate) fn of(&self, topic: &TopicName) -> Arc<TopicCounters> {
        let mut topics = self.topics.lock();
        if let Some(known) = topics.get(topic).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(TopicCounters { own: Counters::default(), all: Arc::clone(&self.all) });
        topics.insert(Arc::clone(topic), Arc::downgrade(&made));
        made
    }

    /// Shows the sums under no name, and each topic under its own, in their order.
    pub(super) fn each(&self, mut show: impl FnMut(Option<&str>, &Counters)) {
        let mut topics = self.topics.lock();
        topics.retain(|_, counters| counters.strong_count() != 0);
        let live: BTreeMap<TopicName, Arc<TopicCounters>> = topics
            .iter()
            .filter_map(|(topic, counters)| Some((Arc::clone(topic), counters.upgrade()?)))
            .collect();
        drop(topics);
        show(None, &self.all);
        for (topic, counters) in &live {
            show(Some(topic), &counters.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_goes_takes_its_series_and_not_its_share_of_the_sum() {
        let metrics = TopicMetrics::default();
        let topic: TopicName = "t".into();
        let counters = metrics.of(&topic);
        assert!(Arc::ptr_eq(&counters, &metrics.of(&topic)));
        counters.appended(3, 100);
        counters.refused(Rejection::MessageTooLarge, 50);
        counters.refused(Rejection::NotLeaderOrFollower, 7);
        counters.refused(Rejection::InvalidRecord, 7);
        counters.refused(Rejection::CorruptMessage, 7);
        counters.refused(Rejection::UnsupportedForMessageFormat, 7);
        let shown = || {
            let mut shown = Vec::new();
            metrics.each(|topic, counters| {
                let numbers = [
                    &counters.messages_in,
                    &counters.bytes_in,
                    &counters.bytes_rejected,
                    &counters.produce_requests,
                    &counters.failed_produce_requests,
                    &counters.damaged,
                    &counters.invalid_magic,
                ];
                shown.push((topic.map(str::to_owned), numbers.map(Counter::get)));
            });
            shown
        };
        let numbers = [3, 100, 50, 6, 2, 1, 1];
        assert_eq!(shown(), [(None, numbers), (Some("t".to_owned()), numbers)]);
        drop(counters);
        assert_eq!(shown(), [(None, numbers)]);
    }
}
