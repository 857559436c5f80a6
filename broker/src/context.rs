//! What the requests and the background tasks of a broker share: its configuration, its partitions, the metadata, the
//! ZooKeeper session of the moment.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use zurau_common::config::BrokerConfig;
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::wire::peer::Peer;
use zurau_common::zk::session::SessionState;

use crate::control::ControlPlane;
use crate::features::Features;
use crate::first_leaders::FirstLeaders;
use crate::groups::GroupCoordinator;
use crate::handlers::FetchSessions;
use crate::log::cleaner::CleanerStatus;
use crate::partitions::Partitions;
use crate::producer_ids::ProducerIds;
use crate::session::SessionSlot;
use crate::shared::Shared;
use crate::shared_metadata::SharedMetadata;
use crate::topic_configs::TopicConfigs;
use crate::transactions::TransactionCoordinator;
use crate::verifier::TransactionVerifier;

/// Shared by all requests, behind an `Arc`.
#[derive(Debug)]
pub(crate) struct BrokerContext {
    /// As the process was started; `topic_configs` has it with what was changed since.
    pub(crate) config: BrokerConfig,
    pub(crate) shared: Arc<Shared>,
    pub(crate) partitions: Partitions,
    pub(crate) control: ControlPlane,
    pub(crate) metadata: Arc<SharedMetadata>,
    pub(crate) first_leaders: Mutex<FirstLeaders>,
    pub(crate) topic_configs: TopicConfigs,
    pub(crate) features: Features,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) fetch_sessions: FetchSessions,
    pub(crate) groups: GroupCoordinator,
    pub(crate) transactions: TransactionCoordinator,
    /// What the log cleaner does and could not do; written by its threads.
    pub(crate) cleaner_status: Arc<Mutex<CleanerStatus>>,
    pub(crate) verifier: TransactionVerifier,
    pub(crate) zookeeper: SessionSlot,
    /// Value of `/cluster/id`, set before the first registration.
    pub(crate) cluster_id: OnceLock<String>,
}

impl BrokerContext {
    pub(crate) fn new(
        config: BrokerConfig,
        shared: Arc<Shared>,
        partitions: Partitions,
        control: ControlPlane,
    ) -> Self {
        let metadata = Arc::<SharedMetadata>::default();
        let topic_configs = TopicConfigs::new(config.clone());
        let group_configs = Arc::clone(&topic_configs.groups);
        Self {
            fetch_sessions: FetchSessions::new(config.max_incremental_fetch_session_cache_slots),
            groups: GroupCoordinator::new(&config.settings, Arc::clone(&metadata), group_configs),
            transactions: TransactionCoordinator::new(&config.settings),
            topic_configs,
            features: Features::default(),
            config,
            shared,
            partitions,
            control,
            metadata,
            first_leaders: Mutex::default(),
            producer_ids: ProducerIds::default(),
            cleaner_status: Arc::default(),
            verifier: TransactionVerifier::default(),
            zookeeper: SessionSlot::new(),
            cluster_id: OnceLock::new(),
        }
    }

    /// A connection to another broker, on the listener between brokers.
    ///
    /// # Errors
    /// The controller has told no address of it; nobody answers there within `limit`.
    pub(crate) async fn connect(
        &self,
        broker: BrokerId,
        client: &str,
        limit: Duration,
    ) -> anyhow::Result<Peer> {
        let image = self.metadata.image();
        let listener = &self.config.inter_broker_listener_name;
        let address = image.brokers.get(&broker).and_then(|live| live.address(listener));
        let address = address.with_context(|| format!("no address of broker {broker} is known"))?;
        Peer::connect(&format!("{}:{}", address.host, address.port), client, limit).await
    }

    /// ZooKeeper answers, as far as this broker knows.
    pub(crate) fn has_zookeeper(&self) -> bool {
        let session = self.zookeeper.current();
        session.is_some_and(|session| *session.state().borrow() == SessionState::Connected)
    }

    pub(crate) fn cluster_id(&self) -> &str {
        self.cluster_id.get().map_or("", String::as_str)
    }

    /// The epoch of this broker's registration; −1 before the first.
    pub(crate) fn broker_epoch(&self) -> BrokerEpoch {
        self.shared.broker_epoch()
    }
}
