//! Random histories: whatever happens, no partition has two owners, the log says what the coordinator says, and members
//! that are left alone come to rest with everything read by somebody.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// The member sends a heartbeat; with `slow` it has not given up yet what it was told to.
    Beat {
        member: usize,
        slow: bool,
    },
    /// Its heartbeat, or the answer, is lost; it does not know which.
    LostBeat {
        member: usize,
    },
    /// It begins anew, under its old id or a new one.
    Restart {
        member: usize,
    },
    Leave {
        member: usize,
        for_a_while: bool,
    },
    Topics {
        partitions: usize,
        second: usize,
    },
    Pass {
        milliseconds: i64,
    },
    Report {
        committed: bool,
    },
    FailOver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let member = 0..4usize;
    let step = prop_oneof![
        12 => (member.clone(), prop::bool::weighted(0.2)).prop_map(|(member, slow)| Step::Beat { member, slow }),
        2 => member.clone().prop_map(|member| Step::LostBeat { member }),
        1 => member.clone().prop_map(|member| Step::Restart { member }),
        1 => (member, any::<bool>()).prop_map(|(member, for_a_while)| Step::Leave { member, for_a_while }),
        1 => (1..6usize, 0..3usize).prop_map(|(partitions, second)| Step::Topics { partitions, second }),
        2 => prop_oneof![0..5_000i64, Just(15_000), Just(50_000)].prop_map(|milliseconds| Step::Pass { milliseconds }),
        8 => prop::bool::weighted(0.85).prop_map(|committed| Step::Report { committed }),
        1 => Just(Step::FailOver),
    ];
    prop::collection::vec(step, 1..150)
}

/// A member as it sees itself. Member 0 has an instance id.
struct Client {
    number: usize,
    incarnation: usize,
    epoch: i32,
    owned: Partitions,
    /// What it was last told to read.
    told: Partitions,
    waiting: Option<ReplyId>,
    /// It is not sure what the coordinator knows of it.
    says_everything: bool,
}

impl Client {
    fn id(&self) -> String {
        format!("m{}.{}", self.number, self.incarnation)
    }

    fn request(&self, epoch: i32) -> ConsumerHeartbeatRequest {
        let topics = if self.number == 1 { vec!["t"] } else { vec!["t", "u"] };
        let topics = topics.into_iter().map(Into::into).collect();
        let joins = epoch == 0;
        let everything = joins || self.says_everything;
        ConsumerHeartbeatRequest {
            instance_id: (self.number == 0).then(|| "i".into()),
            rebalance_timeout_ms: everything.then_some(20_000),
            topics: everything.then_some(topics),
            owned: Some(if joins { Partitions::default() } else { self.owned.clone() }),
            ..beat(&self.id(), epoch)
        }
    }

    fn begin_anew(&mut self) {
        self.epoch = 0;
        self.owned = Partitions::default();
        self.told = Partitions::default();
    }
}

struct History {
    world: World,
    clients: Vec<Client>,
}

impl History {
    fn new() -> Self {
        let mut world = World::new().knowing(cluster(&[("t", 1, 4), ("u", 2, 2)]));
        world.commits_at_once = false;
        let client = |number| Client {
            number,
            incarnation: 0,
            epoch: 0,
            owned: Partitions::default(),
            told: Partitions::default(),
            waiting: None,
            says_everything: true,
        };
        Self { world, clients: (0..4).map(client).collect() }
    }

    fn listen(&mut self) {
        for client in &mut self.clients {
            let Some(answer) = client.waiting.and_then(|reply| self.world.answers.get(&reply)) else {
                continue;
            };
            client.waiting = None;
            let Answer::ConsumerHeartbeat(outcome) = answer else { panic!("{answer:?}") };
            match outcome {
                Ok(answer) => {
                    client.epoch = answer.epoch.max(0);
                    client.says_everything = false;
                    if let Some(assignment) = &answer.assignment {
                        client.told = assignment.clone();
                        // What is new it reads at once; what it shall give up takes its time.
                        client.owned.extend(assignment.iter());
                    }
                }
                Err(refusal) => {
                    client.says_everything = true;
                    use zurau_common::rejection::Rejection;
                    let begins_anew = !matches!(
                        refusal.rejection,
                        Rejection::CoordinatorNotAvailable | Rejection::NotCoordinator
                    );
                    if begins_anew {
                        client.begin_anew();
                    }
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Beat { member, slow } => {
                let client = &mut self.clients[member];
                if client.waiting.is_none() {
                    if !slow {
                        client.owned = client.told.clone();
                    }
                    let request = client.request(client.epoch);
                    client.waiting = Some(start(&mut self.world, request));
                }
            }
            Step::LostBeat { member } => {
                let client = &mut self.clients[member];
                if client.waiting.is_none() {
                    let request = client.request(client.epoch);
                    start(&mut self.world, request);
                    client.says_everything = true;
                }
            }
            Step::Restart { member } => {
                let client = &mut self.clients[member];
                client.incarnation += 1;
                client.waiting = None;
                client.says_everything = true;
                client.begin_anew();
            }
            Step::Leave { member, for_a_while } => {
                let client = &mut self.clients[member];
                if client.waiting.is_none() {
                    let request = client.request(if for_a_while && member == 0 { -2 } else { -1 });
                    client.begin_anew();
                    client.says_everything = true;
                    start(&mut self.world, request);
                }
            }
            Step::Topics { partitions, second } => {
                let known =
                    |name: &str| self.world.topics.topic(name).map_or(0, |topic| topic.partitions.len());
                let mut topics = vec![("t", 1, partitions.max(known("t")))];
                if 0 < second {
                    topics.push(("u", 2, second.max(known("u"))));
                }
                self.world.topics = cluster(&topics);
            }
            Step::Pass { milliseconds } => self.world.pass(milliseconds),
            Step::Report { committed } if !self.world.pending.is_empty() => {
                self.world.report(if committed { WriteOutcome::Committed } else { refused() });
            }
            Step::Report { .. } => {}
            Step::FailOver => {
                self.world.fail_over();
                for client in &mut self.clients {
                    client.says_everything |= client.waiting.take().is_some();
                }
            }
        }
        self.listen();
    }

    fn check(&self) {
        let Some(group) = self.world.shard.groups().get("g") else { return };
        let Some(consumer) = &group.consumer else { return };
        for state in [consumer.state(), consumer.committed()] {
            let mut owners = BTreeMap::new();
            for (id, member) in &state.members {
                let current = &member.current;
                for part in current.assigned.iter().chain(current.pending_revocation.iter()) {
                    let other = owners.insert(part, id);
                    assert!(other.is_none(), "{part:?} belongs to {other:?} and {id}");
                }
                assert!(current.epoch <= state.epoch);
            }
        }
        // Who is a member, and has not left, reads nothing that the coordinator does not count as its own.
        let members = &consumer.committed().members;
        for client in &self.clients {
            if let Some(member) = members.get(client.id().as_str())
                && 0 < client.epoch
                && client.epoch == member.current.epoch
            {
                let stray = client.owned.iter().find(|(topic, partition)| !member.holds(*topic, *partition));
                assert!(stray.is_none(), "{} reads {stray:?}", client.id());
            }
        }
        // The log says the same.
        let mut again = World::new().knowing(Arc::clone(&self.world.topics));
        again.log.clone_from(&self.world.log);
        again.fail_over();
        let replayed = again.shard.groups().get("g").and_then(|group| group.consumer.as_ref());
        let replayed = replayed.map(|consumer| consumer.state().clone()).unwrap_or_default();
        assert_eq!(&replayed, &**consumer.committed());
    }

    /// Everybody keeps sending heartbeats, and every write is committed.
    fn come_to_rest(&mut self) {
        // Lost members and old incarnations are silent for good.
        for _ in 0..20 {
            for member in 0..self.clients.len() {
                self.step(&Step::Beat { member, slow: false });
                while !self.world.pending.is_empty() {
                    self.step(&Step::Report { committed: true });
                }
            }
            self.world.pass(5_000);
            while !self.world.pending.is_empty() {
                self.step(&Step::Report { committed: true });
            }
            self.listen();
        }
        self.check();
        let state = state(&self.world);
        assert_eq!(state.phase().name(), "Stable", "{}", seen(&self.world));
        assert_eq!(state.members.len(), self.clients.len(), "{}", seen(&self.world));
        let given: usize = self.clients.iter().map(|client| client.owned.len()).sum();
        let exist: i32 = state.topics.values().map(|facts| facts.partitions).sum();
        assert_eq!(i32::try_from(given).unwrap(), exist, "{}", seen(&self.world));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_partition_has_two_owners_and_the_log_says_what_the_coordinator_says(steps in steps()) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
            history.check();
        }
        history.come_to_rest();
    }
}
