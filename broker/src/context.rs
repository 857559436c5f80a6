//! What the requests of a broker share: its configuration, the metadata, the ZooKeeper session of the moment.

use std::sync::OnceLock;

use parking_lot::RwLock;
use zurau_common::config::BrokerConfig;
use zurau_common::zk::session::ZooKeeper;

use crate::metadata::SharedMetadata;
use crate::producer_ids::ProducerIds;
use crate::topic_configs::TopicConfigs;

/// Shared by all requests, behind an `Arc`.
#[derive(Debug)]
pub(crate) struct BrokerContext {
    /// As the process was started; `topic_configs` has it with what was changed since.
    pub(crate) config: BrokerConfig,
    pub(crate) metadata: SharedMetadata,
    pub(crate) topic_configs: TopicConfigs,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) zookeeper: SessionSlot,
    /// Value of `/cluster/id`, set before the first registration.
    pub(crate) cluster_id: OnceLock<String>,
}

impl BrokerContext {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        Self {
            topic_configs: TopicConfigs::new(config.clone()),
            config,
            metadata: SharedMetadata::default(),
            producer_ids: ProducerIds::default(),
            zookeeper: SessionSlot::default(),
            cluster_id: OnceLock::new(),
        }
    }

    pub(crate) fn cluster_id(&self) -> &str {
        self.cluster_id.get().map_or("", String::as_str)
    }
}

/// The broker's ZooKeeper session: there is none between the end of one and the begin of the next.
#[derive(Debug, Default)]
pub(crate) struct SessionSlot(RwLock<Option<ZooKeeper>>);

impl SessionSlot {
    pub(crate) fn current(&self) -> Option<ZooKeeper> {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, zookeeper: Option<ZooKeeper>) {
        *self.0.write() = zookeeper;
    }
}
