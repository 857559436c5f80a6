//! Directed histories about the tree: moves, incarnations, ensembles, elections.

use zurau_common::id::BrokerId;
use zurau_common::zk::znode::Znode;

use crate::actions::Action;
use crate::directed::{is_asked, leads, stop, stored, writes_state};
use crate::director::{Director, Led};
use crate::messages::Message;
use crate::referee::Meta;
use crate::tampering::Tampering;
use crate::world::{LAG_MS, partition};

/// F1: the move is completed, as decided when the target was in sync; it is so no longer.
pub(crate) fn an_isr_that_moved(d: &mut Director) -> Led {
    d.hold(|world, action| matches!(action, Action::Store(_)) && stored(world, &[2, 3]));
    d.take(Action::Wish(0))?;
    d.until("the move is to be completed", |world| stored(world, &[2, 3]) && writes_state(world))?;
    d.hold(|_, action| matches!(action, Action::Store(_) | Action::Read(_)));
    d.hold(is_asked(2));
    d.produce()?;
    d.settle()?;
    d.pass(LAG_MS + 1)?;
    d.until("1 is back, and 3 is not in sync", |world| stored(world, &[1, 2]))?;
    d.release();
    d.settle()
}

/// F6: it gives up an office that another holds by now.
pub(crate) fn a_late_resignation(d: &mut Director) -> Led {
    d.hold(|_, action| matches!(action, Action::WriteResignation(_)));
    d.take(Action::FailLog(0))?;
    d.take(Action::Wish(0))?;
    d.until("2 leads", |world| leads(world, 1))?;
    d.take(Action::WriteResignation(0))?;
    d.release();
    d.settle()
}

/// L11: another ensemble, with a copy of the tree in which the controllers count from an older epoch.
pub(crate) fn another_ensemble(d: &mut Director) -> Led {
    for _ in 0..3 {
        d.take(Action::Depose)?;
        d.settle()?;
    }
    d.take(Action::Tamper(Tampering::CopyTree))?;
    d.settle()?;
    d.converge()
}

/// N14: somebody deletes the controller epoch, and no `state` names the one that the brokers know.
pub(crate) fn an_epoch_set_back(d: &mut Director) -> Led {
    for _ in 0..3 {
        d.take(Action::Depose)?;
        d.settle()?;
    }
    d.take(Action::Tamper(Tampering::LowerControllerEpoch))?;
    d.settle()?;
    d.kill(0)?;
    d.settle()?;
    d.take(Action::Restart(0))?;
    d.converge()
}

/// L2, N14: the answer of the write by which a new controller goes above the tree is lost.
pub(crate) fn a_lost_answer_of_a_raise(d: &mut Director) -> Led {
    d.hold(|_, action| matches!(action, Action::Store(_)));
    d.take(Action::Tamper(Tampering::LowerControllerEpoch))?;
    d.settle()?;
    let raises =
        |c: &usize| d.world.controllers[*c].office.as_ref().is_some_and(|one| !one.writes.is_empty());
    let controller = (0..2).find(raises).ok_or("nobody goes above the tree")?;
    d.take(Action::LoseOutcome(controller))?;
    d.release();
    d.settle()?;
    d.kill(0)?;
    d.take(Action::Restart(0))?;
    d.converge()
}

/// N3: it registers while the topic has no id, and its full order cannot name the partition.
pub(crate) fn a_start_amid_an_error(d: &mut Director) -> Led {
    d.kill(2)?;
    d.settle()?;
    d.hold(|world, action| {
        let started = world.brokers[2].process.is_some();
        matches!(action, Action::Store(_)) || matches!(action, Action::Read(_)) && !started
    });
    d.take(Action::Tamper(Tampering::EmptyTopic))?;
    d.restart(2)?;
    d.release();
    d.converge()
}

/// N3, M8: it registers without its records while the topic's node is empty.
pub(crate) fn an_emptied_topic(d: &mut Director) -> Led {
    d.produce()?;
    d.settle()?;
    d.lose_power(2)?;
    d.hold(is_asked(2));
    d.hold(|_, action| matches!(action, Action::Read(_)));
    d.take(Action::Tamper(Tampering::EmptyTopic))?;
    d.restart(2)?;
    d.release();
    d.settle()?;
    d.converge()
}

/// N8: the move is given up when the new host is in sync already.
pub(crate) fn a_cancelled_move(d: &mut Director) -> Led {
    d.hold(|world, action| matches!(action, Action::Store(_)) && stored(world, &[1, 2, 3]));
    d.take(Action::Wish(0))?;
    d.until("3 is in sync", |world| stored(world, &[1, 2, 3]))?;
    d.take(Action::CancelWish)?;
    d.release();
    d.settle()?;
    d.converge()
}

/// N9: the wish changes between the decision to complete the move and its write.
pub(crate) fn a_newer_wish(d: &mut Director) -> Led {
    d.hold(|_, action| matches!(action, Action::Store(_)));
    d.take(Action::Wish(1))?;
    d.until("the move is to be completed", writes_state)?;
    d.take(Action::Wish(0))?;
    d.release();
    d.settle()?;
    d.converge()
}

/// N5: the deletion of the copy that 3 had comes again, when it has another.
pub(crate) fn a_late_deletion(d: &mut Director) -> Led {
    d.hold_messages(|message| stop(message, 3));
    d.take(Action::Wish(0))?;
    d.settle()?;
    d.deliver("the deletion", true, |message| stop(message, 3))?;
    d.settle()?;
    d.take(Action::Wish(1))?;
    d.until("3 is in sync", |world| stored(world, &[1, 2, 3]))?;
    d.settle()?;
    d.deliver("the deletion", false, |message| stop(message, 3))?;
    d.settle()
}

/// F4: the leader of the last incarnation stores its ISR, whose versions are those of the next one.
pub(crate) fn a_leader_of_the_past(d: &mut Director) -> Led {
    d.hold(|_, action| action == Action::Propose(0));
    d.kill(2)?;
    d.settle()?;
    d.pass(1_001)?;
    d.until("3 shall leave", |world| {
        world.brokers[0].process.as_ref().is_some_and(|process| process.proposer.wanted)
    })?;
    d.hold_messages(|message| matches!(message, Message::Order(order) if order.to.0 == 1));
    d.take(Action::Tamper(Tampering::RecreateTopic))?;
    d.world.zookeeper.put(&Znode::Replicas(partition()).path(), b"[2,1,3]");
    d.until("2 leads the next one", |world| stored(world, &[1, 2]) && leads(world, 1))?;
    d.take(Action::Propose(0))?;
    d.release();
    d.settle()
}

/// F9: the deletion of the last incarnation comes again, when 3 is in sync in the next one.
pub(crate) fn a_deletion_of_the_past(d: &mut Director) -> Led {
    d.hold_messages(|message| stop(message, 3));
    d.take(Action::Tamper(Tampering::RecreateTopic))?;
    d.settle()?;
    d.deliver("the deletion", true, |message| stop(message, 3))?;
    d.until("3 is in sync", |world| {
        let meta = Meta::read(&world.zookeeper);
        let log = world.brokers[2].disk.log.as_ref();
        meta.isr.contains(&BrokerId(3)) && log.is_some_and(|log| Some(log.topic_id) == meta.topic_id)
    })?;
    d.settle()?;
    d.deliver("the deletion", false, |message| stop(message, 3))?;
    d.settle()
}

/// L4: whoever cannot lead refuses each epoch.
pub(crate) fn a_leader_without_a_disk(d: &mut Director) -> Led {
    d.take(Action::FailLog(0))?;
    d.settle()?;
    d.until("2 leads", |world| leads(world, 1))
}

/// N11: the replica that left fetches on, and holds everything.
pub(crate) fn a_removed_replica_that_fetches(d: &mut Director) -> Led {
    d.hold(|world, action| matches!(action, Action::Store(_)) && stored(world, &[2, 3]));
    d.take(Action::Wish(0))?;
    d.until("1 is out", |world| stored(world, &[2, 3]))?;
    d.produce()?;
    d.settle()?;
    d.pass(1_001)?;
    d.release();
    d.settle()?;
    d.converge()
}

/// L1, F4: the topic is removed and made again twice; the second time when the controller has stored its first `state` and
/// has not read it yet.
pub(crate) fn a_topic_that_goes_at_once(d: &mut Director) -> Led {
    d.hold(|world, action| matches!(action, Action::Store(_)) && writes_state(world));
    d.take(Action::Tamper(Tampering::RecreateTopic))?;
    d.settle()?;
    let decides =
        |c: &usize| d.world.controllers[*c].office.as_ref().is_some_and(|one| !one.writes.is_empty());
    let controller = (0..2).find(decides).ok_or("nobody begins the partition")?;
    d.hold(|_, action| matches!(action, Action::Read(_) | Action::TakeOver(_)));
    d.take(Action::Store(controller))?;
    d.settle()?;
    d.take(Action::Tamper(Tampering::RecreateTopic))?;
    d.release();
    d.settle()?;
    d.converge()
}
