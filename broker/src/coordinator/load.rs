//! Loading: the whole log of a coordinator's partition is replayed into a new core.
//!
//! It ends where the log ended when this broker took over, and not before that is committed: what the former leader
//! acknowledged is below that point, even where this broker's high watermark is not there yet. It ends too where a
//! read brings nothing new, because compaction may have taken the last records (GRP-04).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tracing::warn;
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::Rejection;

use super::stored::RecordProblem;
use crate::fetch_waiter::FetchWaiter;
use crate::log::{BatchHeader, Batches, HEADER_BYTES, Marker, Records, StorageError, decompress};
use crate::partition::{Isolation, Partition, ReadRequest, Reader};

/// Longest wait for the high watermark before the leadership is looked at again.
const COMMIT_WAIT: Duration = Duration::from_millis(500);

/// A core that is made of the records of its partition.
pub(crate) trait Replay: Send + Sized + 'static {
    /// Takes a record; `producer_id` if it belongs to a transaction, `at` its offset. False if the record is of a kind
    /// that is not handled here.
    ///
    /// # Errors
    /// Bytes that are not what their versions say.
    fn replay(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        producer_id: Option<i64>,
        at: i64,
    ) -> Result<bool, RecordProblem>;

    /// A transaction that has records in this partition ended here.
    fn replay_transaction_end(&mut self, producer_id: i64, commits: bool);
}

/// What a load came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) records: u64,
    /// Records of this topic that could not be understood; they are left out.
    pub(crate) skipped: u64,
}

/// Why a load ended without a result.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// This broker does not lead in that epoch any more.
    Over,
    Failed(String),
}

impl From<Rejection> for LoadError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotLeaderOrFollower | Rejection::FencedLeaderEpoch | Rejection::UnknownLeaderEpoch => {
                Self::Over
            }
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Replays the log. `chunk_bytes`: read at once; one batch may be larger.
pub(crate) async fn load<S: Replay>(
    partition: &Arc<Partition>,
    leader_epoch: LeaderEpoch,
    chunk_bytes: usize,
    mut shard: S,
) -> Result<(S, Loaded), LoadError> {
    let status = partition.status();
    let target = status.log_end_offset;
    let mut offset = status.log_start_offset;
    let mut loaded = Loaded::default();
    while offset < target {
        let answer = partition.read(&ReadRequest {
            offset,
            max_bytes: chunk_bytes,
            minimum_one_batch: true,
            current_leader_epoch: leader_epoch,
            last_fetched_epoch: LeaderEpoch::UNKNOWN,
            log_start: -1,
            reader: Reader::Consumer { isolation: Isolation::ReadUncommitted, may_follow: false },
        })?;
        if answer.plan.is_empty() {
            if target <= answer.high_watermark {
                break;
            }
            let waiter = FetchWaiter::new();
            partition.wait_for_data((&waiter, 0), answer.seen);
            // After the time the next read tells whether this broker still leads.
            let _ = timeout(COMMIT_WAIT, waiter.woken()).await;
            continue;
        }
        let (plan, reader) = (answer.plan, Arc::clone(partition));
        let replaying = tokio::task::spawn_blocking(move || {
            let unreadable = |error: StorageError| {
                let reason = error.to_string();
                reader.report(error);
                reason
            };
            let replayed = plan.read().map_err(unreadable).and_then(|bytes| {
                let mut loaded = loaded;
                let next = replay(&mut shard, &bytes, &mut loaded)?;
                Ok((next, loaded))
            });
            (shard, replayed)
        });
        let (returned, replayed) = replaying.await.map_err(|error| LoadError::Failed(error.to_string()))?;
        shard = returned;
        let (next, counted) = replayed.map_err(LoadError::Failed)?;
        loaded = counted;
        match next {
            Some(next) if offset < next => offset = next,
            _ => break,
        }
    }
    if partition.leads_in(leader_epoch) { Ok((shard, loaded)) } else { Err(LoadError::Over) }
}

/// Replays whole batches; returns the offset after the last.
pub(crate) fn replay(
    shard: &mut impl Replay,
    bytes: &Bytes,
    loaded: &mut Loaded,
) -> Result<Option<i64>, String> {
    let mut next = None;
    for batch in Batches::new(bytes) {
        let (header, range) = batch.map_err(|error| error.to_string())?;
        let body = bytes.slice(range.start + HEADER_BYTES..range.end);
        replay_batch(shard, &header, &body, loaded)
            .map_err(|reason| format!("the batch at offset {}: {reason}", header.base_offset))?;
        next = Some(header.next_offset());
    }
    Ok(next)
}

fn replay_batch(
    shard: &mut impl Replay,
    header: &BatchHeader,
    body: &Bytes,
    loaded: &mut Loaded,
) -> Result<(), String> {
    if header.is_control() {
        if let Some(marker) = Marker::parse(header, body) {
            shard.replay_transaction_end(header.producer_id, marker.commit);
        }
        return Ok(());
    }
    let producer_id = header.is_transactional().then_some(header.producer_id);
    let plain = decompress(header.compression(), body).map_err(|error| error.to_string())?;
    for record in Records::new(&plain, header.record_count) {
        let record = record.map_err(|_| "its records are malformed".to_owned())?;
        let offset = header.base_offset + i64::from(record.offset_delta);
        match shard.replay(record.key, record.value, producer_id, offset) {
            Ok(true) => loaded.records += 1,
            Ok(false) => loaded.skipped += 1,
            Err(problem) => {
                loaded.skipped += 1;
                warn!(offset, %problem, "a record of a coordinator's topic is left out");
            }
        }
    }
    Ok(())
}
