//! Removes the znodes of a deleted topic, leaves first, the wish to delete it last, whatever is left of them (CTL-06).

use zurau_common::id::TopicName;
use zurau_common::zk::op::{MultiError, Op, OpFailure};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::{REASSIGNMENT_ERRORS, REASSIGNMENTS, Znode};

use crate::event::WriteOutcome;

/// Somebody may write below the topic while it is removed; then what came is removed too.
const ROUNDS_MAX: usize = 10;

/// Every multi checks that this controller is in office.
pub(crate) async fn remove_topic(
    zookeeper: &ZooKeeper,
    topic: &TopicName,
    epoch_version: i32,
) -> Result<WriteOutcome, MultiError> {
    let trees = [
        Znode::Topic(topic.clone()).path(),
        format!("{REASSIGNMENTS}/{topic}"),
        format!("{REASSIGNMENT_ERRORS}/{topic}"),
        Znode::TopicConfig(topic.clone()).path(),
    ];
    let office = Op::CheckVersion { path: Znode::ControllerEpoch.path(), version: epoch_version };
    for _ in 0..ROUNDS_MAX {
        let mut left = Vec::new();
        for tree in &trees {
            left.extend(descendants(zookeeper, tree).await.map_err(failed_read)?);
        }
        if left.is_empty() {
            return remove(zookeeper, &office, Znode::DeleteTopic(topic.clone()).path()).await;
        }
        // Deepest first, level by level: the multis of one level do not depend on each other.
        left.sort_by_key(|path| std::cmp::Reverse(depth(path)));
        for level in left.chunk_by(|one, other| depth(one) == depth(other)) {
            let groups: Vec<((), Vec<Op>)> =
                level.iter().map(|path| ((), vec![office.clone(), delete(path)])).collect();
            for ((), outcome) in zookeeper.multi_batched(groups).await {
                match outcome {
                    Ok(_) | Err(MultiError::Failed { index: 1, .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(WriteOutcome::Conflict)
}

async fn remove(zookeeper: &ZooKeeper, office: &Op, path: String) -> Result<WriteOutcome, MultiError> {
    match zookeeper.multi(&[office.clone(), delete(&path)]).await {
        Ok(_) | Err(MultiError::Failed { index: 1, reason: OpFailure::NoNode, .. }) => {
            Ok(WriteOutcome::Stored { zxid: None })
        }
        Err(error) => Err(error),
    }
}

fn delete(path: &str) -> Op {
    Op::Delete { path: path.to_owned(), version: None }
}

fn depth(path: &str) -> usize {
    path.matches('/').count()
}

fn failed_read(error: ReadError) -> MultiError {
    match error {
        ReadError::SessionEnded => MultiError::SessionEnded,
        other => MultiError::Refused(other.to_string()),
    }
}

/// The znode, if it exists, and everything below it.
async fn descendants(zookeeper: &ZooKeeper, root: &str) -> Result<Vec<String>, ReadError> {
    let mut all = Vec::new();
    let mut level = vec![root.to_owned()];
    while !level.is_empty() {
        let children = zookeeper.children_many(&level).await?;
        let mut next = Vec::new();
        for (path, children) in level.into_iter().zip(children) {
            if let Some(children) = children {
                next.extend(children.into_iter().map(|child| format!("{path}/{child}")));
                all.push(path);
            }
        }
        level = next;
    }
    Ok(all)
}
