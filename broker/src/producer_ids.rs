//! Producer ids, unique in the cluster: each broker takes blocks of 1000 from `/latest_producer_id_block` by
//! compare-and-set and hands them out from memory. Ids of a block that a broker did not use up are never used.

use tokio::sync::Mutex;
use tracing::warn;
use zurau_common::id::BrokerId;
use zurau_common::rejection::Rejection;
use zurau_common::zk::controller::ProducerIdBlock;
use zurau_common::zk::op::{Lifetime, MultiError, Node, Op, OpFailure};
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

/// Ids taken at once.
const BLOCK_SIZE: i64 = 1000;

/// How often a block is asked for before the client is told to try again.
const ATTEMPTS_MAX: usize = 20;

/// This broker's source of producer ids.
#[derive(Debug, Default)]
pub(crate) struct ProducerIds {
    /// The rest of the current block. The lock is held while a block is fetched: others wait for it anyway.
    left: Mutex<Option<std::ops::RangeInclusive<i64>>>,
}

impl ProducerIds {
    /// An id that no other producer of the cluster ever gets.
    ///
    /// # Errors
    /// [`Rejection::CoordinatorLoadInProgress`] (clients ask again) when ZooKeeper gives no block now, and
    /// [`Rejection::UnknownServerError`] when there are no ids left or the znode is damaged.
    pub(crate) async fn next(
        &self,
        broker: BrokerId,
        zookeeper: Option<ZooKeeper>,
    ) -> Result<i64, Rejection> {
        let mut left = self.left.lock().await;
        if let Some(id) = left.as_mut().and_then(Iterator::next) {
            return Ok(id);
        }
        let zookeeper = zookeeper.ok_or(Rejection::CoordinatorLoadInProgress)?;
        let block = take_block(broker, &zookeeper).await?;
        let mut ids = block.start..=block.end;
        let first = ids.next().ok_or(Rejection::UnknownServerError)?;
        *left = Some(ids);
        Ok(first)
    }
}

async fn take_block(broker: BrokerId, zookeeper: &ZooKeeper) -> Result<ProducerIdBlock, Rejection> {
    let path = Znode::ProducerIdBlock.path();
    for _ in 0..ATTEMPTS_MAX {
        let node = zookeeper.get(&path).await.map_err(|error| {
            warn!(%error, "no block of producer ids");
            Rejection::CoordinatorLoadInProgress
        })?;
        let block = next_block(broker, node.as_ref())?;
        match zookeeper.multi(&[block_write(node.as_ref(), &block)]).await {
            Ok(_) => return Ok(block),
            // Another broker was faster: look again.
            Err(MultiError::Failed {
                reason: OpFailure::BadVersion | OpFailure::NodeExists | OpFailure::NoNode,
                ..
            }) => {}
            // It may have been stored. Taking the next one wastes at most this block.
            Err(MultiError::Unknown) => {}
            Err(error) => {
                warn!(%error, "no block of producer ids");
                return Err(Rejection::CoordinatorLoadInProgress);
            }
        }
    }
    Err(Rejection::CoordinatorLoadInProgress)
}

/// The block after the one that the znode names.
fn next_block(broker: BrokerId, node: Option<&Node>) -> Result<ProducerIdBlock, Rejection> {
    let start = match node {
        None => 0,
        Some(node) => {
            let last = ProducerIdBlock::decode(&node.data).map_err(|error| {
                warn!(%error, "no producer ids: mend the znode by hand, above every id ever used");
                Rejection::UnknownServerError
            })?;
            last.end.checked_add(1).ok_or(Rejection::UnknownServerError)?
        }
    };
    let end = start.checked_add(BLOCK_SIZE - 1).ok_or(Rejection::UnknownServerError)?;
    Ok(ProducerIdBlock { broker, start, end })
}

fn block_write(node: Option<&Node>, block: &ProducerIdBlock) -> Op {
    let (path, data) = (Znode::ProducerIdBlock.path(), block.encode());
    match node {
        None => Op::Create { path, data, lifetime: Lifetime::Persistent },
        Some(node) => Op::SetData { path, data, version: Some(node.version) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(data: Vec<u8>) -> Node {
        Node { data, version: 4, czxid: 1, mzxid: 2, ephemeral_owner: 0 }
    }

    #[test]
    fn blocks_follow_one_another() {
        let first = next_block(BrokerId(2), None).unwrap();
        assert_eq!((first.start, first.end), (0, 999));
        let second = next_block(BrokerId(3), Some(&node(first.encode()))).unwrap();
        assert_eq!((second.broker, second.start, second.end), (BrokerId(3), 1000, 1999));
        let write = block_write(Some(&node(first.encode())), &second);
        assert!(matches!(write, Op::SetData { version: Some(4), .. }), "by compare-and-set");
        assert!(matches!(block_write(None, &first), Op::Create { .. }));
    }

    #[test]
    fn damaged_and_used_up_znodes_give_no_ids() {
        let last = ProducerIdBlock { broker: BrokerId(1), start: i64::MAX - 10, end: i64::MAX - 5 };
        for data in [b"{".to_vec(), last.encode()] {
            assert_eq!(next_block(BrokerId(1), Some(&node(data))), Err(Rejection::UnknownServerError));
        }
    }
}
