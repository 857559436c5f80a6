//! G1: whatever happens, what the coordinator says equals the replay of its log. G2: of one generation only one
//! assignment is ever given out, also across a change of the coordinator.

use std::collections::HashMap;

use proptest::prelude::*;
use zurau_common::rejection::Rejection;

use super::super::group::{Group, GroupState};
use super::super::records::StoredGroup;
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Join { member: usize, instance: Option<usize> },
    Sync { member: usize, stale: bool },
    Beat { member: usize },
    Leave { member: usize },
    Commit { member: Option<usize>, offset: i64 },
    CommitInTransaction { producer: i64, member: Option<usize>, offset: i64 },
    EndTransaction { producer: i64, commits: bool },
    Delete,
    DeleteOffset,
    TopicDeleted,
    Pass { milliseconds: i64 },
    Report { outcome: u8 },
    FailOver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let member = 0..5usize;
    let step = prop_oneof![
        5 => (member.clone(), prop::option::of(0..2usize))
            .prop_map(|(member, instance)| Step::Join { member, instance }),
        5 => (member.clone(), prop::bool::weighted(0.1))
            .prop_map(|(member, stale)| Step::Sync { member, stale }),
        2 => member.clone().prop_map(|member| Step::Beat { member }),
        1 => member.clone().prop_map(|member| Step::Leave { member }),
        4 => (prop::option::of(member), 0..100i64)
            .prop_map(|(member, offset)| Step::Commit { member, offset }),
        3 => (0..3i64, prop::option::weighted(0.3, 0..5usize), 0..100i64).prop_map(
            |(producer, member, offset)| Step::CommitInTransaction { producer, member, offset }
        ),
        3 => (0..3i64, any::<bool>())
            .prop_map(|(producer, commits)| Step::EndTransaction { producer, commits }),
        1 => Just(Step::Delete),
        1 => Just(Step::DeleteOffset),
        1 => Just(Step::TopicDeleted),
        3 => prop_oneof![Just(0), 0..4_000i64, Just(30_000), Just(8 * DAY_MS)]
            .prop_map(|milliseconds| Step::Pass { milliseconds }),
        8 => (0..8u8).prop_map(|outcome| Step::Report { outcome }),
        1 => Just(Step::FailOver),
    ];
    prop::collection::vec(step, 1..120)
}

/// Ids that members learned from their answers, and the generation each believes in.
#[derive(Default)]
struct Clients {
    ids: HashMap<usize, String>,
    generations: HashMap<usize, i32>,
    waiting: Vec<(usize, ReplyId)>,
    /// Generation that was named, and who waits for its assignment.
    syncing: Vec<(i32, ReplyId)>,
    /// What was given out, by generation.
    assignments: HashMap<i32, String>,
}

impl Clients {
    fn listen(&mut self, world: &World) {
        self.waiting.retain(|(member, reply)| match world.answers.get(reply) {
            Some(Answer::Join(answer)) => {
                self.ids.insert(*member, answer.member_id.to_string());
                self.generations.insert(*member, answer.generation);
                false
            }
            Some(_) => false,
            None => true,
        });
    }

    /// The leader gives everyone the same text, different each time it assigns.
    fn check_assignments(&mut self, world: &World) {
        self.syncing.retain(|(generation, reply)| match world.answers.get(reply) {
            Some(Answer::Sync(Ok(synced))) if !synced.assignment.is_empty() => {
                let given = text(&synced.assignment);
                let first = self.assignments.entry(*generation).or_insert_with(|| given.clone());
                assert_eq!(*first, given, "two assignments of generation {generation}");
                false
            }
            Some(_) => false,
            None => true,
        });
        if !world.shard.groups().contains_key("g") {
            // Its successor counts its generations anew.
            self.assignments.clear();
            self.syncing.clear();
        }
    }

    fn id(&self, member: usize) -> String {
        self.ids.get(&member).cloned().unwrap_or_default()
    }

    fn named(&self, member: Option<usize>) -> (String, i32) {
        member.map_or((String::new(), -1), |member| (self.id(member), self.generation(member)))
    }

    fn generation(&self, member: usize) -> i32 {
        self.generations.get(&member).copied().unwrap_or(-1)
    }
}

fn act(world: &mut World, clients: &mut Clients, step: &Step) {
    match *step {
        Step::Join { member, instance } => {
            let instance = instance.map(|index| ["i0", "i1"][index]);
            let reply = world.join(&Joiner { instance, ..joiner(&clients.id(member)) });
            clients.waiting.push((member, reply));
        }
        Step::Sync { member, stale } => {
            let (id, generation) = (clients.id(member), clients.generation(member) - i32::from(stale));
            let assignment = format!("{generation}-{}", world.last_reply);
            let all: Vec<String> = clients.ids.values().cloned().collect();
            let all: Vec<(&str, &str)> = all.iter().map(|id| (id.as_str(), assignment.as_str())).collect();
            let reply = world.sync(&id, generation, &all);
            clients.syncing.push((generation, reply));
        }
        Step::Beat { member } => {
            world.beat(&clients.id(member), clients.generation(member));
        }
        Step::Leave { member } => {
            world.leave(&clients.id(member));
        }
        Step::Commit { member, offset } => {
            let (id, generation) = clients.named(member);
            world.commit(&id, generation, offset);
        }
        Step::CommitInTransaction { producer, member, offset } => {
            let (id, generation) = clients.named(member);
            world.ask(commit_in(producer, &id, generation, offset));
        }
        Step::EndTransaction { producer, commits } => {
            world.end_transaction(producer, commits);
        }
        Step::Delete => {
            world.delete();
        }
        Step::DeleteOffset => {
            world.delete_offset("t");
        }
        Step::TopicDeleted => world.run(Event::TopicsDeleted(vec!["t".into()])),
        Step::Pass { milliseconds } => world.pass(milliseconds),
        Step::Report { outcome } => {
            if !world.pending.is_empty() {
                world.report(match outcome {
                    0 => WriteOutcome::Refused(Rejection::NotEnoughReplicas),
                    1 => WriteOutcome::CommittedBelowMinimum,
                    _ => WriteOutcome::Committed,
                });
            }
        }
        Step::FailOver => world.fail_over(),
    }
}

fn stored(group: &Group) -> StoredGroup {
    match group.record(|_, member| member.assignment.clone()) {
        GroupRecord::Group { value: Some(value), .. } => StoredGroup { state_since_ms: None, ..value },
        other => panic!("{other:?}"),
    }
}

/// What the coordinator would answer, against a fresh one that has read the log.
fn check_replay(world: &World) {
    let mut fresh = Shard::new(Arc::clone(&world.settings));
    replay_into(&mut fresh, &world.log);
    let nothing = Group::new("g".into());
    let live = world.shard.groups().get("g").unwrap_or(&nothing);
    let read = fresh.groups().get("g").unwrap_or(&nothing);
    let offsets = |group: &Group| {
        let mut all: Vec<String> = group
            .offsets
            .iter()
            .map(|(topic, partition, value)| format!("{topic}-{partition} {value:?}"))
            .collect();
        all.sort();
        all
    };
    assert_eq!(offsets(live), offsets(read), "offsets");
    if world.pending.is_empty() {
        let unstable = |group: &Group| {
            let topics = Some(vec![("t".into(), vec![0])]);
            group.fetch(&FetchRequest { topics, require_stable: true, member: None })[0].1[0].rejection
        };
        assert_eq!(unstable(live), unstable(read), "offsets of open transactions");
    }
    assert!(read.generation <= live.generation || live.is(GroupState::Empty), "generations go up");
    let settled = world.pending.is_empty()
        && (live.is(GroupState::Stable) || live.is(GroupState::Empty))
        && !world.shard.has_unstored_groups();
    if settled {
        assert_eq!(stored(live), stored(read), "group in state {:?}", live.state);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_said_equals_the_replay_of_the_log(steps in steps()) {
        let mut world = World::with(GroupSettings { group_size_max: 4, ..settings() });
        world.commits_at_once = false;
        let mut clients = Clients::default();
        for step in &steps {
            act(&mut world, &mut clients, step);
            clients.listen(&world);
            clients.check_assignments(&world);
            check_replay(&world);
        }
        // Whoever waits gets an answer in the end.
        while !world.pending.is_empty() {
            world.report(WriteOutcome::Committed);
        }
        for producer in 0..3 {
            world.end_transaction(producer, true);
        }
        world.commits_at_once = true;
        world.pass(3_600_000);
        let unanswered: Vec<ReplyId> = (1..=world.last_reply)
            .map(ReplyId)
            .filter(|reply| !world.answers.contains_key(reply))
            .collect();
        let lost_in_fail_over = steps.iter().any(|step| matches!(step, Step::FailOver));
        prop_assert!(lost_in_fail_over || unanswered.is_empty(), "{unanswered:?}");
    }
}
