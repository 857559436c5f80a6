//! Seeded random histories of the machine: brokers come and go, answers are lost, writes wait, controllers change,
//! admins move and delete. After every step the invariants hold; after healing everything converges. A failing seed
//! is replayed with `SEED=n`.

use std::collections::BTreeMap;

use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::decode_topic;
use zurau_common::zk::znode::Znode;

use super::world::{Mood, World};
use super::{propose, run};
use crate::multi::operations;

/// Histories of one run; `SEEDS=n` plays more.
const SEEDS: u64 = 60;
const STEPS: usize = 60;
const BROKERS: i32 = 4;
const TOPICS: [&str; 2] = ["t", "u"];
const PARTITIONS: i32 = 2;

/// xorshift: good enough to choose steps, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn broker(&mut self) -> i32 {
        1 + i32::try_from(self.roll(BROKERS as u64)).unwrap()
    }

    /// One to three brokers.
    fn set(&mut self) -> String {
        let mut ids: Vec<i32> = (1..=BROKERS).collect();
        for index in 0..ids.len() {
            let other = usize::try_from(self.roll(BROKERS as u64)).unwrap();
            ids.swap(index, other);
        }
        ids.truncate(1 + usize::try_from(self.roll(3)).unwrap());
        format!("{ids:?}").replace(' ', "")
    }

    fn partition(&mut self) -> TopicPartition {
        let topic = TOPICS[usize::try_from(self.roll(2)).unwrap()];
        TopicPartition::new(topic, i32::try_from(self.roll(PARTITIONS as u64)).unwrap())
    }
}

/// What has been seen so far, to compare with.
#[derive(Default)]
struct Referee {
    orders_seen: usize,
    leaders: BTreeMap<(TopicPartition, TopicId, LeaderEpoch), (BrokerId, Option<BrokerEpoch>)>,
    epochs: BTreeMap<(TopicPartition, TopicId), LeaderEpoch>,
}

impl Referee {
    fn check(&mut self, world: &World) {
        for (broker, broker_epoch, order) in &world.orders[self.orders_seen..] {
            let key = (order.partition.clone(), order.topic_id, order.leader_epoch);
            let (leader, registration) = self.leaders.entry(key).or_insert((order.leader, None));
            assert_eq!(*leader, order.leader, "M3: two leaders of one epoch: {order:?}");
            if order.leader == *broker {
                let told = registration.get_or_insert(*broker_epoch);
                assert_eq!(told, broker_epoch, "F5: sent to its leader in two registrations: {order:?}");
                assert!(order.isr.contains(broker), "the leader is not in what it shall store: {order:?}");
            }
        }
        self.orders_seen = world.orders.len();
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                self.check_partition(world, &TopicPartition::new(topic, partition));
            }
        }
    }

    fn check_partition(&mut self, world: &World, tp: &TopicPartition) {
        let topic = world.zookeeper.get(&Znode::Topic(tp.topic.clone()).path());
        let Some(Ok(Some(topic_id))) = topic.map(|node| decode_topic(&node.data)) else { return };
        let Some(state) = world.zookeeper.get(&Znode::State(tp.clone()).path()) else { return };
        let state = PartitionState::decode(&state.data).unwrap();
        let highest = self.epochs.entry((tp.clone(), topic_id)).or_insert(state.leader_epoch);
        assert!(*highest <= state.leader_epoch, "M1: {tp} went back from {highest} to {state:?}");
        *highest = state.leader_epoch;
        if let Some(isr) = world.zookeeper.get(&Znode::Isr(tp.clone()).path()) {
            let isr = decode_ids(&isr.data).unwrap();
            let foreign = isr.iter().find(|id| !state.replicas.contains(id));
            assert_eq!(foreign, None, "N8: an ISR member is no host: {tp} {isr:?} {state:?}");
        }
    }
}

fn step(world: &mut World, dice: &mut Dice) {
    let tp = dice.partition();
    let broker = dice.broker();
    let alive = world.brokers.contains_key(&broker);
    match dice.roll(16) {
        0..=1 if alive => run(world, &format!("stop {broker}")),
        0..=4 if !alive => run(world, &format!("start {broker}")),
        2..=3 => run(world, &format!("restart {broker}")),
        4 if alive => {
            let moods = [
                Mood::Obey,
                Mood::Obey,
                Mood::Silent,
                Mood::Refuse(Rejection::KafkaStorageError),
                Mood::Ahead(LeaderEpoch(6)),
            ];
            world.brokers.get_mut(&broker).unwrap().mood = moods[usize::try_from(dice.roll(5)).unwrap()];
        }
        5 => run(world, "lose"),
        6 => run(world, if world.held.is_some() { "release" } else { "hold" }),
        7 => change_controller(world),
        8 => run(world, if world.deaf { "hear" } else { "deaf" }),
        9 => run(world, &format!("move {tp} {}", dice.set())),
        10 if dice.one_in(2) => run(world, &format!("partition {tp} {}", dice.set())),
        10 => run(world, &format!("cancel {tp}")),
        11 if dice.one_in(3) => run(world, &format!("put /admin/delete_topics/{}", tp.topic)),
        11 if dice.one_in(3) => run(world, &format!("remove /brokers/topics/{}", tp.topic)),
        11 => create_missing(world, dice),
        12 => run(world, &format!("pass {}", dice.roll(40_000))),
        13 => resign(world, &tp),
        _ => propose_something(world, dice, &tp),
    }
}

/// The old one's writes that were under way must not be stored any more (CTL-01).
fn change_controller(world: &mut World) {
    let old: Vec<_> = world.held.take().unwrap_or_default();
    let version = world.machine.epoch_version();
    world.new_controller();
    for (_, write) in old {
        if let Some(ops) = operations(&write, version) {
            let stored = world.zookeeper.multi(&ops, 0);
            assert!(stored.is_err(), "CTL-01: a write of an old controller was stored: {write:?}");
        }
    }
}

fn create_missing(world: &mut World, dice: &mut Dice) {
    for topic in TOPICS {
        if world.zookeeper.get(&format!("/brokers/topics/{topic}")).is_none() {
            run(world, &format!("topic {topic}"));
        }
        for partition in 0..PARTITIONS {
            if world.zookeeper.get(&format!("/brokers/topics/{topic}/{partition}/replicas")).is_none() {
                run(world, &format!("partition {topic}-{partition} {}", dice.set()));
            }
        }
    }
}

/// The broker that serves the partition, if one does.
fn leader_of(world: &World, tp: &TopicPartition) -> Option<(i32, PartitionState)> {
    let leader = world.zookeeper.get(&Znode::Leader(tp.clone()).path())?;
    let node = world.zookeeper.get(&Znode::State(tp.clone()).path())?;
    let state = PartitionState::decode(&node.data).unwrap();
    let session = world.brokers.get(&state.leader.0)?.session;
    (leader.czxid > node.mzxid && leader.ephemeral_owner == session).then_some((state.leader.0, state))
}

fn resign(world: &mut World, tp: &TopicPartition) {
    if let Some((leader, _)) = leader_of(world, tp) {
        run(world, &format!("resign {leader} {tp}"));
    }
}

fn propose_something(world: &mut World, dice: &mut Dice, tp: &TopicPartition) {
    let Some((leader, state)) = leader_of(world, tp) else { return };
    let stored = world.zookeeper.text(&Znode::Isr(tp.clone()).path()).unwrap();
    let stored = decode_ids(stored.as_bytes()).unwrap();
    let member = |id: &BrokerId| world.brokers.contains_key(&id.0);
    let chosen: Vec<i32> = state
        .replicas
        .iter()
        .filter(|id| id.0 == leader || member(id) && dice.one_in(2))
        .map(|id| id.0)
        .collect();
    let left: Vec<i32> = stored.iter().map(|id| id.0).filter(|id| !chosen.contains(id)).collect();
    let elr = if dice.one_in(2) { left } else { Vec::new() };
    let text = |ids: Vec<i32>| format!("{ids:?}").replace(' ', "");
    let (isr, elr) = (format!("isr={}", text(chosen)), format!("elr={}", text(elr)));
    propose(world, leader, tp, &[&isr, &elr]);
}

/// Everything works again, and the leaders let everybody catch up.
fn heal(world: &mut World, dice: &mut Dice) {
    world.lose_next = false;
    if world.held.is_some() {
        run(world, "release");
    }
    for id in 1..=BROKERS {
        match world.brokers.get_mut(&id) {
            Some(broker) => broker.mood = Mood::Obey,
            None => run(world, &format!("start {id}")),
        }
    }
    run(world, "hear");
    for answer in std::mem::take(&mut world.unanswered) {
        world.tell(answer);
    }
    create_missing(world, dice);
    for _ in 0..8 {
        world.pass(70_000);
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                catch_up(world, &TopicPartition::new(topic, partition));
            }
        }
    }
}

fn catch_up(world: &mut World, tp: &TopicPartition) {
    let text = |ids: &[BrokerId]| format!("isr={ids:?}").replace(' ', "");
    if let Some((leader, state)) = leader_of(world, tp) {
        propose(world, leader, tp, &[&text(&state.replicas)]);
    }
    if let Some((leader, state)) =
        leader_of(world, tp).filter(|(leader, s)| s.target.contains(&BrokerId(*leader)))
    {
        propose(world, leader, tp, &[&text(&state.target)]);
    }
}

fn check_converged(world: &World) {
    for topic in TOPICS {
        for partition in 0..PARTITIONS {
            let tp = TopicPartition::new(topic, partition);
            let Some(replicas) = world.zookeeper.text(&Znode::Replicas(tp.clone()).path()) else { continue };
            let replicas = decode_ids(replicas.as_bytes()).unwrap();
            let (leader, state) = leader_of(world, &tp)
                .unwrap_or_else(|| panic!("{tp} has no leader; the last steps were\n{}", tail(world)));
            assert!(
                state.replicas.iter().all(|id| replicas.contains(id)),
                "{tp}: the move is not over: {state:?}"
            );
            assert_eq!(
                world.zookeeper.get(&Znode::Reassignment(tp.clone()).path()),
                None,
                "{tp}: the wish stands"
            );
            assert_eq!(world.zookeeper.get(&Znode::Leaving(tp.clone()).path()), None, "{tp}: leaving stands");
            assert_eq!(
                world.zookeeper.get(&Znode::PartitionError(tp.clone()).path()),
                None,
                "{tp}: an error stands"
            );
            let known = &world.metadata[&tp];
            assert_eq!(known.leader, Some(BrokerId(leader)), "M9: clients know another leader of {tp}");
            assert_eq!(known.leader_epoch, state.leader_epoch, "M9: clients know another epoch of {tp}");
        }
    }
}

/// What happened lately, and what stands in ZooKeeper.
fn tail(world: &World) -> String {
    let log = world.log.iter().rev().take(60).rev();
    let tree = world.zookeeper.below("/brokers/topics").into_iter();
    let tree = tree.map(|path| format!("{path} {}", world.zookeeper.text(&path).unwrap()));
    log.cloned().chain(tree).collect::<Vec<_>>().join("\n")
}

fn history(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut world, mut referee) = (World::new(), Referee::default());
    run(&mut world, "start 1 2 3 4");
    create_missing(&mut world, &mut dice);
    for _ in 0..STEPS {
        step(&mut world, &mut dice);
        referee.check(&world);
    }
    heal(&mut world, &mut dice);
    referee.check(&world);
    check_converged(&world);
}

#[test]
fn random_histories_keep_the_invariants_and_converge() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let count = std::env::var("SEEDS").map_or(SEEDS, |count| count.parse().unwrap());
    let seeds = only.map_or(1..count + 1, |seed| seed..seed + 1);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| history(seed));
        assert!(outcome.is_ok(), "the history of SEED={seed} went wrong, see above");
    }
}
