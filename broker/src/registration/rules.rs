//! What a registration writes, and when it is this broker's own (D12, F11, N12, M7).

use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::op::{Lifetime, Node, Op};
use zurau_common::zk::znode::Znode;

/// A registration id with the version at which it is stored.
pub type Former = Option<(i64, i32)>;

/// The znodes that live as long as a registration.
pub fn own_paths(own: BrokerId) -> [String; 3] {
    [Znode::Broker(own), Znode::Endpoints(own), Znode::Lease(own)].map(|znode| znode.path())
}

/// What the registration znode says. An id that no process of ours wrote is no directory's id.
pub fn former_of(node: &Node) -> (i64, i32) {
    let id = std::str::from_utf8(&node.data).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(-1);
    (id, node.version)
}

/// The broker epoch, if the id that is stored is the one that this registration drew: the claim whose answer was lost
/// had succeeded (L2). Any other belongs to another registration (mutation 1).
pub fn claimed(former: Former, next: i64) -> Option<BrokerEpoch> {
    let (id, version) = former?;
    (id == next || !holds(Rule::RegistrationIsOwn)).then_some(BrokerEpoch(i64::from(version)))
}

/// Whether no other process has registered since this one did, as `held`.
pub fn is_still_ours(former: Former, held: Option<i64>) -> bool {
    held.is_none() || former.map(|(id, _)| id) == held
}

/// Step (1): from here on nothing that names an older registration can be stored. `registered`: what stands at
/// [`own_paths`] and may be removed.
pub fn claim(own: BrokerId, former: Former, next: i64, registered: &[Option<Node>]) -> Vec<Op> {
    let path = Znode::BrokerEpoch(own).path();
    let data = next.to_string().into_bytes();
    let mut ops = vec![match former {
        None => Op::Create { path, data, lifetime: Lifetime::Persistent },
        Some((_, version)) => {
            let version = holds(Rule::RegistrationOverFormer).then_some(version);
            Op::SetData { path, data, version }
        }
    }];
    if registered.first().is_some_and(Option::is_none) {
        // Whoever claimed before may have come alive since this was decided (D12).
        ops.push(Op::CheckAbsent { path: Znode::Broker(own).path() });
    }
    let standing = own_paths(own).into_iter().zip(registered).filter(|(_, node)| node.is_some());
    ops.extend(standing.map(|(path, _)| Op::Delete { path, version: None }));
    ops
}

/// Step (3): alive. `version` of the registration id.
pub fn appearance(own: BrokerId, version: i32, address: Vec<u8>, endpoints: Vec<u8>) -> [Op; 4] {
    let [ids, endpoints_path, lease] = own_paths(own);
    let ephemeral = |path, data| Op::Create { path, data, lifetime: Lifetime::Ephemeral };
    [
        Op::CheckVersion { path: Znode::BrokerEpoch(own).path(), version },
        ephemeral(ids, address),
        ephemeral(endpoints_path, endpoints),
        ephemeral(lease, Vec::new()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d12_a_claim_is_stored_over_nothing_but_what_it_was_decided_from() {
        let node = Node { data: b"7".to_vec(), version: 3, czxid: 1, mzxid: 2, ephemeral_owner: 9 };
        let kinds = |registered: &[Option<Node>]| {
            let ops = claim(BrokerId(1), Some((7, 3)), 8, registered);
            let one = |op: &Op| match op {
                Op::SetData { version, .. } => format!("set {version:?}"),
                Op::CheckAbsent { path } => format!("absent {path}"),
                Op::Delete { path, .. } => format!("delete {path}"),
                other => format!("{other:?}"),
            };
            ops.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[None, None, None]), ["set Some(3)", "absent /brokers/ids/1"]);
        assert_eq!(
            kinds(&[Some(node.clone()), None, Some(node.clone())]),
            ["set Some(3)", "delete /brokers/ids/1", "delete /leases/1"]
        );
        assert_eq!(former_of(&node), (7, 3));
        assert_eq!(claimed(Some((7, 3)), 8), None, "mutation 1: not what this process wrote");
        assert_eq!(claimed(Some((8, 4)), 8), Some(BrokerEpoch(4)));
        assert!(is_still_ours(Some((7, 3)), Some(7)) && is_still_ours(None, None));
        assert!(!is_still_ours(Some((8, 4)), Some(7)) && !is_still_ours(None, Some(7)));
    }
}
