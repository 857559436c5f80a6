//! The keys of `server.properties` (Kafka 3.9's, and our own at the end of `replication`), one a row. Keys that do
//! nothing yet stand here too: a file that works with Kafka raises no warning, and DescribeConfigs lists them.

mod log;
mod network;
mod replication;
mod security;

use super::keys::{AppliesTo, ConfigKey, Dynamic, Kind};

/// All rows.
pub(super) fn all() -> impl Iterator<Item = &'static ConfigKey> {
    [network::KEYS, log::KEYS, replication::KEYS, security::KEYS].into_iter().flatten()
}

// The rows are wide as they are; these names keep them readable.
const BROKER: AppliesTo = AppliesTo::Broker;
const CONTROLLER: AppliesTo = AppliesTo::Controller;
const BOTH: AppliesTo = AppliesTo::Both;
const FIXED: Dynamic = Dynamic::ReadOnly;
const ONE: Dynamic = Dynamic::PerBroker;
const ALL: Dynamic = Dynamic::ClusterWide;
const INT: i32 = i32::MAX;
const LONG: i64 = i64::MAX;

const fn key(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    place: (AppliesTo, Dynamic),
    doc: &'static str,
) -> ConfigKey {
    ConfigKey { name, kind, default: Some(default), applies_to: place.0, dynamic: place.1, doc }
}

const fn unset(name: &'static str, kind: Kind, place: (AppliesTo, Dynamic), doc: &'static str) -> ConfigKey {
    ConfigKey { name, kind, default: None, applies_to: place.0, dynamic: place.1, doc }
}
