//! Stories about groups of the consumer protocol. Topic `t` has id 1, `u` 2, `a-1` 3; `1-0` is partition 0 of `t`.

mod assignors;
mod histories;
mod kinds;
mod statics;
mod stored;
mod stories;

use std::sync::Arc;

use uuid::Uuid;
use zurau_common::id::TopicId;

use super::{ConsumerHeartbeatRequest, ConsumerState, Partitions};
use crate::groups::outbox::WriteOutcome;
use crate::groups::request::{Answer, ReplyId, Request};
use crate::groups::tests::{World, settings};
use crate::metadata::MetadataImage;
use crate::metadata::tests::{id, image, topic};

/// Topics with so many partitions.
fn cluster(topics: &[(&str, u128, usize)]) -> Arc<MetadataImage> {
    Arc::new(image(
        topics
            .iter()
            .map(|(name, number, partitions)| topic(name, id(*number), &vec![1; *partitions]))
            .collect(),
    ))
}

fn world(partitions: usize) -> World {
    World::new().knowing(cluster(&[("t", 1, partitions)]))
}

fn parts(partitions: &[(u128, i32)]) -> Partitions {
    partitions.iter().map(|(topic, partition)| (TopicId(Uuid::from_u128(*topic)), *partition)).collect()
}

/// A heartbeat that says nothing but that the member lives.
fn beat(member: &str, epoch: i32) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest {
        member_id: member.into(),
        epoch,
        instance_id: None,
        rack_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        rebalance_timeout_ms: None,
        topics: None,
        regex: None,
        assignor: None,
        owned: None,
        fresh_id: None,
    }
}

/// A heartbeat that says everything.
fn full(member: &str, epoch: i32, owned: &[(u128, i32)]) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest {
        rebalance_timeout_ms: Some(60_000),
        topics: Some(["t".into()].into()),
        owned: Some(parts(owned)),
        ..beat(member, epoch)
    }
}

fn join(member: &str) -> ConsumerHeartbeatRequest {
    full(member, 0, &[])
}

/// A heartbeat that reports what the member owns.
fn owns(member: &str, epoch: i32, owned: &[(u128, i32)]) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { owned: Some(parts(owned)), ..beat(member, epoch) }
}

fn ask(world: &mut World, request: ConsumerHeartbeatRequest) -> String {
    world.asked(Request::ConsumerHeartbeat(request))
}

fn start(world: &mut World, request: ConsumerHeartbeatRequest) -> ReplyId {
    world.ask(Request::ConsumerHeartbeat(request))
}

fn state(world: &World) -> &ConsumerState {
    world.shard.groups()["g"].consumer.as_ref().expect("it is a consumer group").state()
}

/// Each member's partitions, as the coordinator sees them, and its epoch.
fn seen(world: &World) -> String {
    let show = |partitions: &Partitions| {
        let each = partitions.iter().map(|(topic, partition)| format!("{}-{partition}", topic.0.as_u128()));
        each.collect::<Vec<_>>().join(" ")
    };
    let state = state(world);
    let members = state.members.iter().map(|(id, member)| {
        let current = &member.current;
        let pending = show(&current.pending_revocation);
        let pending = if pending.is_empty() { pending } else { format!(" -{pending}") };
        format!(" {id}:e{}[{}{pending}]", current.epoch, show(&current.assigned))
    });
    format!("{} e{}{}", state.phase().name(), state.epoch, members.collect::<String>())
}

/// A member of a group with the topic `t`, that does at once what it is told.
struct Member {
    name: String,
    epoch: i32,
    owned: Partitions,
}

impl Member {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), epoch: 0, owned: Partitions::default() }
    }

    /// What it sends next.
    fn request(&self) -> ConsumerHeartbeatRequest {
        let owned = if self.epoch == 0 { Partitions::default() } else { self.owned.clone() };
        ConsumerHeartbeatRequest { owned: Some(owned), ..full(&self.name, self.epoch, &[]) }
    }

    fn take(&mut self, answer: &Answer) {
        let Answer::ConsumerHeartbeat(outcome) = answer else { panic!("{answer:?}") };
        match outcome {
            Ok(answer) => {
                self.epoch = answer.epoch;
                if let Some(assignment) = &answer.assignment {
                    self.owned = assignment.clone();
                }
            }
            Err(_) => *self = Self::new(&self.name),
        }
    }

    fn beat(&mut self, world: &mut World) {
        let reply = world.ask(Request::ConsumerHeartbeat(self.request()));
        let answer = world.answers[&reply].clone();
        self.take(&answer);
    }
}

/// Members that have joined and are reconciled, m0, m1, ….
fn stable(world: &mut World, count: usize) -> Vec<Member> {
    let mut members: Vec<Member> = (0..count).map(|number| Member::new(&format!("m{number}"))).collect();
    for _ in 0..4 {
        members.iter_mut().for_each(|member| member.beat(world));
    }
    assert_eq!(state(world).phase().name(), "Stable", "{}", seen(world));
    members
}

fn refused() -> WriteOutcome {
    WriteOutcome::Refused(zurau_common::rejection::Rejection::NotEnoughReplicas)
}
