//! Random histories of clients, failovers, refused writes, late markers and repeated requests against partitions that
//! keep Kafka's rules. T4: a transaction ends everywhere in the same way, and as its client was told. T5: nothing stays
//! open. T6: no two clients are ever the same producer.
//!
//! Clients do each transaction in version 1 or 2. Not among the histories: an EndTxn of version 1 that arrives in the next
//! transaction of the same epoch. Without an epoch for each transaction nobody can tell them apart (TXN-02).

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Init {
        client: usize,
        names_itself: bool,
    },
    Add {
        client: usize,
        partition: i32,
        /// Counts for the first of a transaction.
        is_version_2: bool,
    },
    Write {
        client: usize,
        partition: i32,
    },
    End {
        client: usize,
        commits: bool,
    },
    /// A request of before arrives once more.
    Again {
        index: usize,
    },
    Report {
        outcome: u8,
    },
    Mark {
        index: usize,
    },
    Pass {
        milliseconds: i64,
    },
    FailOver {
        kept: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, partition) = (0..3usize, 0..3i32);
    let step = prop_oneof![
        3 => (client.clone(), any::<bool>())
            .prop_map(|(client, names_itself)| Step::Init { client, names_itself }),
        6 => (client.clone(), partition.clone(), any::<bool>())
            .prop_map(|(client, partition, is_version_2)| Step::Add { client, partition, is_version_2 }),
        6 => (client.clone(), partition).prop_map(|(client, partition)| Step::Write { client, partition }),
        5 => (client, any::<bool>()).prop_map(|(client, commits)| Step::End { client, commits }),
        1 => (0..20usize).prop_map(|index| Step::Again { index }),
        12 => (0..8u8).prop_map(|outcome| Step::Report { outcome }),
        10 => (0..6usize).prop_map(|index| Step::Mark { index }),
        1 => prop_oneof![Just(100), Just(11_000), Just(70_000)]
            .prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => (0..3usize).prop_map(|kept| Step::FailOver { kept }),
    ];
    prop::collection::vec(step, 1..150)
}

/// A record of a transaction on a partition.
struct Written {
    producer: Producer,
    transaction: usize,
    committed: Option<bool>,
}

/// What a leader keeps.
#[derive(Default)]
struct Leader {
    written: Vec<Written>,
    /// By producer id: highest epoch, and highest epoch of a coordinator.
    epochs: HashMap<i64, (i16, i32)>,
}

#[derive(Default)]
struct Client {
    producer: Option<Producer>,
    added: BTreeSet<i32>,
    transaction: usize,
    is_version_2: bool,
    waiting: Option<(ReplyId, Waiting)>,
    /// A decision that may have been stored: the client cannot take it back.
    decided: Option<bool>,
}

#[derive(Clone, Copy)]
enum Waiting {
    Init,
    Add(i32),
    End(bool),
}

/// A marker that is on its way, perhaps from a coordinator that has been replaced.
struct Flying {
    coordinator_epoch: i32,
    marking: MarkingId,
    producer: Producer,
    commits: bool,
    ends_lower_epochs: bool,
    partition: i32,
}

#[derive(Default)]
struct Model {
    clients: [Client; 3],
    leaders: [Leader; 3],
    flying: Vec<Flying>,
    coordinator_epoch: i32,
    transactions: usize,
    /// What clients were told, by transaction.
    promised: HashMap<usize, bool>,
    granted: HashMap<(i64, i16), usize>,
    sent: Vec<Request>,
}

impl Model {
    fn act(&mut self, world: &mut World, step: &Step) {
        match *step {
            Step::Init { client, names_itself } => {
                let expected = self.clients[client].producer.filter(|_| names_itself);
                self.forget(client);
                self.send(world, client, init(expected), Waiting::Init);
            }
            Step::Add { client, partition: number, is_version_2 } => {
                if let Some(producer) = self.idle(client).filter(|_| self.clients[client].decided.is_none()) {
                    if self.clients[client].added.is_empty() {
                        self.clients[client].is_version_2 = is_version_2;
                    }
                    let (is_version_2, partitions) =
                        (self.clients[client].is_version_2, vec![partition(number)]);
                    let request = Request::Add { producer, partitions, is_version_2 };
                    self.send(world, client, request, Waiting::Add(number));
                }
            }
            Step::Write { client, partition } => self.write(world, client, partition),
            Step::End { client, commits } => {
                if let Some(producer) = self.idle(client).filter(|_| !self.clients[client].added.is_empty()) {
                    let commits = *self.clients[client].decided.get_or_insert(commits);
                    let is_version_2 = self.clients[client].is_version_2;
                    let request = EndRequest { producer, commits, is_version_2, fresh_producer_id: None };
                    self.send(world, client, Request::End(request), Waiting::End(commits));
                }
            }
            Step::Again { index } => {
                if let Some(request) = self.sent.iter().rev().nth(index).cloned() {
                    world.send("t", request);
                }
            }
            Step::Report { outcome } => world.report(match outcome {
                0 => WriteOutcome::Refused(Rejection::NotEnoughReplicas),
                1 => WriteOutcome::CommittedBelowMinimum,
                _ => WriteOutcome::Committed,
            }),
            Step::Mark { index } => {
                if index < self.flying.len() {
                    let marker = self.flying.remove(index);
                    self.mark(world, &marker);
                }
            }
            Step::Pass { milliseconds } => world.pass(milliseconds),
            Step::FailOver { kept } => {
                // The log keeps a beginning of what was not decided.
                for (_, record) in world.writes.drain(..).take(kept) {
                    world.log.push(record);
                }
                self.coordinator_epoch += 1;
                world.fail_over();
            }
        }
        self.launch(world);
        self.hear(world);
    }

    /// The producer of a client that waits for nothing.
    fn idle(&self, client: usize) -> Option<Producer> {
        let client = &self.clients[client];
        client.producer.filter(|_| client.waiting.is_none())
    }

    fn send(&mut self, world: &mut World, client: usize, request: Request, waiting: Waiting) {
        if !matches!(waiting, Waiting::End(_)) || self.clients[client].is_version_2 {
            self.sent.push(request.clone());
        }
        let reply = world.send("t", request);
        self.clients[client].waiting = Some((reply, waiting));
    }

    fn forget(&mut self, client: usize) {
        self.clients[client] = Client::default();
        self.begin(client);
    }

    fn begin(&mut self, client: usize) {
        self.transactions += 1;
        let client = &mut self.clients[client];
        client.added.clear();
        client.decided = None;
        client.transaction = self.transactions;
    }

    fn write(&mut self, world: &mut World, client: usize, number: i32) {
        let Some(producer) = self.idle(client) else { return };
        let Client { transaction, decided, added, .. } = &self.clients[client];
        if decided.is_some() || !added.contains(&number) {
            return;
        }
        let reply = world.send("t", Request::Verify { producer, partitions: vec![partition(number)] });
        if world.answers.remove(&reply) != Some(Answer::Verify(Ok(vec![None]))) {
            return;
        }
        let leader = &mut self.leaders[number as usize];
        let (epoch, _) = leader.epochs.entry(producer.id).or_insert((-1, -1));
        if *epoch <= producer.epoch {
            *epoch = producer.epoch;
            leader.written.push(Written { producer, transaction: *transaction, committed: None });
        }
    }

    /// What the coordinator wants is on its way.
    fn launch(&mut self, world: &mut World) {
        for (marking, order) in std::mem::take(&mut world.markings) {
            let Marking { producer, commits, ends_lower_epochs, partitions } = order;
            let coordinator_epoch = self.coordinator_epoch;
            self.flying.extend(partitions.into_iter().map(|id| Flying {
                coordinator_epoch,
                marking,
                producer,
                commits,
                ends_lower_epochs,
                partition: id.partition,
            }));
        }
    }

    fn mark(&mut self, world: &mut World, marker: &Flying) {
        let leader = &mut self.leaders[marker.partition as usize];
        let (epoch, coordinator_epoch) = leader.epochs.entry(marker.producer.id).or_insert((-1, -1));
        if marker.coordinator_epoch < *coordinator_epoch {
            return;
        }
        if *epoch <= marker.producer.epoch {
            (*epoch, *coordinator_epoch) = (marker.producer.epoch, marker.coordinator_epoch);
            let open = |written: &&mut Written| {
                let is_late = marker.ends_lower_epochs && marker.producer.epoch <= written.producer.epoch;
                written.producer.id == marker.producer.id && written.committed.is_none() && !is_late
            };
            for written in leader.written.iter_mut().filter(open) {
                written.committed = Some(marker.commits);
            }
        }
        if marker.coordinator_epoch == self.coordinator_epoch {
            let partition = partition(marker.partition);
            world.step(Event::Marked { marking: marker.marking, partition });
        }
    }

    /// Clients hear their answers.
    fn hear(&mut self, world: &mut World) {
        for client in 0..self.clients.len() {
            let Some((reply, waiting)) = self.clients[client].waiting else { continue };
            let Some(answer) = world.answers.remove(&reply) else { continue };
            self.clients[client].waiting = None;
            match (waiting, answer) {
                (Waiting::Init, Answer::Init(Ok(Initialized::Producer(producer)))) => {
                    let holder = *self.granted.entry((producer.id, producer.epoch)).or_insert(client);
                    assert_eq!(holder, client, "T6: {producer:?} is two clients");
                    self.clients[client].producer = Some(producer);
                }
                (Waiting::Add(partition), Answer::Done(Ok(()))) => {
                    self.clients[client].added.insert(partition);
                }
                (Waiting::End(commits), Answer::End(Ok(Initialized::Producer(producer)))) => {
                    let holder = *self.granted.entry((producer.id, producer.epoch)).or_insert(client);
                    assert_eq!(holder, client, "T6: {producer:?} is two clients");
                    self.clients[client].producer = Some(producer);
                    self.promised.insert(self.clients[client].transaction, commits);
                    self.begin(client);
                }
                (_, Answer::Done(Err(rejection)) | Answer::End(Err(rejection))) if is_for_now(rejection) => {}
                (_, Answer::Init(Err(_)) | Answer::Done(Err(_)) | Answer::End(Err(_))) => {
                    self.forget(client);
                }
                (_, other) => panic!("{other:?}"),
            }
        }
    }

    /// Everything that is under way arrives, and every timeout is over.
    fn come_to_rest(&mut self, world: &mut World) {
        for _ in 0..4 {
            world.commit_writes();
            self.launch(world);
            for marker in std::mem::take(&mut self.flying) {
                self.mark(world, &marker);
            }
            world.commit_writes();
            self.hear(world);
            world.pass(100_000);
        }
        assert!(world.writes.is_empty() && world.markings.is_empty());
    }

    fn check(&self) {
        let mut outcomes: HashMap<usize, bool> = self.promised.clone();
        for written in self.leaders.iter().flat_map(|leader| &leader.written) {
            let committed = written.committed.expect("T5: nothing stays open");
            let outcome = *outcomes.entry(written.transaction).or_insert(committed);
            assert_eq!(outcome, committed, "T4: transaction {}", written.transaction);
        }
    }
}

/// What a client asks again after.
fn is_for_now(rejection: Rejection) -> bool {
    matches!(
        rejection,
        Rejection::ConcurrentTransactions | Rejection::CoordinatorNotAvailable | Rejection::NotCoordinator
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn t4_t5_t6_transactions_are_whole_whatever_happens(steps in steps()) {
        let mut world = World::new();
        let mut model = Model::default();
        for client in 0..3 {
            model.begin(client);
        }
        for step in &steps {
            model.act(&mut world, step);
        }
        model.come_to_rest(&mut world);
        model.check();
        // What is said equals what the log holds.
        let before = world.ask("t", Request::Describe);
        world.fail_over();
        let after = world.ask("t", Request::Describe);
        assert_eq!(before, after);
    }
}
