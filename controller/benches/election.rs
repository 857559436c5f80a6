//! The controller's core when a broker fails: `cargo bench -p zurau-controller --bench election`.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use uuid::Uuid;
use zurau_common::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName, TopicPartition,
};
use zurau_common::zk::broker::Address;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::TopicIdEntry;
use zurau_controller::action::Action;
use zurau_controller::event::{
    Event, Fact, LeaderNode, Millis, Read, Registration, Versioned, WriteId, WriteOutcome,
};
use zurau_controller::machine::{Machine, MachineConfig};

const BROKERS: i32 = 3;
const TOPICS: i32 = 100;
const PARTITIONS_PER_TOPIC: i32 = 1_000;
const LED_BY_EACH: usize = (TOPICS * PARTITIONS_PER_TOPIC / BROKERS) as usize;

const CONFIG: MachineConfig = MachineConfig {
    session_timeout: 18_000,
    leader_election_wait: 5_000,
    unclean_election: false,
    delete_topics: true,
    auto_rebalance: false,
    imbalance_check_interval: 300_000,
    imbalance_percentage: 10,
    seed: 1,
};

fn value<T>(value: T) -> Read<T> {
    Read::Value(Versioned { value, version: 0, mzxid: Some(10) })
}

fn registered(id: i32) -> [Fact; 2] {
    let address = Ok(Address { host: format!("host{id}"), port: 9092 });
    let registration = Registration { session: i64::from(id), czxid: 1, address };
    [
        Fact::Broker { broker: BrokerId(id), registration: Some(registration) },
        Fact::BrokerEpoch { broker: BrokerId(id), epoch: Some(BrokerEpoch(0)) },
    ]
}

/// A started partition with a replica on every broker, led by each in turn.
fn partition(topic: &TopicName, number: i32) -> [Fact; 5] {
    let ids: Vec<BrokerId> = (0..BROKERS).map(|n| BrokerId(1 + (number + n) % BROKERS)).collect();
    let state = PartitionState::new(ids[0], LeaderEpoch(0), ControllerEpoch(0), ids.clone(), ids.clone());
    let node = LeaderNode { broker: Some(ids[0]), session: i64::from(ids[0].0), czxid: 20 };
    let partition = || TopicPartition::new(topic.clone(), number);
    [
        Fact::Partition { partition: partition(), exists: true },
        Fact::Replicas { partition: partition(), ids: value(ids.clone()) },
        Fact::State { partition: partition(), state: value(state) },
        Fact::Isr { partition: partition(), ids: value(ids) },
        Fact::Leader { partition: partition(), node: Some(node) },
    ]
}

fn all_facts() -> Vec<Fact> {
    let mut facts: Vec<Fact> = (1..=BROKERS).flat_map(registered).collect();
    for index in 0..TOPICS {
        let topic = TopicName::from(format!("topic-{index}"));
        let topic_id = TopicId(Uuid::from_u128(1 + index as u128));
        let mut entry = TopicIdEntry::new(topic.clone());
        for number in 0..PARTITIONS_PER_TOPIC {
            entry.start(number);
            facts.extend(partition(&topic, number));
        }
        facts.push(Fact::Topic { topic, node: value(Some(topic_id)) });
        facts.push(Fact::TopicIdEntry { topic_id, entry: value(entry) });
    }
    facts
}

fn loaded(facts: Vec<Fact>) -> Machine {
    let mut machine = Machine::new(CONFIG, ControllerEpoch(1), 0, Millis(0));
    machine.apply(Event::Facts(facts), Millis(0));
    machine.apply(Event::Loaded, Millis(0));
    machine
}

/// Broker 1 is gone; the writes that the machine asks for.
fn lose_a_broker(machine: &mut Machine) -> Vec<WriteId> {
    let gone = Fact::Broker { broker: BrokerId(1), registration: None };
    let actions = machine.apply(Event::Facts(vec![gone]), Millis(1));
    let write = |action: &Action| if let Action::Write { id, .. } = action { Some(*id) } else { None };
    actions.iter().filter_map(write).collect()
}

fn elections(criterion: &mut Criterion) {
    let facts = all_facts();
    let machine = loaded(facts.clone());
    let mut group = criterion.benchmark_group(format!("{} partitions", TOPICS * PARTITIONS_PER_TOPIC));
    group.sample_size(10);
    group.bench_function("take all facts over", |bencher| {
        bencher.iter_batched(|| facts.clone(), loaded, BatchSize::PerIteration);
    });
    group.bench_function("elect for a third of them", |bencher| {
        let lose = |mut machine: Machine| {
            let writes = lose_a_broker(&mut machine);
            assert!(writes.len().abs_diff(LED_BY_EACH) <= TOPICS as usize, "{}", writes.len());
            machine
        };
        bencher.iter_batched(|| machine.clone(), lose, BatchSize::PerIteration);
    });
    group.bench_function("tell everybody when it is stored", |bencher| {
        let elected = || {
            let mut machine = machine.clone();
            let writes = lose_a_broker(&mut machine);
            let stored = |id| (id, WriteOutcome::Stored { zxid: Some(30) });
            (machine, Event::Written(writes.into_iter().map(stored).collect()))
        };
        let tell = |(mut machine, written): (Machine, Event)| (machine.apply(written, Millis(2)), machine);
        bencher.iter_batched(elected, tell, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, elections);
criterion_main!(benches);
