//! Registration of the broker (coordination.md, "Broker registration"): a new registration id first, so that nothing
//! decided from the former incarnation can be stored any more; then the broker takes itself out of every ISR that it
//! cannot honour; then it comes alive.

mod departure;

mod homes;

pub mod rules;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::sleep;
use tracing::{info, warn};
use uuid::Uuid;
use zurau_common::id::{BrokerEpoch, TopicPartition};
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::controller::{decode_cluster_id, encode_cluster_id};
use zurau_common::zk::op::{MultiError, Node, OpResult};
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::context::BrokerContext;

use homes::Homes;
use rules::Former;

/// How often a multi whose ground has moved is decided anew.
const ATTEMPTS_MAX: usize = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What the broker is registered with.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) address: Address,
    pub(crate) endpoints: Endpoints,
}

/// The broker must not go on: its id, or its log directories, are somebody else's. Everything else that fails during a
/// registration is tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Conflict(String);

/// The registration that this process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    id: i64,
    epoch: BrokerEpoch,
}

/// Registers one broker, again for each new session.
pub(crate) struct Registrar {
    context: Arc<BrokerContext>,
    identity: Identity,
    homes: Homes,
    held: Option<Held>,
    /// Partitions whose log lost records (D1).
    unclean: Vec<TopicPartition>,
}

impl Registrar {
    pub(crate) fn new(context: Arc<BrokerContext>, identity: Identity, unclean: Vec<TopicPartition>) -> Self {
        let homes = Homes::new(&context.config.log_dirs);
        Self { context, identity, homes, held: None, unclean }
    }

    /// Registers under this session; afterwards the broker is alive.
    ///
    /// # Errors
    /// Another process uses the broker id; the log directories belong to another cluster; ZooKeeper fails.
    pub(crate) async fn register(&mut self, zookeeper: &ZooKeeper) -> anyhow::Result<()> {
        if self.held.is_none() {
            self.join_cluster(zookeeper).await?;
        }
        let former = self.former(zookeeper).await?;
        if self.held.is_none() {
            // Before anything is written: what do the directories know, and of which registration?
            self.homes.judge(former.as_ref().map_or(-1, |(id, _)| *id)).await?;
        }
        let next = random_id();
        self.homes.announce(next).await?;
        let first = self.held.is_none();
        let epoch = self.claim(zookeeper, former, next).await?;
        self.context.shared.set_broker_epoch(epoch);
        self.held = Some(Held { id: next, epoch });
        if first {
            departure::leave_what_cannot_be_honoured(&self.context, zookeeper, epoch, |partition| {
                self.homes.is_complete(partition.directory()) && !self.unclean.contains(partition.id())
            })
            .await?;
        }
        self.homes.complete(next).await?;
        self.appear(zookeeper, epoch).await?;
        self.context.shared.set_lease(zookeeper.lease());
        zookeeper.keep_lease(self.context.shared.own);
        info!(broker = %self.context.shared.own, broker_epoch = %epoch, address = %self.identity.address, "registered");
        Ok(())
    }

    /// The first thing a broker does in a tree: its parents, and which cluster this is.
    async fn join_cluster(&self, zookeeper: &ZooKeeper) -> anyhow::Result<()> {
        zookeeper.ensure_parents().await.context("the parents of the tree cannot be created")?;
        let path = Znode::ClusterId.path();
        let node = match zookeeper.get(&path).await? {
            Some(node) => node,
            None => {
                let id = zurau_common::id::TopicId(Uuid::new_v4()).to_string();
                zookeeper.create_if_absent(&path, &encode_cluster_id(&id)).await?;
                zookeeper.get(&path).await?.context("/cluster/id vanished while it was read")?
            }
        };
        let cluster_id = decode_cluster_id(&node.data)?;
        self.context.partitions.claim_directories(self.context.shared.own, &cluster_id)?;
        // A second registration of this process reads the same id; the directories hold it now.
        let _ = self.context.cluster_id.set(cluster_id);
        Ok(())
    }

    /// The registration id that is stored, with the epoch it has.
    async fn former(&self, zookeeper: &ZooKeeper) -> anyhow::Result<Former> {
        let path = Znode::BrokerEpoch(self.context.shared.own).path();
        Ok(zookeeper.get(&path).await?.as_ref().map(rules::former_of))
    }

    /// Step (1): from here on nothing that names an older epoch can be stored.
    async fn claim(
        &mut self,
        zookeeper: &ZooKeeper,
        mut former: Former,
        next: i64,
    ) -> anyhow::Result<BrokerEpoch> {
        let own = self.context.shared.own;
        for attempt in 0..ATTEMPTS_MAX {
            if let Some(epoch) = rules::claimed(former, next) {
                return Ok(epoch);
            }
            self.check_still_ours(former)?;
            let registered = self.registered(zookeeper, former).await?;
            match zookeeper.multi(&rules::claim(own, former, next, &registered)).await {
                Ok(results) => {
                    let version = match results.first() {
                        Some(OpResult::Set { version, .. }) => *version,
                        _ => 0,
                    };
                    return Ok(BrokerEpoch(i64::from(version)));
                }
                Err(MultiError::SessionEnded) => bail!("the session ended before the broker was registered"),
                Err(error) => {
                    warn!(broker = %own, attempt, %error, "the registration id is not stored; looking again")
                }
            }
            sleep(RETRY_PAUSE).await;
            former = self.former(zookeeper).await?;
        }
        bail!("broker {own} could not store its registration id in {ATTEMPTS_MAX} attempts")
    }

    fn check_still_ours(&self, former: Former) -> anyhow::Result<()> {
        let held = self.held.map(|held| held.id);
        if rules::is_still_ours(former, held) {
            return Ok(());
        }
        Err(Conflict(format!(
            "broker id {} was registered by another process since (registration {former:?}, this process holds {held:?}); \
             stop one of the two, or give it another broker.id",
            self.context.shared.own
        ))
        .into())
    }

    /// What stands of an own earlier registration. A foreign one is waited for, one session timeout long (D12).
    async fn registered(&self, zookeeper: &ZooKeeper, former: Former) -> anyhow::Result<Vec<Option<Node>>> {
        let own = self.context.shared.own;
        let paths = rules::own_paths(own);
        let deadline = tokio::time::Instant::now() + zookeeper.session_timeout() + Duration::from_secs(1);
        loop {
            let nodes = zookeeper.get_many(&paths).await?;
            let Some(registered) = &nodes[0] else { return Ok(nodes) };
            let ours = registered.ephemeral_owner == zookeeper.session_id()
                || self.held.is_some()
                || self.homes.are_of(former.map_or(-1, |(id, _)| id));
            if ours {
                return Ok(nodes);
            }
            if deadline <= tokio::time::Instant::now() {
                let other = String::from_utf8_lossy(&registered.data);
                return Err(Conflict(format!(
                    "broker id {own} is registered by another broker at {other}; stop it, or give this one another broker.id"
                ))
                .into());
            }
            info!(broker = %own, other = %String::from_utf8_lossy(&registered.data),
                "the broker id is registered; waiting whether that registration ends");
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Step (3): alive.
    async fn appear(&self, zookeeper: &ZooKeeper, epoch: BrokerEpoch) -> anyhow::Result<()> {
        let own = self.context.shared.own;
        let version = i32::try_from(epoch.0).context("a broker epoch is a znode's data version")?;
        let [ids, ..] = rules::own_paths(own);
        let (address, endpoints) = (self.identity.address.encode(), self.identity.endpoints.encode());
        let ops = rules::appearance(own, version, address, endpoints);
        for attempt in 0..ATTEMPTS_MAX {
            match zookeeper.multi(&ops).await {
                Ok(_) => return Ok(()),
                Err(MultiError::SessionEnded) => bail!("the session ended before the broker was registered"),
                Err(error) => {
                    let node = zookeeper.get(&ids).await?;
                    if node.is_some_and(|node| node.ephemeral_owner == zookeeper.session_id()) {
                        return Ok(());
                    }
                    let former = self.former(zookeeper).await?;
                    self.check_still_ours(former)?;
                    warn!(broker = %own, attempt, %error, "not registered yet; trying again");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
        bail!("broker {own} could not register in {ATTEMPTS_MAX} attempts")
    }

    /// Whether the registration that stands is this session's (D12).
    ///
    /// # Errors
    /// [`Conflict`] if it is another's.
    pub(crate) async fn check_owner(&self, zookeeper: &ZooKeeper) -> anyhow::Result<()> {
        let [ids, ..] = rules::own_paths(self.context.shared.own);
        match zookeeper.get(&ids).await {
            Ok(Some(node)) if node.ephemeral_owner != zookeeper.session_id() => Err(Conflict(format!(
                "broker id {} is registered by another process at {}; stop one of the two, or give it another broker.id",
                self.context.shared.own,
                String::from_utf8_lossy(&node.data)
            ))
            .into()),
            // Gone: the session is ending, or an admin removed it. The session's end is noticed elsewhere.
            _ => Ok(()),
        }
    }

    /// A clean stop: what is on disk now is complete, whatever becomes of the machine (D1).
    pub(crate) async fn mark_clean(&self) -> anyhow::Result<()> {
        match self.held {
            Some(held) => self.homes.mark_clean(held.id).await,
            None => Ok(()),
        }
    }
}

/// A registration id: positive, so that −1 can mean none.
fn random_id() -> i64 {
    i64::try_from(Uuid::new_v4().as_u128() >> 66).expect("62 bits are positive in 64")
}
