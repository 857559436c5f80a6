//! `state`, the election record of a partition. It never holds the ISR.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{EPOCH_MAX, InvalidZnode};
use crate::id::{BrokerId, ControllerEpoch, LeaderEpoch};

/// Value of `…/[partition_id]/state`. `target` is a subset of `replicas`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    version: i32,
    /// Who was elected for `leader_epoch`. It leads once its `leader` znode is younger than this record.
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    pub controller_epoch: ControllerEpoch,
    /// The hosts this epoch was started with.
    pub replicas: Vec<BrokerId>,
    /// The wanted replicas; the first is preferred.
    pub target: Vec<BrokerId>,
    /// The leader was elected uncleanly.
    pub recovery: bool,
    /// Why this epoch was begun, in words, for people. Nothing is decided from it; older releases wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
}

impl PartitionState {
    pub fn new(
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        controller_epoch: ControllerEpoch,
        replicas: Vec<BrokerId>,
        target: Vec<BrokerId>,
    ) -> Self {
        Self {
            version: 1,
            leader,
            leader_epoch,
            controller_epoch,
            replicas,
            target,
            recovery: false,
            reason: None,
        }
    }

    /// # Errors
    /// Not JSON of the documented shape; another version; a target that is not hosted.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        const WHAT: &str = "the partition's state";
        let state: Self = serde_json::from_slice(value).map_err(|error| InvalidZnode::new(WHAT, error))?;
        if state.version != 1 {
            return Err(InvalidZnode::new(
                WHAT,
                format!("its version is {}, this release knows 1", state.version),
            ));
        }
        // An epoch that has no successor would stop elections for good, or wrap round.
        let epochs = [state.leader_epoch.0, state.controller_epoch.0];
        if !epochs.iter().all(|epoch| (0..=EPOCH_MAX).contains(epoch)) {
            return Err(InvalidZnode::new(
                WHAT,
                format!(
                    "leader epoch {} and controller epoch {} must be between 0 and {EPOCH_MAX}",
                    state.leader_epoch, state.controller_epoch
                ),
            ));
        }
        if let Some(id) = state.target.iter().find(|id| !state.replicas.contains(id)) {
            return Err(InvalidZnode::new(WHAT, format!("target {id} is not among its replicas")));
        }
        Ok(state)
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of numbers and lists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_has_a_golden_form() {
        let ids = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let state = PartitionState::new(
            BrokerId(1),
            LeaderEpoch(7),
            ControllerEpoch(3),
            ids(&[1, 2, 3]),
            ids(&[1, 2]),
        );
        let golden = r#"{"version":1,"leader":1,"leader_epoch":7,"controller_epoch":3,"replicas":[1,2,3],"target":[1,2],"recovery":false}"#;
        assert_eq!(String::from_utf8(state.encode()).unwrap(), golden);
        assert_eq!(PartitionState::decode(golden.as_bytes()), Ok(state.clone()));
        let told = PartitionState { reason: Some("its broker is gone".into()), ..state };
        let golden_with_reason = golden.replace('}', r#","reason":"its broker is gone"}"#);
        assert_eq!(String::from_utf8(told.encode()).unwrap(), golden_with_reason);
        assert_eq!(PartitionState::decode(golden_with_reason.as_bytes()), Ok(told));
        for bad in [
            "",
            "{}",
            &golden.replace("\"version\":1", "\"version\":2"),
            &golden.replace("[1,2]", "[9]"),
            &golden.replace("\"leader_epoch\":7", "\"leader_epoch\":-1"),
            &golden.replace("\"leader_epoch\":7", "\"leader_epoch\":2147483647"),
            &golden.replace("\"controller_epoch\":3", "\"controller_epoch\":-1"),
            &golden.replace("\"controller_epoch\":3", "\"controller_epoch\":2147483647"),
        ] {
            assert!(PartitionState::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
