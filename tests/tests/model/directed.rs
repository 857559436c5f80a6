//! For rules that are seldom missed by chance: one history each, led to where the rule matters. Without the rule it goes
//! wrong, with it it does not. Brokers 1, 2 and 3 have the indexes 0, 1 and 2; the first of the replicas leads first.

use zurau_broker::cores::follower::FetchedOutcome;
use zurau_broker::cores::steps::ReplicaLog;
use zurau_common::config::TruncationPath;
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::rule::Rule;
use zurau_common::zk::znode::Znode;
use zurau_controller::action::Write;
use zurau_controller::cores::Outgoing;

use crate::actions::Action;
use crate::broker::Stage;
use crate::directed_tree as tree;
use crate::director::{Director, Led};
use crate::messages::{Message, Order};
use crate::referee::Meta;
use crate::world::{Config, LAG_MS, World, partition};

/// A history of a rule.
pub(crate) struct Directed {
    pub(crate) rule: Rule,
    /// Without the rule alone nothing goes wrong, because these hold; without them too it does.
    pub(crate) covered_by: &'static [Rule],
    pub(crate) config: fn() -> Config,
    pub(crate) lead: fn(&mut Director) -> Led,
}

const fn history(rule: Rule, config: fn() -> Config, lead: fn(&mut Director) -> Led) -> Directed {
    Directed { rule, covered_by: &[], config, lead }
}

pub(crate) const DIRECTED: &[Directed] = &[
    history(Rule::ProgressPerEpoch, growing, progress_of_an_older_epoch),
    history(Rule::MemberRegistration, two_in_sync, a_member_that_restarted),
    history(Rule::NewerIsrOnly, own_path, news_of_before),
    history(Rule::ElectionFromStoredIsr, moving_own_path, tree::an_isr_that_moved),
    history(Rule::ResignInOwnEpoch, moving, tree::a_late_resignation),
    Directed {
        // A broker that keeps the numbers of the old ensemble refuses controllers with lower epochs, which then go
        // above what it knows; an epoch of its log that is ahead of `state` has the same answer in both cases (F5),
        // and all other numbers are the leader's, who is gone with the session.
        covered_by: &[Rule::OutrankedYields],
        ..history(Rule::NumbersOfSession, one_in_sync, tree::another_ensemble)
    },
    history(Rule::HostsOnlyGrow, moving, tree::a_cancelled_move),
    history(Rule::RemovedStaysOut, moving_own_path, tree::a_removed_replica_that_fetches),
    history(Rule::AnswerInItsEpoch, third_first, an_answer_of_the_last_leader),
    history(Rule::DivergenceForItsQuestion, third_first, a_divergence_twice),
    history(Rule::DivergenceForItsQuestion, third_first_asks, a_divergence_twice),
    history(Rule::TruncateBeforeFetch, third_first_asks, a_return_with_another_record),
    history(Rule::EpochsAgree, moving_asks, two_epochs_that_the_leader_lacks),
    history(Rule::PartitionVersion, one_in_sync, a_proposal_twice),
    history(Rule::EpochOfReads, one_in_sync, a_fetch_of_an_older_epoch),
    history(Rule::RegistrationOfFetch, two_in_sync, a_fetch_of_an_older_registration),
    history(Rule::LostAnswerLingers, own_path, a_lost_answer),
    history(Rule::RefusalIsRemembered, one_in_sync, tree::a_leader_without_a_disk),
    history(Rule::LeaveBeforeComplete, two_in_sync, a_crash_before_leaving),
    history(Rule::MissingElrIsRead, without_elr, a_lowered_minimum),
    history(Rule::WishAtItsVersion, moving, tree::a_newer_wish),
    history(Rule::DeleteInItsEpoch, shrinking, tree::a_late_deletion),
    history(Rule::IncarnationExists, own_path, tree::a_leader_of_the_past),
    history(Rule::StopNamesIncarnation, one_in_sync, tree::a_deletion_of_the_past),
    history(Rule::OutrankedYields, one_in_sync, tree::an_epoch_set_back),
    history(Rule::LaterIsrIsLookedAt, one_in_sync, a_departure_that_nobody_saw),
    history(Rule::RefusedOfficeIsGivenBack, one_in_sync, an_office_of_unknown_fate),
    history(Rule::ClearUpIsStored, one_in_sync, a_proposal_of_unknown_fate),
    history(Rule::OwnWriteIsKnown, one_in_sync, tree::a_topic_that_goes_at_once),
    history(Rule::RaiseIsRepeated, one_in_sync, tree::a_lost_answer_of_a_raise),
    history(Rule::UntoldIsToldLater, one_in_sync, tree::a_start_amid_an_error),
    history(Rule::EmptiedTopicIsLeft, two_in_sync, tree::an_emptied_topic),
    history(Rule::TakeOverOfStoredIsr, two_in_sync, a_take_over_after_a_departure),
];

fn coarse(min_insync: usize) -> Config {
    Config { coarse: true, ..Config::new(min_insync) }
}

fn one_in_sync() -> Config {
    coarse(1)
}

fn two_in_sync() -> Config {
    coarse(2)
}

fn own_path() -> Config {
    Config { own_isr_path: true, ..coarse(1) }
}

fn without_elr() -> Config {
    Config { drops_elr: true, ..coarse(2) }
}

fn third_first() -> Config {
    Config { replicas: [3, 1, 2].map(BrokerId).to_vec(), ..coarse(1) }
}

/// `replica.truncation.path=offsets-for-leader-epoch`.
fn asks(config: Config) -> Config {
    Config { truncation: TruncationPath::OffsetsForLeaderEpoch, ..config }
}

fn third_first_asks() -> Config {
    asks(third_first())
}

fn moving_asks() -> Config {
    let replicas = [2, 3].map(BrokerId).to_vec();
    asks(Config { replicas, wishes: vec!["[3]", "[2]", "[3,2]"], ..coarse(1) })
}

fn growing() -> Config {
    Config { wishes: vec!["[1,2]"], ..coarse(1) }
}

fn moving() -> Config {
    Config { replicas: [1, 2].map(BrokerId).to_vec(), wishes: vec!["[2,3]", "[1,2]"], ..coarse(1) }
}

fn moving_own_path() -> Config {
    Config { own_isr_path: true, ..moving() }
}

fn shrinking() -> Config {
    Config { wishes: vec!["[1,2]", "[1,2,3]"], ..coarse(1) }
}

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

/// Whether this set is stored as the ISR.
pub(crate) fn stored(world: &World, numbers: &[i32]) -> bool {
    let mut isr = Meta::read(&world.zookeeper).isr;
    isr.sort();
    isr == ids(numbers)
}

fn length(world: &World, broker: usize) -> usize {
    world.brokers[broker].disk.log.as_ref().map_or(0, |log| log.records.len())
}

pub(crate) fn leads(world: &World, broker: usize) -> bool {
    world.brokers[broker].process.as_ref().is_some_and(|process| process.leader().is_some())
}

fn leader_and_isr(message: &Message, to: i32) -> bool {
    let tells = |order: &Order| matches!(order.body, Outgoing::LeaderAndIsr { .. });
    matches!(message, Message::Order(order) if order.to.0 == to && tells(order))
}

pub(crate) fn stop(message: &Message, to: i32) -> bool {
    let stops = |order: &Order| matches!(order.body, Outgoing::StopReplicas(_));
    matches!(message, Message::Order(order) if order.to.0 == to && stops(order))
}

fn proposes(message: &Message, number: usize) -> bool {
    matches!(message, Message::AlterIsr { proposal, .. } if proposal.isr.len() == number)
}

pub(crate) fn writes_state(world: &World) -> bool {
    let is_state = |write: &Write| matches!(write, Write::Partition(change) if change.write.state.is_some());
    world
        .controllers
        .iter()
        .filter_map(|one| one.office.as_ref())
        .any(|active| active.writes.iter().any(|(_, write)| is_state(write)))
}

pub(crate) fn is_asked(broker: usize) -> impl Fn(&World, Action) -> bool {
    move |_, action| action == Action::Ask(broker)
}

impl Director {
    /// Leaves the ISR by its death.
    pub(crate) fn shrink(&mut self, broker: usize, left: &[i32]) -> Led {
        self.kill(broker)?;
        self.settle()?;
        self.pass(1_001)?;
        let left = left.to_vec();
        self.until("the ISR shrinks", move |world| stored(world, &left))
    }

    /// It starts again, and everything else goes on.
    pub(crate) fn restart(&mut self, broker: usize) -> Led {
        self.take(Action::Restart(broker))?;
        self.settle()?;
        let live = self.world.brokers[broker].is_registered();
        if live { Ok(()) } else { Err("it does not register".to_owned()) }
    }
}

/// Mutation 3: 2 has fetched in the first epoch, and is not told of the second.
fn progress_of_an_older_epoch(d: &mut Director) -> Led {
    d.hold(is_asked(2));
    d.produce()?;
    d.settle()?;
    d.release();
    d.hold_messages(|message| leader_and_isr(message, 2));
    d.hold(|_, action| action == Action::Propose(0));
    d.take(Action::Wish(0))?;
    d.settle()?;
    if d.leader() != Some(0) || length(&d.world, 2) != 1 {
        return Err("3 does not fetch in the second epoch".to_owned());
    }
    d.release();
    d.settle()
}

/// F3, mutation 9: the member that is proposed has lost what it had fetched.
fn a_member_that_restarted(d: &mut Director) -> Led {
    d.shrink(2, &[1, 2])?;
    d.produce()?;
    d.settle()?;
    d.hold_messages(|message| proposes(message, 3));
    d.restart(2)?;
    if length(&d.world, 2) != 1 {
        return Err("3 does not fetch".to_owned());
    }
    d.lose_power(2)?;
    d.hold(is_asked(2));
    d.restart(2)?;
    d.deliver("the proposal", false, |message| proposes(message, 3))?;
    d.settle()
}

/// A look at a server that lags shows the ISR of before the last change.
fn news_of_before(d: &mut Director) -> Led {
    d.shrink(1, &[1, 3])?;
    d.shrink(2, &[1])?;
    d.hold(is_asked(1));
    d.hold(is_asked(2));
    d.restart(1)?;
    d.restart(2)?;
    d.release();
    d.hold(is_asked(2));
    d.settle()?;
    d.pass(1_001)?;
    d.until("2 is in sync", |world| stored(world, &[1, 2]))?;
    d.settle()?;
    d.release();
    d.hold(|_, action| action == Action::Propose(0));
    d.settle()?;
    d.pass(1_001)?;
    d.until("3 is proposed", |world| {
        world.brokers[0].process.as_ref().is_some_and(|process| process.proposer.wanted)
    })?;
    d.take(Action::LoseProposalAnswer(0))?;
    // 3 would not be proposed again.
    d.hold(|_, action| action == Action::Look(0));
    d.kill(2)?;
    d.settle()?;
    // Before its session ended, before it joined, before 2 joined.
    d.take(Action::LookStale(0, 3))?;
    d.release();
    d.settle()
}

/// Mutation 8: the first leader of two tells where the histories part, and 3 follows the second by now.
fn an_answer_of_the_last_leader(d: &mut Director) -> Led {
    d.hold(is_asked(0));
    d.produce()?;
    d.until("2 has it", |world| length(world, 1) == 1)?;
    d.hold_messages(|message| leader_and_isr(message, 2));
    d.kill(2)?;
    d.until("1 leads", |world| leads(world, 0))?;
    let diverging = |message: &Message| matches!(message, Message::Fetched { outcome: FetchedOutcome::Diverging(_), to, .. } if to.broker.0 == 3);
    d.hold_messages(diverging);
    d.take(Action::Restart(2))?;
    d.until("3 is told", |world| world.network.values().any(|message| diverging(message)))?;
    d.settle()?;
    d.release();
    d.hold_messages(diverging);
    d.hold_messages(|message| leader_and_isr(message, 2) && is_of_first_epochs(message));
    d.kill(0)?;
    d.until("2 is elected", |world| {
        Meta::read(&world.zookeeper).state.is_some_and(|state| state.leader == BrokerId(2))
    })?;
    // The order of the second epoch had no answer.
    let controller = (0..2).find(|c| d.world.controllers[*c].office.is_some()).ok_or("no controller")?;
    d.take(Action::GiveOrderUp(controller, BrokerId(2)))?;
    d.until("2 leads", |world| leads(world, 1))?;
    d.until("3 follows and is in sync", |world| stored(world, &[2, 3]))?;
    d.settle()?;
    d.deliver("where the histories part", false, diverging)?;
    d.release();
    d.settle()
}

fn is_of_first_epochs(message: &Message) -> bool {
    let Message::Order(order) = message else { return false };
    match &order.body {
        Outgoing::LeaderAndIsr { partitions, .. } => {
            partitions.iter().all(|record| record.leader_epoch.0 < 2)
        }
        _ => false,
    }
}

/// 3 leads first, and is gone with a record that the others lack; 1 leads then.
fn lose_the_first_leader(d: &mut Director) -> Led {
    d.hold(is_asked(0));
    d.hold(is_asked(1));
    d.produce()?;
    d.settle()?;
    d.kill(2)?;
    d.release();
    d.until("1 leads", |world| leads(world, 0))?;
    d.settle()?;
    d.produce()?;
    d.settle()
}

/// KIP-101: 3 returns, with another record where 1 has one that is committed.
fn a_return_with_another_record(d: &mut Director) -> Led {
    lose_the_first_leader(d)?;
    d.restart(2)?;
    d.until("3 is in sync", |world| stored(world, &[1, 2, 3]))?;
    d.settle()
}

/// KIP-279, HW-03: 2 has records of two epochs; between them 3 led, whose record is where the first of 2 is. Nobody fetches
/// before 3 leads again.
fn two_epochs_that_the_leader_lacks(d: &mut Director) -> Led {
    let still = |_: &World, action: Action| matches!(action, Action::Ask(_) | Action::Propose(_));
    d.hold(still);
    d.produce()?;
    for (wish, leader) in [(0, 2), (1, 1), (0, 2)] {
        d.take(Action::Wish(wish))?;
        d.settle()?;
        if !leads(&d.world, leader) {
            return Err(format!("{} does not lead", leader + 1));
        }
        // The last one only comes to lead.
        if d.world.brokers[1].disk.log.as_ref().is_some_and(|log| log.records.len() < 2) {
            d.take(Action::Produce(leader))?;
        }
    }
    d.take(Action::Wish(2))?;
    d.settle()?;
    d.release();
    d.settle()?;
    d.produce()?;
    d.settle()?;
    if length(&d.world, 1) == 2 { Ok(()) } else { Err("2 does not have what 3 has".to_owned()) }
}

/// The answer that tells where the histories part comes twice, the second time after new records.
fn a_divergence_twice(d: &mut Director) -> Led {
    lose_the_first_leader(d)?;
    let diverging = |message: &Message| {
        let parts = |outcome: &FetchedOutcome| {
            matches!(outcome, FetchedOutcome::Diverging(_) | FetchedOutcome::EpochEnd(_))
        };
        matches!(message, Message::Fetched { to, outcome, .. } if to.broker.0 == 3 && parts(outcome))
    };
    d.hold_messages(diverging);
    d.restart(2)?;
    d.deliver("where the histories part", true, diverging)?;
    d.settle()?;
    d.until("3 is in sync", |world| stored(world, &[1, 2, 3]))?;
    d.deliver("the same", false, diverging)?;
    d.release();
    d.settle()
}

/// 3 has left and comes back: its return is proposed, and held.
fn propose_again(d: &mut Director) -> Led {
    d.shrink(2, &[1, 2])?;
    d.hold_messages(|message| proposes(message, 3));
    d.restart(2)?;
    if !d.world.network.values().any(|message| is_first_return(message)) {
        return Err("3 is not proposed".to_owned());
    }
    Ok(())
}

/// The proposal that [`propose_again`] leaves in the network.
fn is_first_return(message: &Message) -> bool {
    matches!(message, Message::AlterIsr { from, proposal, .. } if proposal.isr.len() == 3 && from.call == 1)
}

/// Mutation 10: a request that was given up adds 3 again, after 3 has left.
fn a_proposal_twice(d: &mut Director) -> Led {
    propose_again(d)?;
    d.release();
    d.hold_messages(is_first_return);
    d.take(Action::GiveProposalUp(0))?;
    d.until("3 is in sync", |world| stored(world, &[1, 2, 3]))?;
    d.settle()?;
    d.hold(is_asked(2));
    d.produce()?;
    d.settle()?;
    d.pass(LAG_MS + 1)?;
    d.until("3 has left", |world| stored(world, &[1, 2]))?;
    d.settle()?;
    d.deliver("the first proposal", false, is_first_return)?;
    d.settle()
}

/// KIP-320: a fetch of the first epoch comes in the third; its sender has cut its log meanwhile.
fn a_fetch_of_an_older_epoch(d: &mut Director) -> Led {
    d.hold(is_asked(1));
    let late = |message: &Message| {
        matches!(message, Message::Fetch { from, asked, .. }
            if from.broker.0 == 3 && asked.offset == 1 && asked.leader_epoch.0 == 0)
    };
    d.hold_messages(late);
    d.produce()?;
    d.until("3 asks again", |world| world.network.values().any(|message| late(message)))?;
    // From now on 2 is preferred.
    d.world.zookeeper.put(&Znode::Replicas(partition()).path(), b"[2,1,3]");
    d.settle()?;
    d.release();
    d.hold_messages(late);
    d.hold_messages(|message| leader_and_isr(message, 1));
    // So quickly that 1 stays in sync.
    d.hold(|_, action| matches!(action, Action::Read(_)));
    d.kill(0)?;
    d.restart(0)?;
    d.release();
    d.hold_messages(late);
    d.hold_messages(|message| leader_and_isr(message, 1));
    d.until("2 leads", |world| leads(world, 1))?;
    d.until("3 has cut its log", |world| length(world, 2) == 0)?;
    d.settle()?;
    d.kill(1)?;
    d.release();
    d.hold_messages(late);
    d.hold_messages(|message| leader_and_isr(message, 3));
    d.until("1 leads", |world| leads(world, 0))?;
    d.settle()?;
    d.deliver("the fetch", false, late)?;
    d.release();
    d.settle()
}

/// F3: a fetch that 3 sent before it lost its records comes after one that it sent later.
fn a_fetch_of_an_older_registration(d: &mut Director) -> Led {
    let of = |message: &Message, epoch: i64| {
        matches!(message, Message::Fetch { from, broker_epoch, .. }
            if from.broker.0 == 3 && *broker_epoch == BrokerEpoch(epoch))
    };
    let late = move |message: &Message| {
        of(message, 0) && matches!(message, Message::Fetch { asked, .. } if asked.offset == 1)
    };
    d.hold_messages(late);
    d.produce()?;
    d.until("3 asks again", move |world| world.network.values().any(|message| late(message)))?;
    d.settle()?;
    d.lose_power(2)?;
    d.hold_messages(|message| matches!(message, Message::Fetched { to, .. } if to.broker.0 == 3));
    d.restart(2)?;
    if length(&d.world, 0) != 1 || length(&d.world, 2) != 0 || !stored(&d.world, &[1, 2]) {
        return Err("3 has not lost its records".to_owned());
    }
    d.deliver("the late fetch", false, late)?;
    d.settle()?;
    d.release();
    d.settle()
}

/// L2: it was stored, the answer is lost, and a server that lags does not show it.
fn a_lost_answer(d: &mut Director) -> Led {
    d.shrink(2, &[1, 2])?;
    d.hold(|_, action| action == Action::Propose(0));
    d.restart(2)?;
    d.take(Action::LoseProposalAnswer(0))?;
    d.take(Action::LookStale(0, 1))?;
    d.release();
    d.settle()
}

/// L2: a proposal is given up, and made again in vain, because its member is gone; the first one may still be stored.
fn a_proposal_of_unknown_fate(d: &mut Director) -> Led {
    propose_again(d)?;
    d.take(Action::GiveProposalUp(0))?;
    d.settle()?;
    d.kill(2)?;
    d.settle()?;
    d.release();
    d.hold_messages(is_first_return);
    d.settle()?;
    d.produce()?;
    for _ in 0..3 {
        d.pass(1_001)?;
    }
    if d.world.referee.acknowledged.is_empty() {
        d.world.referee.violate("R12, L2: the high watermark waits for a member that nobody stored");
    }
    d.world.referee.violation.clone().map_or(Ok(()), Err)
}

/// N1: killed between the claim and the departure.
fn a_crash_before_leaving(d: &mut Director) -> Led {
    d.produce()?;
    d.settle()?;
    d.lose_power(2)?;
    d.take(Action::Restart(2))?;
    d.until("it has claimed", |world| {
        let process = world.brokers[2].process.as_ref();
        process.is_some_and(|process| matches!(process.stage, Stage::Depart { .. }))
    })?;
    d.kill(2)?;
    d.hold(is_asked(2));
    d.restart(2)?;
    d.release();
    d.settle()
}

/// N15: the answers carry no ELR, and the minimum is lowered while one is stored.
fn a_lowered_minimum(d: &mut Director) -> Led {
    d.shrink(2, &[1, 2])?;
    d.shrink(1, &[1])?;
    d.settle()?;
    if Meta::read(&d.world.zookeeper).elr != ids(&[2]) {
        return Err("2 is not eligible".to_owned());
    }
    d.take(Action::LowerMinimum)?;
    d.produce()?;
    d.settle()
}

/// N6: between election and take-over 3 leaves the ISR, because it lost what it had.
fn a_take_over_after_a_departure(d: &mut Director) -> Led {
    d.produce()?;
    d.settle()?;
    d.hold(|_, action| matches!(action, Action::TakeOver(_)));
    d.kill(0)?;
    d.until("2 is elected", |world| {
        world.brokers[1].process.as_ref().is_some_and(|process| process.lane.is_some())
    })?;
    d.settle()?;
    d.lose_power(2)?;
    d.hold(is_asked(2));
    d.restart(2)?;
    d.release();
    d.hold(is_asked(2));
    d.settle()?;
    let end = d.world.brokers[1].disk.log.as_ref().map_or(0, |log| log.log_end_offset());
    if end == 1 { Ok(()) } else { Err("2 has lost the record".to_owned()) }
}

/// 3 starts again with less than it had acknowledged, and leaves the ISR by itself. Who looks next finds it alive.
fn a_departure_that_nobody_saw(d: &mut Director) -> Led {
    d.produce()?;
    d.settle()?;
    d.hold(|_, action| matches!(action, Action::Read(_)));
    d.lose_power(2)?;
    d.restart(2)?;
    if !stored(&d.world, &[1, 2]) {
        return Err("3 has not left".to_owned());
    }
    d.release();
    // It has everything before anybody could think that it lags.
    d.hold(|_, action| action == Action::CheckIsr(0));
    d.settle()?;
    d.take(Action::Ask(2))?;
    d.settle()?;
    d.release();
    d.converge()
}

/// 2 is elected, stores that it leads, hears nothing of that, and cannot look: it refuses, and keeps its session.
fn an_office_of_unknown_fate(d: &mut Director) -> Led {
    d.hold(|_, action| matches!(action, Action::TakeOver(_)));
    d.kill(0)?;
    d.until("2 is elected", |world| {
        world.brokers[1].process.as_ref().is_some_and(|process| process.lane.is_some())
    })?;
    d.take(Action::LoseTakeOverAnswer(1))?;
    d.take(Action::GiveTakeOverUp(1))?;
    d.release();
    d.settle()?;
    d.restart(0)?;
    d.converge()
}
