//! Features of the cluster that an operator turns on and off: the level of `transaction.version`, from `/feature` in
//! Kafka's layout. Clients learn it from ApiVersions (KIP-584) and use transactions of version 2 (KIP-890) at level 2 only.
//!
//! Without the znode, or without the feature in it, the level is the highest. What cannot be read changes nothing, and a
//! child `error` says why (D18).

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::Deserialize;
use tracing::{info, warn};
use zurau_common::zk::op::{Lifetime, Node, Op};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::topic_configs::READ_RETRY_PAUSE;

pub(crate) const TRANSACTION_VERSION: &str = "transaction.version";
/// The highest level of [`TRANSACTION_VERSION`].
pub(crate) const TRANSACTION_VERSION_MAX: i16 = 2;

/// What is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finalized {
    /// Grows with each change: clients take no older news. 0 without the znode, else one more than its data version.
    pub(crate) epoch: i64,
    /// 0 to [`TRANSACTION_VERSION_MAX`].
    pub(crate) transaction_version: i16,
}

impl Default for Finalized {
    fn default() -> Self {
        Self { epoch: 0, transaction_version: TRANSACTION_VERSION_MAX }
    }
}

/// `/feature`. Version 1 has a lowest level for each feature too, which says nothing here.
#[derive(Deserialize)]
struct Stored {
    version: i32,
    /// 1, or 0: nothing is in force.
    status: i32,
    #[serde(default)]
    features: BTreeMap<String, Level>,
}

#[derive(Deserialize)]
struct Level {
    max_version_level: i64,
}

/// # Errors
/// What is wrong with it, for the operator.
fn decode(node: &Node) -> Result<Finalized, String> {
    let stored: Stored = serde_json::from_slice(&node.data).map_err(|error| error.to_string())?;
    if !(1..=2).contains(&stored.version) {
        return Err(format!("version {} is not known; 1 and 2 are", stored.version));
    }
    let level = match (stored.status, stored.features.get(TRANSACTION_VERSION)) {
        (0, _) => 0,
        (1, None) => i64::from(TRANSACTION_VERSION_MAX),
        (1, Some(level)) => level.max_version_level,
        (other, _) => return Err(format!("status {other} is not known; 0 (off) and 1 (on) are")),
    };
    let in_range = i16::try_from(level).ok().filter(|level| (0..=TRANSACTION_VERSION_MAX).contains(level));
    let transaction_version = in_range.ok_or_else(|| {
        format!("{TRANSACTION_VERSION} cannot have level {level}; 0 to {TRANSACTION_VERSION_MAX} are served")
    })?;
    Ok(Finalized { epoch: i64::from(node.version) + 1, transaction_version })
}

/// The features of the cluster, as this broker knows them.
#[derive(Debug, Default)]
pub(crate) struct Features(RwLock<Finalized>);

impl Features {
    pub(crate) fn finalized(&self) -> Finalized {
        *self.0.read()
    }

    /// Takes over what the znode holds; what is wrong with it if it cannot be read.
    fn apply(&self, node: Option<&Node>) -> Result<(), String> {
        let found = node.map_or(Ok(Finalized::default()), decode)?;
        let before = std::mem::replace(&mut *self.0.write(), found);
        if before.transaction_version != found.transaction_version {
            info!(level = found.transaction_version, "{TRANSACTION_VERSION} has another level");
        }
        Ok(())
    }

    /// Follows the znode until the session ends.
    pub(crate) async fn follow(&self, zookeeper: ZooKeeper) {
        let path = Znode::Feature.path();
        let mut watch = zookeeper.watch_trees(&[&path]);
        while watch.next().await.is_some() {
            loop {
                match self.read(&zookeeper).await {
                    Ok(()) => break,
                    Err(ReadError::SessionEnded) => return,
                    Err(error) => {
                        warn!(%error, "{path} cannot be read; trying again");
                        tokio::time::sleep(READ_RETRY_PAUSE).await;
                    }
                }
            }
        }
    }

    async fn read(&self, zookeeper: &ZooKeeper) -> Result<(), ReadError> {
        let paths = [Znode::Feature.path(), Znode::FeatureError.path()];
        let mut nodes = zookeeper.get_many(&paths).await?.into_iter();
        let (node, complaint) = (nodes.next().flatten(), nodes.next().flatten());
        let problem = self.apply(node.as_ref()).err();
        let told = complaint.as_ref().map(|complaint| &*complaint.data);
        if told == problem.as_deref().map(str::as_bytes) || node.is_none() {
            return Ok(());
        }
        if let Some(problem) = &problem {
            warn!(problem, "/feature is ignored; what was in force stays in force");
        }
        // Every broker tells it; whoever comes second, or too late, is told so and looks again at the next change.
        if let Err(error) = zookeeper.multi(&[complain(problem, complaint.is_some())]).await {
            info!(%error, "what is wrong with /feature is not written beside it");
        }
        Ok(())
    }
}

fn complain(problem: Option<String>, exists: bool) -> Op {
    let path = Znode::FeatureError.path();
    match (problem.map(String::into_bytes), exists) {
        (Some(data), true) => Op::SetData { path, data, version: None },
        (Some(data), false) => Op::Create { path, data, lifetime: Lifetime::Persistent },
        (None, _) => Op::Delete { path, version: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(data: &str, version: i32) -> Node {
        Node { data: data.as_bytes().to_vec(), version, czxid: 1, mzxid: 1, ephemeral_owner: 0 }
    }

    #[test]
    fn the_level_is_the_znodes_and_the_highest_without() {
        let level = |level: &str| {
            format!(
                r#"{{"version":2,"status":1,"features":{{"transaction.version":{{"max_version_level":{level}}}}}}}"#
            )
        };
        let rows = [
            (level("0"), Ok(0)),
            (level("1"), Ok(1)),
            (level("2"), Ok(2)),
            (level("3"), Err("level 3")),
            (level("-1"), Err("level -1")),
            (level("70000"), Err("level 70000")),
            (level("true"), Err("i64")),
            (r#"{"version":2,"status":1,"features":{"other":{"max_version_level":9}}}"#.to_owned(), Ok(2)),
            (
                r#"{"version":1,"status":1,"features":{"transaction.version":{"min_version_level":0,"max_version_level":1}}}"#
                    .to_owned(),
                Ok(1),
            ),
            (r#"{"version":2,"status":0}"#.to_owned(), Ok(0)),
            (r#"{"version":2,"status":7}"#.to_owned(), Err("status 7")),
            (r#"{"version":3,"status":1}"#.to_owned(), Err("version 3")),
            ("nonsense".to_owned(), Err("expected")),
        ];
        for (data, expected) in rows {
            let found = decode(&node(&data, 4));
            match expected {
                Ok(transaction_version) => {
                    assert_eq!(found, Ok(Finalized { epoch: 5, transaction_version }), "{data}")
                }
                Err(part) => assert!(found.clone().unwrap_err().contains(part), "{data}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let features = Features::default();
        let whole = r#"{"version":2,"status":1,"features":{"transaction.version":{"max_version_level":1}}}"#;
        assert_eq!(features.finalized(), Finalized { epoch: 0, transaction_version: 2 });
        features.apply(Some(&node(whole, 0))).unwrap();
        let one = Finalized { epoch: 1, transaction_version: 1 };
        assert_eq!(features.finalized(), one);
        assert!(features.apply(Some(&node("{", 1))).is_err());
        assert_eq!(features.finalized(), one);
        features.apply(None).unwrap();
        assert_eq!(features.finalized(), Finalized::default());
    }
}
