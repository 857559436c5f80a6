//! Stories about the controller as text: commands, then `----`, then what happened. `UPDATE_EXPECT=1` rewrites what
//! happened; read the difference before keeping it. The files stand in `tests/scenarios`, named by case or attack.

mod random;
mod scale;
mod statistics;
mod world;
mod zookeeper;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::Znode;

use crate::event::{Event, Proposal, ProposalTopic, RequestId};
use world::{Mood, World, ids};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

#[test]
fn every_story_goes_as_it_is_told() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no stories in {:?}", directory());
    let mut differing = Vec::new();
    for file in files {
        let told = std::fs::read_to_string(&file).unwrap();
        let happened = play(&told);
        if update {
            std::fs::write(&file, &happened).unwrap();
        } else if told != happened {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            differing.push(format!("=== {name}: what happened ===\n{happened}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Plays a story: blocks of commands, `----` and output, separated by an empty line. `#` begins a comment.
fn play(text: &str) -> String {
    let mut world = World::new();
    let mut out = String::new();
    for block in text.trim_end().split("\n\n") {
        let mut commands = Vec::new();
        for line in block.lines().take_while(|line| *line != "----") {
            writeln!(out, "{line}").unwrap();
            let command = line.split('#').next().unwrap_or_default().trim();
            if !command.is_empty() {
                commands.push(command);
            }
        }
        if !commands.is_empty() {
            for command in commands {
                run(&mut world, command);
            }
            writeln!(out, "----").unwrap();
        }
        for line in std::mem::take(&mut world.log) {
            writeln!(out, "{line}").unwrap();
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn run(world: &mut World, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["start", brokers @ ..] => brokers.iter().for_each(|id| world.start_broker(number(id))),
        ["stop", brokers @ ..] => brokers.iter().for_each(|id| world.stop_broker(number(id))),
        ["restart", id] => {
            world.stop_broker(number(id));
            world.start_broker(number(id));
        }
        ["mood", id, mood @ ..] => {
            world.brokers.get_mut(&number(id)).unwrap().mood = mood_of(mood);
        }
        ["topic", topic] => world.zookeeper.put(&format!("/brokers/topics/{topic}"), "", 0),
        ["partition", tp, replicas @ ..] => {
            let path = Znode::Replicas(partition(tp)).path();
            world.zookeeper.put(&path, &replicas.join(" "), 0);
        }
        ["move", tp, wanted] => world.zookeeper.put(&Znode::Reassignment(partition(tp)).path(), wanted, 0),
        ["cancel", tp] => world.zookeeper.remove(&Znode::Reassignment(partition(tp)).path()),
        ["put", path, data @ ..] => world.zookeeper.put(path, &data.join(" "), 0),
        ["remove", path] => world.zookeeper.remove(path),
        ["resign", id, tp] => {
            let leader = Znode::Leader(partition(tp)).path();
            assert_eq!(world.zookeeper.text(&leader).as_deref(), Some(*id));
            world.zookeeper.remove(&leader);
        }
        ["pass", time] => world.pass(time.parse().unwrap()),
        ["deaf"] => world.deaf = true,
        ["hear"] => {
            world.deaf = false;
            world.reload();
        }
        ["hold"] => world.held = Some(Vec::new()),
        ["release", rest @ ..] => {
            let held = world.held.take().unwrap_or_default();
            world.held = (rest == ["hold"]).then(Vec::new);
            for (id, write) in held {
                world.store(id, write);
            }
        }
        ["lose"] => world.lose_next = true,
        ["controller"] => world.new_controller(),
        ["balance" | "forbid" | "unclean", rest] => configure(world, words[0], rest),
        ["end", id, epoch, offset] => {
            let end = (LeaderEpoch(number(epoch)), offset.parse().unwrap());
            world.log_ends.insert(number(id), end);
        }
        ["propose", id, tp, options @ ..] => propose(world, number(id), &partition(tp), options),
        ["shutdown", id] => {
            let broker_epoch = world.brokers[&number(id)].epoch;
            let request = RequestId(world.next_request);
            world.next_request += 1;
            world.tell(Event::ControlledShutdown { request, broker: BrokerId(number(id)), broker_epoch });
        }
        ["show", tp] => show(world, &partition(tp)),
        ["tree", path] => {
            for path in world.zookeeper.below(path) {
                let text = world.zookeeper.text(&path).unwrap();
                world.say(format!("{path} {text}").trim_end().to_owned());
            }
        }
        other => panic!("unknown command {other:?}"),
    }
    world.run();
}

/// Settings of the controller take another controller.
fn configure(world: &mut World, what: &str, value: &str) {
    match (what, value) {
        ("balance", "on") => world.config.auto_rebalance = true,
        ("forbid", "deletion") => world.config.delete_topics = false,
        ("unclean", "on") => {
            let config = r#"{"version":1,"config":{"unclean.leader.election.enable":"true"}}"#;
            world.zookeeper.put("/config/brokers/<default>", config, 0);
            return;
        }
        other => panic!("unknown setting {other:?}"),
    }
    world.new_controller();
}

fn mood_of(words: &[&str]) -> Mood {
    match words {
        ["obey"] => Mood::Obey,
        ["silent"] => Mood::Silent,
        ["refuse", name] => Mood::Refuse(rejection(name)),
        ["ahead", epoch] => Mood::Ahead(LeaderEpoch(number(epoch))),
        other => panic!("no broker is in the mood {other:?}"),
    }
}

fn number(text: &str) -> i32 {
    text.parse().unwrap_or_else(|_| panic!("'{text}' is not a number"))
}

fn partition(text: &str) -> TopicPartition {
    let (topic, partition) = text.rsplit_once('-').expect("topic-partition");
    TopicPartition::new(topic, number(partition))
}

fn rejection(name: &str) -> Rejection {
    let found = Rejection::ALL.iter().find(|rejection| format!("{rejection:?}") == name);
    *found.unwrap_or_else(|| panic!("no rejection is called {name}"))
}

/// `propose 1 t-0 isr=[1,2] elr=[3] epoch=0 version=2 member=9 twice`; what is left out is as stored.
fn propose(world: &mut World, id: i32, tp: &TopicPartition, options: &[&str]) {
    let option = |name: &str| {
        options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let stored = world.zookeeper.get(&Znode::State(tp.clone()).path()).map(|node| node.data.clone());
    let state = PartitionState::decode(&stored.unwrap()).unwrap();
    let version = world.zookeeper.get(&Znode::Isr(tp.clone()).path()).map_or(-1, |node| node.version);
    let isr = ids(&option("isr").unwrap());
    let epoch_of = |member: &BrokerId| world.brokers.get(&member.0).map(|sim| sim.epoch);
    let broker_epochs = isr
        .iter()
        .map(|member| match option("member") {
            Some(epoch) if member.0 != id => Some(BrokerEpoch(i64::from(number(&epoch)))),
            _ => epoch_of(member),
        })
        .collect();
    let proposal = Proposal {
        topic: ProposalTopic::Name(tp.topic.clone()),
        partition: tp.partition,
        leader_epoch: option("epoch").map_or(state.leader_epoch, |epoch| LeaderEpoch(number(&epoch))),
        partition_epoch: PartitionEpoch(option("version").map_or(version, |version| number(&version))),
        isr,
        broker_epochs,
        elr: Some(option("elr").map_or(Vec::new(), |elr| ids(&elr))),
    };
    let broker_epoch = world.brokers[&id].epoch;
    let request = RequestId(world.next_request);
    world.next_request += 1;
    let proposals = vec![proposal];
    world.tell(Event::AlterIsr { request, broker: BrokerId(id), broker_epoch, proposals });
}

/// A partition's znodes, and what clients know of it.
fn show(world: &mut World, tp: &TopicPartition) {
    let below = world.zookeeper.below(&Znode::Partition(tp.clone()).path());
    for path in below.into_iter().skip(1) {
        let leaf = path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut text = world.zookeeper.text(&path).unwrap();
        if leaf == "state"
            && let Ok(state) = PartitionState::decode(text.as_bytes())
        {
            text = format!(
                "leader {} epoch {} hosts {:?} target {:?}{}",
                state.leader,
                state.leader_epoch,
                state.replicas,
                state.target,
                if state.recovery { " recovery" } else { "" }
            );
        }
        world.say(format!("  {leaf} {text}"));
    }
    let clients = match world.metadata.get(tp) {
        Some(metadata) => {
            let leader = metadata.leader.map_or("none".to_owned(), |leader| leader.to_string());
            format!("leader {leader} isr {:?} offline {:?}", metadata.isr, metadata.offline)
        }
        None => "nothing".to_owned(),
    };
    world.say(format!("  clients: {clients}"));
}
