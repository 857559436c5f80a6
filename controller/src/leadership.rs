//! Who is the active controller: claims `/controller` and raises `/controller_epoch` in one multi.

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tracing::{debug, error, info, warn};
use uuid::Uuid;
use zurau_common::zk::controller::{ActiveController, encode_cluster_id};
use zurau_common::zk::op::{MultiError, Node, Op};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::claim::{self, Office};

/// What one look at `/controller` found.
enum Look {
    Won(Office),
    /// Somebody else is active.
    Taken,
    /// Something moved under the claim: look again.
    Again,
}

/// Claims the office. `None` while another controller is active, or when the session cannot tell: whoever watches
/// `/controller` learns when to look again.
///
/// # Errors
/// ZooKeeper refuses what no retry can mend.
pub(crate) async fn claim(
    zookeeper: &ZooKeeper,
    identity: &ActiveController,
) -> anyhow::Result<Option<Office>> {
    loop {
        match look(zookeeper, identity).await {
            Ok(Look::Won(office)) => {
                info!(epoch = %office.epoch, "elected as the active controller");
                return Ok(Some(office));
            }
            Ok(Look::Taken) => {
                debug!("another controller is active; waiting");
                return Ok(None);
            }
            Ok(Look::Again) => {}
            // The watch says how it goes on: a reset after the reconnect, or the end of the session.
            Err(Failure::Session) => return Ok(None),
            Err(Failure::Other(error)) => return Err(error),
        }
    }
}

enum Failure {
    Session,
    Other(anyhow::Error),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::SessionEnded | ReadError::ConnectionLoss => Self::Session,
            ReadError::Refused(_) => Self::Other(anyhow!(error).context("cannot read /controller")),
        }
    }
}

async fn look(zookeeper: &ZooKeeper, identity: &ActiveController) -> Result<Look, Failure> {
    let epoch = zookeeper.get(&Znode::ControllerEpoch.path()).await?;
    if let Some(node) = zookeeper.get(&Znode::Controller.path()).await? {
        if node.ephemeral_owner != zookeeper.session_id() {
            return Ok(Look::Taken);
        }
        return own_node(zookeeper, &node).await;
    }
    let claim = claim::claim(epoch.as_ref(), identity)
        .context("no controller can be elected; write the last epoch, a whole number, to /controller_epoch")
        .inspect_err(|error| error!("{error:#}"));
    let (office, ops) = claim.map_err(Failure::Other)?;
    match zookeeper.multi(&ops).await {
        Ok(_) => Ok(Look::Won(office)),
        Err(MultiError::Failed { .. } | MultiError::Unknown) => Ok(Look::Again),
        Err(MultiError::SessionEnded) => Err(Failure::Session),
        Err(error @ MultiError::Refused(_)) => {
            debug!("the claim was not sent: {error}");
            Err(Failure::Session)
        }
    }
}

/// The node is owned by this session: a claim whose answer was lost had succeeded (L2), if the epoch is of the same
/// multi. Otherwise the node is given up and claimed anew.
async fn own_node(zookeeper: &ZooKeeper, controller: &Node) -> Result<Look, Failure> {
    let epoch = zookeeper.get(&Znode::ControllerEpoch.path()).await?;
    if let Some(office) = epoch.and_then(|epoch| claim::claimed(&epoch, controller)) {
        return Ok(Look::Won(office));
    }
    // Whatever becomes of it: the next look tells.
    let _ = zookeeper.multi(&[Op::Delete { path: Znode::Controller.path(), version: None }]).await;
    Ok(Look::Again)
}

/// Whether this session still owns `/controller`.
pub(crate) async fn still_in_office(zookeeper: &ZooKeeper) -> Result<bool, ReadError> {
    let node = zookeeper.get(&Znode::Controller.path()).await?;
    Ok(node.is_some_and(|node| node.ephemeral_owner == zookeeper.session_id()))
}

/// A broker knows a higher epoch than the own. If another controller is in office this one is not any more; else the
/// epoch is raised, and the office is claimed anew (N14). Returns whether it is still held.
pub(crate) async fn yield_if_outranked(zookeeper: &ZooKeeper, office: Office) -> Result<bool, ReadError> {
    if !still_in_office(zookeeper).await? {
        return Ok(false);
    }
    if let Some(ops) = claim::outranked(office) {
        warn!(epoch = %office.epoch, "brokers know a higher controller epoch: /controller_epoch was set back; raising it");
        if let Err(error) = zookeeper.multi(&ops).await {
            debug!("the controller epoch was not raised: {error}");
        }
    }
    still_in_office(zookeeper).await
}

/// Gives the office up, so that a standby takes over at once.
pub(crate) async fn resign(zookeeper: &ZooKeeper) {
    if still_in_office(zookeeper).await.unwrap_or(false) {
        let delete = Op::Delete { path: Znode::Controller.path(), version: None };
        if let Err(error) = zookeeper.multi(&[delete]).await {
            debug!("the znode /controller was not removed: {error}");
        }
    }
}

/// The persistent parents and the cluster id.
pub(crate) async fn prepare(zookeeper: &ZooKeeper) -> Result<(), MultiError> {
    zookeeper.ensure_parents().await?;
    let id = URL_SAFE_NO_PAD.encode(Uuid::new_v4().as_bytes());
    if zookeeper.create_if_absent(&Znode::ClusterId.path(), &encode_cluster_id(&id)).await? {
        info!(cluster_id = %id, "new cluster");
    }
    Ok(())
}
