//! The configuration of every topic as it is in force: the broker's defaults, what `/config/brokers` changes of them,
//! what `/config/topics` sets. Follows the znodes, also those of `/config/groups` for `group_configs`; one that cannot be
//! used is reported and changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tracing::{info, warn};
use zurau_common::config::{BrokerConfig, TopicConfig, validate_topic_config};
use zurau_common::id::TopicName;
use zurau_common::zk::config::decode_config;
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::watch::TreeEvent;
use zurau_common::zk::znode::{
    BROKER_CONFIGS, DEFAULT_ENTITY, GROUP_CONFIGS, TOPIC_CONFIGS, Znode, group_in_path,
};

use crate::group_configs::GroupConfigs;

pub(crate) const READ_RETRY_PAUSE: Duration = Duration::from_millis(100);

type Entries = BTreeMap<String, String>;

/// All topics' configurations, shared by all requests.
#[derive(Debug)]
pub(crate) struct TopicConfigs {
    state: RwLock<State>,
    pub(crate) groups: Arc<GroupConfigs>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// As the process was started.
    started_with: BrokerConfig,
    all_brokers: Entries,
    this_broker: Entries,
    /// `started_with` under the two above.
    broker: Arc<BrokerConfig>,
    default: Arc<TopicConfig>,
    topics: HashMap<TopicName, Topic>,
}

#[derive(Debug, Clone)]
struct Topic {
    overrides: Arc<Entries>,
    config: Arc<TopicConfig>,
}

/// Whose configuration changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Changed {
    /// The broker's defaults, and with them every topic.
    Everything,
    Topic(TopicName),
}

impl TopicConfigs {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let default = Arc::new(config.topic_defaults.clone());
        let groups = Arc::new(GroupConfigs::new(config.clone()));
        let state = State {
            broker: Arc::new(config.clone()),
            started_with: config,
            all_brokers: Entries::new(),
            this_broker: Entries::new(),
            default,
            topics: HashMap::new(),
        };
        Self { state: RwLock::new(state), groups, changes: watch::Sender::new(0) }
    }

    /// The configuration in force of a topic, whether it sets anything or not.
    pub(crate) fn get(&self, topic: &str) -> Arc<TopicConfig> {
        let state = self.state.read();
        state.topics.get(topic).map_or_else(|| Arc::clone(&state.default), |topic| Arc::clone(&topic.config))
    }

    /// What the topic itself sets.
    pub(crate) fn overrides(&self, topic: &str) -> Arc<Entries> {
        self.state.read().topics.get(topic).map(|topic| Arc::clone(&topic.overrides)).unwrap_or_default()
    }

    /// The broker's configuration with what was changed while it runs.
    pub(crate) fn broker_config(&self) -> Arc<BrokerConfig> {
        Arc::clone(&self.state.read().broker)
    }

    /// What `/config/brokers` sets, for all brokers and for this one.
    pub(crate) fn broker_overrides(&self) -> (Entries, Entries) {
        let state = self.state.read();
        (state.all_brokers.clone(), state.this_broker.clone())
    }

    /// Follows `/config` until the session ends. `changed` is told after each change that came into force.
    pub(crate) async fn follow(&self, zookeeper: ZooKeeper, changed: impl Fn(&Changed)) {
        let mut watch = zookeeper.watch_trees(&["/config"]);
        while let Some(event) = watch.next().await {
            let known = if event == TreeEvent::Reset { self.known_znodes() } else { BTreeSet::new() };
            let mut read = read_event(&zookeeper, &event, known.clone()).await;
            while let Err(error) = &read {
                if matches!(error, ReadError::SessionEnded) {
                    return;
                }
                // The paths of the event would be forgotten: try until it works or the session ends.
                warn!(%error, "configurations cannot be read; trying again");
                tokio::time::sleep(READ_RETRY_PAUSE).await;
                read = read_event(&zookeeper, &event, known.clone()).await;
            }
            let mut changes = BTreeSet::new();
            for (znode, data) in read.into_iter().flatten() {
                changes.extend(self.apply(&znode, data.as_deref()));
            }
            for change in &changes {
                changed(change);
            }
        }
    }

    fn known_znodes(&self) -> BTreeSet<Znode> {
        let state = self.state.read();
        let own = Znode::BrokerConfig(state.started_with.broker_id.to_string());
        let brokers = [own, Znode::BrokerConfig(DEFAULT_ENTITY.to_owned())];
        let topics = state.topics.keys().map(|topic| Znode::TopicConfig(topic.clone()));
        let groups = self.groups.known().into_iter().map(Znode::GroupConfig);
        topics.chain(groups).chain(brokers).collect()
    }

    /// Takes over what a znode holds; `None` when it does not exist.
    pub(crate) fn apply(&self, znode: &Znode, data: Option<&[u8]>) -> Option<Changed> {
        let entries = match data.map(decode_config).transpose() {
            Ok(entries) => entries.unwrap_or_default(),
            Err(error) => {
                warn!(%znode, %error, "configuration ignored; what was in force stays in force");
                return None;
            }
        };
        let mut state = self.state.write();
        let changed = match znode {
            Znode::TopicConfig(topic) => {
                state.set_topic(topic, entries).then(|| Changed::Topic(topic.clone()))
            }
            Znode::BrokerConfig(name) => state.set_broker(name, entries).then_some(Changed::Everything),
            // Coordinators look for themselves.
            Znode::GroupConfig(group) => {
                self.groups.set(group, entries);
                None
            }
            _ => None,
        };
        drop(state);
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    /// Waits until a configuration is as `reached` wants it. Never returns without: use a deadline.
    pub(crate) async fn wait_until(&self, mut reached: impl FnMut() -> bool) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if reached() {
                return;
            }
            changes.changed().await.expect("the sender lives as long as this object");
        }
    }
}

impl State {
    fn set_topic(&mut self, name: &TopicName, overrides: Entries) -> bool {
        let before = self.topics.get(name).map(|topic| &*topic.overrides);
        if before.is_none_or(Entries::is_empty) && overrides.is_empty() || before == Some(&overrides) {
            return false;
        }
        if overrides.is_empty() {
            self.topics.remove(name);
        } else {
            let config = Arc::new(self.resolve(name, &overrides));
            self.topics.insert(name.clone(), Topic { overrides: Arc::new(overrides), config });
        }
        info!(topic = %name, "topic configuration changed");
        true
    }

    /// Entries that cannot be used are left out one by one: a typing error in one does not undo the others.
    fn resolve(&self, name: &str, overrides: &Entries) -> TopicConfig {
        let usable: Entries = overrides
            .iter()
            .filter(|(key, value)| match validate_topic_config(key, value) {
                Ok(()) => true,
                Err(error) => {
                    warn!(topic = name, %error, "entry of the topic's configuration ignored");
                    false
                }
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        TopicConfig::resolve(&self.broker, &usable).unwrap_or_else(|error| {
            warn!(topic = name, %error, "the topic's configuration contradicts itself; the defaults are in force");
            TopicConfig::clone(&self.default)
        })
    }

    fn set_broker(&mut self, name: &str, entries: Entries) -> bool {
        let mut all_brokers = self.all_brokers.clone();
        let mut this_broker = self.this_broker.clone();
        if name == DEFAULT_ENTITY {
            all_brokers = entries;
        } else if name == self.started_with.broker_id.to_string() {
            this_broker = entries;
        } else {
            return false;
        }
        if (&all_brokers, &this_broker) == (&self.all_brokers, &self.this_broker) {
            return false;
        }
        match self.started_with.with_dynamic(&all_brokers, &this_broker) {
            Ok(broker) => self.broker = Arc::new(broker),
            Err(error) => {
                warn!(entity = name, %error, "broker configuration ignored; what was in force stays in force");
                return false;
            }
        }
        (self.all_brokers, self.this_broker) = (all_brokers, this_broker);
        self.default = Arc::new(self.broker.topic_defaults.clone());
        let resolved: Vec<(TopicName, Arc<TopicConfig>)> = self
            .topics
            .iter()
            .map(|(name, topic)| (name.clone(), Arc::new(self.resolve(name, &topic.overrides))))
            .collect();
        for (name, config) in resolved {
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.config = config;
            }
        }
        info!(entity = name, "broker configuration changed");
        true
    }
}

/// Reads what an event says is to be read. `known`: znodes that may have gone since they were read.
async fn read_event(
    zookeeper: &ZooKeeper,
    event: &TreeEvent,
    known: BTreeSet<Znode>,
) -> Result<Vec<(Znode, Option<Vec<u8>>)>, ReadError> {
    let mut wanted = known;
    match event {
        TreeEvent::Dirty(paths) => wanted.extend(paths.iter().filter_map(|path| parse(path))),
        TreeEvent::Reset => {
            for parent in [BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS] {
                let children = zookeeper.children(parent).await?.unwrap_or_default();
                wanted.extend(children.iter().filter_map(|child| parse(&format!("{parent}/{child}"))));
            }
        }
    }
    let is_config = |znode: &Znode| {
        matches!(znode, Znode::TopicConfig(_) | Znode::BrokerConfig(_) | Znode::GroupConfig(_))
    };
    wanted.retain(is_config);
    let paths: Vec<String> = wanted.iter().map(Znode::path).collect();
    let nodes = zookeeper.get_many(&paths).await?;
    Ok(wanted.into_iter().zip(nodes.into_iter().map(|node| node.map(|node| node.data))).collect())
}

/// A znode whose name cannot be a group's is told of: somebody wants something of it.
fn parse(path: &str) -> Option<Znode> {
    let parsed = Znode::parse(path);
    if parsed.is_none()
        && let Some(name) = path.strip_prefix(GROUP_CONFIGS).and_then(|rest| rest.strip_prefix('/'))
    {
        let wanted = group_in_path(name);
        warn!(
            znode = path,
            "configuration ignored: this is not how a group's id is written; '{name}' is {wanted}"
        );
    }
    parsed
}

#[cfg(test)]
mod tests {
    use zurau_common::zk::config::encode_config;

    use super::*;

    fn configs() -> TopicConfigs {
        TopicConfigs::new(BrokerConfig::from_pairs([("broker.id", "3")]).unwrap())
    }

    fn set(configs: &TopicConfigs, znode: Znode, entries: &[(&str, &str)]) -> Option<Changed> {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        configs.apply(&znode, Some(&encode_config(&entries)))
    }

    #[test]
    fn topics_override_the_brokers_and_go_back_to_them() {
        let configs = configs();
        let topic = || Znode::TopicConfig("t".into());
        let changed = set(&configs, topic(), &[("min.insync.replicas", "2")]);
        assert_eq!(changed, Some(Changed::Topic("t".into())));
        assert_eq!(set(&configs, topic(), &[("min.insync.replicas", "2")]), None, "nothing new");
        assert_eq!(configs.get("t").min_insync_replicas, 2);
        assert_eq!(configs.get("other").min_insync_replicas, 1);
        assert_eq!(configs.overrides("t")["min.insync.replicas"], "2");
        assert_eq!(configs.apply(&topic(), None), Some(Changed::Topic("t".into())));
        assert_eq!(configs.get("t").min_insync_replicas, 1);
        assert_eq!(configs.apply(&topic(), None), None);
    }

    #[test]
    fn what_cannot_be_used_changes_nothing_else() {
        let configs = configs();
        let topic = Znode::TopicConfig("t".into());
        set(&configs, topic.clone(), &[("min.insync.replicas", "2"), ("retention.ms", "soon"), ("x", "y")]);
        assert_eq!(configs.get("t").min_insync_replicas, 2);
        assert_eq!(configs.apply(&topic, Some(b"not json")), None);
        assert_eq!(configs.get("t").min_insync_replicas, 2);
    }

    #[test]
    fn groups_are_followed_and_known_when_everything_is_read_again() {
        let configs = configs();
        let group = || Znode::GroupConfig("g".into());
        assert_eq!(set(&configs, group(), &[("consumer.session.timeout.ms", "50000")]), None);
        assert_eq!(configs.groups.in_force()["g"].consumer_session_timeout_ms, 50_000);
        assert_eq!(configs.apply(&group(), Some(b"50000")), None);
        assert_eq!(
            configs.groups.in_force()["g"].consumer_session_timeout_ms,
            50_000,
            "damaged: nothing changes"
        );
        assert!(configs.known_znodes().contains(&group()), "else nobody would see that it is gone");
        configs.apply(&group(), None);
        assert!(configs.groups.in_force().is_empty());
    }

    #[test]
    fn broker_defaults_change_for_all_or_for_one() {
        let configs = configs();
        set(&configs, Znode::TopicConfig("t".into()), &[("retention.ms", "5")]);
        let broker = |name: &str| Znode::BrokerConfig(name.to_owned());
        let everything = Some(Changed::Everything);
        let size = |bytes: &str| set(&configs, broker(DEFAULT_ENTITY), &[("message.max.bytes", bytes)]);
        assert_eq!(size("100"), everything);
        assert_eq!(configs.get("t").max_message_bytes, 100);
        assert_eq!(configs.get("other").max_message_bytes, 100);
        assert_eq!(set(&configs, broker("3"), &[("message.max.bytes", "200")]), everything);
        assert_eq!(set(&configs, broker("4"), &[("message.max.bytes", "300")]), None, "another broker's");
        assert_eq!(configs.get("t").max_message_bytes, 200);
        assert_eq!(set(&configs, broker("3"), &[("message.max.bytes", "much")]), None);
        assert_eq!(configs.apply(&broker("3"), None), everything);
        assert_eq!(configs.broker_config().topic_defaults.max_message_bytes, 100);
    }
}
