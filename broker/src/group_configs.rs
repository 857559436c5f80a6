//! The configurations of single groups as they are in force: what `/config/groups` sets over the broker's defaults.
//! `topic_configs` follows the znodes, coordinators read what holds now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use tracing::{info, warn};
use zurau_common::config::{BrokerConfig, GroupConfig, validate_group_config};

use crate::groups::GroupId;

type Entries = BTreeMap<String, String>;

/// The groups that set something. Any other group has the broker's defaults.
pub(crate) type ConfigsOfGroups = HashMap<GroupId, GroupConfig>;

#[derive(Debug)]
pub(crate) struct GroupConfigs {
    /// As the process was started: no key that counts for groups changes while it runs.
    broker: BrokerConfig,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    overrides: HashMap<GroupId, Arc<Entries>>,
    in_force: Arc<ConfigsOfGroups>,
}

impl GroupConfigs {
    pub(crate) fn new(broker: BrokerConfig) -> Self {
        Self { broker, state: RwLock::default() }
    }

    /// What holds now.
    pub(crate) fn in_force(&self) -> Arc<ConfigsOfGroups> {
        Arc::clone(&self.state.read().in_force)
    }

    /// What the group itself sets, usable or not.
    pub(crate) fn overrides(&self, group: &str) -> Arc<Entries> {
        self.state.read().overrides.get(group).cloned().unwrap_or_default()
    }

    /// The groups that set something.
    pub(crate) fn known(&self) -> Vec<GroupId> {
        self.state.read().overrides.keys().cloned().collect()
    }

    /// Takes over what a group sets; nothing takes it back to the defaults.
    pub(crate) fn set(&self, group: &GroupId, overrides: Entries) {
        let mut state = self.state.write();
        if state.overrides.get(group).is_none_or(|before| before.is_empty()) && overrides.is_empty()
            || state.overrides.get(group).is_some_and(|before| **before == overrides)
        {
            return;
        }
        let in_force = Arc::make_mut(&mut state.in_force);
        if overrides.is_empty() {
            in_force.remove(group);
            state.overrides.remove(group);
        } else {
            in_force.insert(Arc::clone(group), self.resolve(group, &overrides));
            state.overrides.insert(Arc::clone(group), Arc::new(overrides));
        }
        info!(group = &**group, "group configuration changed");
    }

    /// Entries that cannot be used are left out one by one; those that contradict each other all.
    fn resolve(&self, group: &GroupId, overrides: &Entries) -> GroupConfig {
        let usable = |(key, value): &(&String, &String)| match validate_group_config(&self.broker, key, value)
        {
            Ok(()) => true,
            Err(error) => {
                warn!(group = &**group, %error, "entry of the group's configuration ignored");
                false
            }
        };
        let usable: Entries =
            overrides.iter().filter(usable).map(|(key, value)| (key.clone(), value.clone())).collect();
        GroupConfig::resolve(&self.broker, &usable).unwrap_or_else(|error| {
            warn!(group = &**group, %error, "the group's configuration contradicts itself; the defaults are in force");
            GroupConfig::resolve(&self.broker, &Entries::new()).expect("the broker started with its defaults")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_force(pairs: &[(&str, &str)]) -> (i32, i32) {
        let configs = GroupConfigs::new(BrokerConfig::from_pairs([("broker.id", "1")]).unwrap());
        let entries = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        configs.set(&"g".into(), entries);
        assert_eq!(configs.overrides("g").len(), pairs.len());
        let config = configs.in_force()["g"];
        (config.consumer_heartbeat_interval_ms, config.consumer_session_timeout_ms)
    }

    #[test]
    fn what_cannot_be_used_is_left_out_alone() {
        let (heartbeat, session) = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms");
        assert_eq!(in_force(&[(session, "50000"), (heartbeat, "6000")]), (6_000, 50_000));
        assert_eq!(in_force(&[(session, "soon"), (heartbeat, "6000")]), (6_000, 45_000));
        assert_eq!(in_force(&[(session, "1"), (heartbeat, "6000"), ("retention.ms", "5")]), (6_000, 45_000));
    }

    #[test]
    fn a_group_goes_back_to_the_defaults() {
        let configs = GroupConfigs::new(BrokerConfig::from_pairs([("broker.id", "1")]).unwrap());
        let group = GroupId::from("g");
        let before = configs.in_force();
        configs.set(&group, [("consumer.session.timeout.ms".to_owned(), "50000".to_owned())].into());
        assert_eq!(configs.known(), [Arc::clone(&group)]);
        configs.set(&group, Entries::new());
        assert!(configs.in_force().is_empty() && configs.known().is_empty());
        assert!(before.is_empty(), "what a coordinator holds does not change under it");
    }
}
