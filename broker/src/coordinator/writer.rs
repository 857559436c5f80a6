//! Appends what a coordinator's core writes, and reports back what was committed, in the order of the log. Writes that
//! come together go into one batch.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tracing::info;
use zurau_common::rejection::Rejection;

use super::batch::{BatchStyle, KeyValue, Producer, encode_batch, record_bytes_max};
use super::offices::Office;
use super::step::{WriteId, WriteOutcome};
use crate::log::{Marker, Verification};
use crate::partition::{Acks, Append};
use crate::shared::wall_clock_ms;

/// Records of several writes are put into one batch up to this size.
const BATCH_BYTES: usize = 256 << 10;

/// Writes of one batch, each with its number of records.
type Writes = Vec<(WriteId, usize)>;

/// What became of a batch. `first_offset` is of no meaning if it is not in the log.
struct Reported {
    writes: Writes,
    first_offset: i64,
    committed: Result<(), Rejection>,
}

/// How a coordinator writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteSettings {
    /// With less than all, the coordinator may say what a change of leaders takes back.
    pub(crate) acks: Acks,
    /// 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub(crate) compression: u8,
}

/// What becomes one batch.
#[derive(Default)]
struct Gathered {
    writes: Writes,
    records: Vec<KeyValue>,
    bytes: usize,
}

/// Writes into the partition of one coordinator.
pub(crate) struct Writer {
    office: Office,
    settings: WriteSettings,
    gathered: Gathered,
    /// In the order of the log.
    in_flight: FuturesOrdered<BoxFuture<'static, Reported>>,
}

impl Writer {
    pub(crate) fn new(office: Office, settings: WriteSettings) -> Self {
        Self { office, settings, gathered: Gathered::default(), in_flight: FuturesOrdered::new() }
    }

    /// Whether [`Writer::next`] has something to wait for.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The next writes that are decided, each with the offset of its first record, and what became of them; `None` when
    /// that is not known: the log has them, and whether they stay is decided by others. Cancel safe; never ends while
    /// [`Writer::is_waiting`] is false.
    pub(crate) async fn next(&mut self) -> Option<(Vec<(WriteId, i64)>, WriteOutcome)> {
        let Some(Reported { writes, first_offset, committed }) = self.in_flight.next().await else {
            return std::future::pending().await;
        };
        let outcome = match committed {
            Ok(()) => WriteOutcome::Committed,
            Err(Rejection::NotEnoughReplicasAfterAppend) => WriteOutcome::CommittedBelowMinimum,
            Err(
                rejection @ (Rejection::NotEnoughReplicas
                | Rejection::MessageTooLarge
                | Rejection::InvalidProducerEpoch
                | Rejection::InvalidTxnState
                | Rejection::TransactionCoordinatorFenced),
            ) => WriteOutcome::Refused(rejection),
            Err(rejection) => {
                info!(
                    partition = %self.office.partition.id(), leader_epoch = %self.office.leader_epoch, %rejection,
                    "a coordinator stops: a write was not confirmed"
                );
                return None;
            }
        };
        let mut next_offset = first_offset;
        let placed = writes.into_iter().map(|(write, records)| {
            let at = next_offset;
            next_offset += i64::try_from(records).unwrap_or(i64::MAX);
            (write, at)
        });
        Some((placed.collect(), outcome))
    }

    /// Takes a write, to be appended at the next [`Writer::flush`] at the latest.
    pub(crate) fn put(&mut self, write: WriteId, records: Vec<KeyValue>) {
        let bytes: usize = records.iter().map(record_bytes_max).sum();
        if self.batch_bytes_max() < self.gathered.bytes + bytes {
            self.flush();
        }
        self.gathered.writes.push((write, records.len()));
        self.gathered.records.extend(records);
        self.gathered.bytes += bytes;
    }

    fn batch_bytes_max(&self) -> usize {
        let topic = self.office.partition.with_log(|log| log.config().max_message_bytes).unwrap_or(i32::MAX);
        // Half of it, because a batch has a header.
        BATCH_BYTES.min(usize::try_from(topic).unwrap_or(0) / 2)
    }

    /// Appends what was put.
    pub(crate) fn flush(&mut self) {
        if self.gathered.writes.is_empty() {
            return;
        }
        let Gathered { writes, records, .. } = std::mem::take(&mut self.gathered);
        let style =
            BatchStyle { time_ms: wall_clock_ms(), producer: None, compression: self.settings.compression };
        let batch = encode_batch(&records, style);
        self.append(&Append::by_coordinator(batch, self.settings.acks), style.time_ms, writes);
    }

    /// Appends records of a transaction, as a batch of their own.
    pub(crate) fn append_in_transaction(
        &mut self,
        write: WriteId,
        records: &[KeyValue],
        producer: Producer,
        verification: Verification,
    ) {
        self.flush();
        let (time_ms, compression) = (wall_clock_ms(), self.settings.compression);
        let batch = encode_batch(records, BatchStyle { time_ms, producer: Some(producer), compression });
        let what = Append { verification, ..Append::by_coordinator(batch, self.settings.acks) };
        self.append(&what, time_ms, vec![(write, records.len())]);
    }

    /// Appends a transaction's marker.
    pub(crate) fn append_marker(
        &mut self,
        write: WriteId,
        producer: Producer,
        (marker, verification): (Marker, Verification),
    ) {
        self.flush();
        let time_ms = wall_clock_ms();
        let batch = marker.encode((producer.id, producer.epoch), time_ms);
        let what = Append { verification, ..Append::by_coordinator(batch, Acks::All) };
        self.append(&what, time_ms, vec![(write, 1)]);
    }

    fn append(&mut self, what: &Append, now_ms: i64, writes: Writes) {
        let appended = self.office.partition.append_in_epoch(what, self.office.leader_epoch, now_ms);
        self.in_flight.push_back(match appended {
            Ok(appended) => Box::pin(async move {
                let committed = match appended.committed {
                    Some(committed) => committed.await,
                    None => Ok(()),
                };
                Reported { writes, first_offset: appended.first_offset, committed }
            }),
            Err(refused) => {
                let rejection = match refused.rejection {
                    Rejection::RecordListTooLarge => Rejection::MessageTooLarge,
                    other => other,
                };
                let reported = Reported { writes, first_offset: -1, committed: Err(rejection) };
                Box::pin(std::future::ready(reported))
            }
        });
    }
}
