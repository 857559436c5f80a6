//! The claim of the office: `/controller` is created and `/controller_epoch` raised in one multi, at the version read.

use zurau_common::id::ControllerEpoch;
use zurau_common::zk::InvalidZnode;
use zurau_common::zk::controller::{ActiveController, decode_controller_epoch, encode_controller_epoch};
use zurau_common::zk::op::{Lifetime, Node, Op};
use zurau_common::zk::znode::Znode;

/// The office, and the version of `/controller_epoch` that every write of its holder checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Office {
    pub epoch: ControllerEpoch,
    pub epoch_version: i32,
}

/// The office that the multi gives to who stores it. `epoch`: `/controller_epoch`, if there is one.
///
/// # Errors
/// The epoch that stands there cannot be read.
pub fn claim(epoch: Option<&Node>, identity: &ActiveController) -> Result<(Office, [Op; 2]), InvalidZnode> {
    let create =
        Op::Create { path: Znode::Controller.path(), data: identity.encode(), lifetime: Lifetime::Ephemeral };
    let path = Znode::ControllerEpoch.path();
    let Some(node) = epoch else {
        let office = Office { epoch: ControllerEpoch(1), epoch_version: 0 };
        let data = encode_controller_epoch(office.epoch);
        return Ok((office, [create, Op::Create { path, data, lifetime: Lifetime::Persistent }]));
    };
    let before = decode_controller_epoch(&node.data)?;
    let office = Office { epoch: ControllerEpoch(before.0 + 1), epoch_version: node.version + 1 };
    let data = encode_controller_epoch(office.epoch);
    Ok((office, [create, Op::SetData { path, data, version: Some(node.version) }]))
}

/// The office of a claim whose answer was lost: the epoch is of the same multi as the own `controller` znode (L2).
pub fn claimed(epoch: &Node, controller: &Node) -> Option<Office> {
    if epoch.mzxid != controller.czxid {
        return None;
    }
    let value = decode_controller_epoch(&epoch.data).ok()?;
    Some(Office { epoch: value, epoch_version: epoch.version })
}
