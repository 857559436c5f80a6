//! Appends what a coordinator's core writes, and reports back what was committed, in the order of the log. Writes that
//! come together go into one batch.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tracing::info;
use zurau_common::rejection::Rejection;

use super::batch::{KeyValue, encode_batch, record_bytes_max};
use super::offices::Office;
use super::step::{WriteId, WriteOutcome};
use crate::shared::wall_clock_ms;

/// Records of several writes are put into one batch up to this size.
const BATCH_BYTES: usize = 256 << 10;

type Reported = (Vec<WriteId>, Result<(), Rejection>);

/// What becomes one batch.
#[derive(Default)]
struct Gathered {
    writes: Vec<WriteId>,
    records: Vec<KeyValue>,
    bytes: usize,
}

/// Writes into the partition of one coordinator.
pub(crate) struct Writer {
    office: Office,
    gathered: Gathered,
    /// In the order of the log.
    in_flight: FuturesOrdered<BoxFuture<'static, Reported>>,
}

impl Writer {
    pub(crate) fn new(office: Office) -> Self {
        Self { office, gathered: Gathered::default(), in_flight: FuturesOrdered::new() }
    }

    /// Whether [`Writer::next`] has something to wait for.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The next writes that are decided, with what became of them; `None` when that is not known: the log has them, and
    /// whether they stay is decided by others. Cancel safe; never ends while [`Writer::is_waiting`] is false.
    pub(crate) async fn next(&mut self) -> Option<(Vec<WriteId>, WriteOutcome)> {
        let Some((writes, committed)) = self.in_flight.next().await else {
            return std::future::pending().await;
        };
        let outcome = match committed {
            Ok(()) => WriteOutcome::Committed,
            Err(Rejection::NotEnoughReplicasAfterAppend) => WriteOutcome::CommittedBelowMinimum,
            Err(rejection @ (Rejection::NotEnoughReplicas | Rejection::MessageTooLarge)) => {
                WriteOutcome::Refused(rejection)
            }
            Err(rejection) => {
                info!(
                    partition = %self.office.partition.id(), leader_epoch = %self.office.leader_epoch, %rejection,
                    "a coordinator stops: a write was not confirmed"
                );
                return None;
            }
        };
        Some((writes, outcome))
    }

    /// Takes a write, to be appended at the next [`Writer::flush`] at the latest.
    pub(crate) fn put(&mut self, write: WriteId, records: Vec<KeyValue>) {
        let bytes: usize = records.iter().map(record_bytes_max).sum();
        if self.batch_bytes_max() < self.gathered.bytes + bytes {
            self.flush();
        }
        self.gathered.writes.push(write);
        self.gathered.records.extend(records);
        self.gathered.bytes += bytes;
    }

    fn batch_bytes_max(&self) -> usize {
        let topic = self.office.partition.with_log(|log| log.config().max_message_bytes).unwrap_or(i32::MAX);
        // Half of it, because a batch has a header.
        BATCH_BYTES.min(usize::try_from(topic).unwrap_or(0) / 2)
    }

    pub(crate) fn flush(&mut self) {
        if self.gathered.writes.is_empty() {
            return;
        }
        let Gathered { writes, records, .. } = std::mem::take(&mut self.gathered);
        let now_ms = wall_clock_ms();
        let batch = encode_batch(&records, now_ms, None);
        let appended = self.office.partition.append_in_epoch(batch, self.office.leader_epoch, now_ms);
        self.in_flight.push_back(match appended {
            Ok(appended) => Box::pin(async move {
                let committed = match appended.committed {
                    Some(committed) => committed.await,
                    None => Ok(()),
                };
                (writes, committed)
            }),
            Err(refused) => {
                let rejection = match refused.rejection {
                    Rejection::RecordListTooLarge => Rejection::MessageTooLarge,
                    other => other,
                };
                Box::pin(std::future::ready((writes, Err(rejection))))
            }
        });
    }
}
