//! What the controller says of itself on `/metrics`.

use zurau_common::id::{BrokerId, ControllerEpoch};

use super::scale::loaded;
use super::world::World;
use crate::action::Action;
use crate::event::{Event, Fact, Millis, WriteOutcome};
use crate::machine::Machine;
use crate::statistics::{Doing, Statistics};

/// Stores all writes but the first.
fn store(machine: &mut Machine, actions: &[Action], skip: usize) {
    let writes = actions.iter().filter_map(|action| match action {
        Action::Write { id, .. } => Some((*id, WriteOutcome::Stored { zxid: Some(30) })),
        _ => None,
    });
    machine.apply(Event::Written(writes.skip(skip).collect()), Millis(2));
}

#[test]
fn the_state_is_the_work_that_is_under_way() {
    let mut machine = loaded(2, 3);
    assert_eq!(machine.statistics().doing, Doing::Idle);
    let gone = Fact::Broker { broker: BrokerId(1), registration: None };
    let actions = machine.apply(Event::Facts(vec![gone]), Millis(1));
    assert_eq!(machine.statistics().doing, Doing::BrokerChange);
    store(&mut machine, &actions, 1);
    assert_eq!(machine.statistics().doing, Doing::BrokerChange, "one election is not stored yet");
    let mut machine = loaded(2, 3);
    let delete = Fact::DeleteTopic { topic: "topic-0".into(), requested: true };
    machine.apply(Event::Facts(vec![delete]), Millis(1));
    let Statistics { doing, topics_to_delete, replicas_to_delete, .. } = machine.statistics();
    assert_eq!((doing, topics_to_delete, replicas_to_delete), (Doing::TopicDeletion, 1, 9));
    let new = Machine::new(World::new().config, ControllerEpoch(1), 0, Millis(0));
    assert_eq!(new.statistics().doing, Doing::ControllerChange);
}

#[test]
fn an_election_that_is_stored_is_no_work_any_more() {
    let mut machine = loaded(2, 3);
    let gone = Fact::Broker { broker: BrokerId(1), registration: None };
    let actions = machine.apply(Event::Facts(vec![gone]), Millis(1));
    store(&mut machine, &actions, 0);
    assert_eq!(machine.statistics().doing, Doing::Idle);
}

#[test]
fn a_deletion_that_is_not_allowed_is_told() {
    let mut machine = loaded(2, 3);
    machine.config.delete_topics = false;
    let delete = Fact::DeleteTopic { topic: "topic-0".into(), requested: true };
    machine.apply(Event::Facts(vec![delete]), Millis(1));
    let found = machine.statistics();
    assert_eq!((found.topics_to_delete, found.replicas_to_delete), (0, 0));
    assert_eq!((found.topics_ineligible_to_delete, found.replicas_ineligible_to_delete), (1, 9));
}
