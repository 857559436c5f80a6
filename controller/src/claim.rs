//! The claim of the office: `/controller` is created and `/controller_epoch` raised in one multi, at the version read.

use zurau_common::id::ControllerEpoch;
use zurau_common::rule::{Rule, holds};
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
    let office =
        Office { epoch: ControllerEpoch(before.0.saturating_add(1)), epoch_version: node.version + 1 };
    let data = encode_controller_epoch(office.epoch);
    Ok((office, [create, Op::SetData { path, data, version: Some(node.version) }]))
}

/// The multi by which a controller goes above an epoch that brokers know and ZooKeeper does not, because somebody has
/// set `/controller_epoch` back (N14): it gives its office up and raises the epoch, so that whoever claims next comes
/// to twice its own. Not stored if the epoch has moved. What brokers know is not told: it is tried until they obey.
pub fn outranked(office: Office) -> Option<[Op; 2]> {
    if !holds(Rule::OutrankedYields) {
        return None;
    }
    let data = encode_controller_epoch(ControllerEpoch(office.epoch.0.saturating_mul(2)));
    let raise =
        Op::SetData { path: Znode::ControllerEpoch.path(), data, version: Some(office.epoch_version) };
    Some([raise, Op::Delete { path: Znode::Controller.path(), version: None }])
}

/// The office of a claim whose answer was lost: the epoch is of the same multi as the own `controller` znode (L2).
pub fn claimed(epoch: &Node, controller: &Node) -> Option<Office> {
    if epoch.mzxid != controller.czxid {
        return None;
    }
    let value = decode_controller_epoch(&epoch.data).ok()?;
    Some(Office { epoch: value, epoch_version: epoch.version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n14_an_outranked_controller_raises_the_epoch_only_over_its_own() {
        let office = Office { epoch: ControllerEpoch(3), epoch_version: 7 };
        let [raise, leave] = outranked(office).unwrap();
        let (path, data) = (Znode::ControllerEpoch.path(), b"6".to_vec());
        assert_eq!(raise, Op::SetData { path, data: data.clone(), version: Some(7) });
        assert_eq!(leave, Op::Delete { path: Znode::Controller.path(), version: None });
        let node = Node { data, version: 8, czxid: 1, mzxid: 2, ephemeral_owner: 0 };
        let identity = ActiveController::new(1, "here".to_owned(), 9090, 0);
        let (next, _) = claim(Some(&node), &identity).unwrap();
        assert_eq!(next, Office { epoch: ControllerEpoch(7), epoch_version: 9 });
    }
}
