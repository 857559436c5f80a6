//! A broker failure costs in proportion to what the broker led: one write, one order per live host, one change of
//! metadata for each partition, however many others there are.

use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::zk::broker::Address;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::TopicIdEntry;

use super::world::World;
use crate::action::Action;
use crate::event::{Event, Fact, LeaderNode, Millis, Read, Registration, Versioned, WriteOutcome};
use crate::machine::Machine;
use crate::queue::{BrokerQueue, Outgoing};

const BROKERS: i32 = 3;

fn value<T>(value: T, mzxid: i64) -> Read<T> {
    Read::Value(Versioned { value, version: 0, mzxid: Some(mzxid) })
}

/// A registration of broker `id` in session `id`.
fn registered(id: i32) -> Vec<Fact> {
    let broker = BrokerId(id);
    let address = Ok(Address { host: format!("host{id}"), port: 9092 });
    vec![
        Fact::Broker {
            broker,
            registration: Some(Registration { session: i64::from(id), czxid: 1, address }),
        },
        Fact::BrokerEpoch { broker, epoch: Some(BrokerEpoch(0)) },
    ]
}

/// A started partition, led by each broker in turn.
fn partition(tp: &TopicPartition) -> Vec<Fact> {
    let ids: Vec<BrokerId> = (0..BROKERS).map(|n| BrokerId(1 + (tp.partition + n) % BROKERS)).collect();
    let state = PartitionState::new(ids[0], LeaderEpoch(0), ControllerEpoch(0), ids.clone(), ids.clone());
    let node = LeaderNode { broker: Some(ids[0]), session: i64::from(ids[0].0), czxid: 20 };
    let tp = || tp.clone();
    vec![
        Fact::Partition { partition: tp(), exists: true },
        Fact::Replicas { partition: tp(), ids: value(ids.clone(), 9) },
        Fact::State { partition: tp(), state: value(state, 10) },
        Fact::Isr { partition: tp(), ids: value(ids, 10) },
        Fact::Leader { partition: tp(), node: Some(node) },
    ]
}

pub(super) fn loaded(topics: usize, partitions: i32) -> Machine {
    let config = World::new().config;
    let mut machine = Machine::new(config, ControllerEpoch(1), 0, Millis(0));
    let mut facts: Vec<Fact> = (1..=BROKERS).flat_map(registered).collect();
    for index in 0..topics {
        let topic: zurau_common::id::TopicName = format!("topic-{index}").into();
        let topic_id = TopicId(uuid::Uuid::from_u128(1 + index as u128));
        let mut entry = TopicIdEntry::new(topic.clone());
        for id in 0..partitions {
            entry.start(id);
            facts.extend(partition(&TopicPartition::new(topic.clone(), id)));
        }
        facts.push(Fact::Topic { topic, node: value(Some(topic_id), 2) });
        facts.push(Fact::TopicIdEntry { topic_id, entry: value(entry, 2) });
    }
    machine.apply(Event::Facts(facts), Millis(0));
    machine.apply(Event::Loaded, Millis(0));
    machine
}

#[test]
fn a_broker_failure_costs_what_the_broker_led() {
    let mut machine = loaded(100, 30);
    let gone = Fact::Broker { broker: BrokerId(1), registration: None };
    let actions = machine.apply(Event::Facts(vec![gone]), Millis(1));
    let writes: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Write { id, .. } => Some((*id, WriteOutcome::Stored { zxid: Some(30) })),
            _ => None,
        })
        .collect();
    assert_eq!(writes.len(), 1_000, "one write for each partition that it led");
    let actions = machine.apply(Event::Written(writes), Millis(2));
    let orders = actions.iter().filter(|action| matches!(action, Action::LeaderAndIsr { .. })).count();
    assert_eq!(orders, 2_000, "one order for each of the two live hosts");
    // A broker that has heard everything is told the changes and nothing else.
    let mut queue = BrokerQueue::new();
    assert_eq!(queue.next_outgoing(), Some(Outgoing::FullMetadata));
    for action in &actions {
        if let Action::Metadata(changes) = action {
            queue.publish(changes);
        }
    }
    assert!(matches!(queue.next_outgoing(), Some(Outgoing::Metadata(changes)) if changes.len() == 1_000));
    assert_eq!(queue.next_outgoing(), None);
    let quiet = machine.apply(Event::Tick, Millis(3));
    assert_eq!(quiet.len(), 0, "{quiet:?}");
}
