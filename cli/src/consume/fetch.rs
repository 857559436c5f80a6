//! Reads partitions from where a consumer stands: one fetch per leader and round, batches unpacked, and what is not for
//! consumers left out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::future::join_all;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use zurau_broker::log::inspect::{InspectedBatch, InspectedRecord};
use zurau_broker::log::{Batches, check_crc};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use crate::client::{Client, Cluster, EARLIEST, Refused};

/// How long a broker waits for records before it answers that there are none.
const WAIT_MS: i32 = 500;
const FETCH_BYTES_MAX: i32 = 32 << 20;
const PARTITION_BYTES_MAX: i32 = 4 << 20;

/// Where the next record of each partition is looked for.
pub(super) type Positions = BTreeMap<TopicPartition, i64>;

/// Reads partitions; remembers who leads them.
pub(super) struct Reader {
    committed_only: bool,
    cluster: Option<Cluster>,
}

/// What a round brought for one partition.
pub(super) struct Read {
    pub(super) id: TopicPartition,
    pub(super) records: Vec<InspectedRecord>,
    /// Where to go on, behind what was left out too.
    pub(super) next_offset: i64,
}

impl Reader {
    pub(super) fn new(committed_only: bool) -> Self {
        Self { committed_only, cluster: None }
    }

    /// One round over all partitions; waits a moment when there is nothing.
    ///
    /// # Errors
    /// A broker refuses for good, a partition stays without a leader, or a batch is damaged.
    pub(super) async fn read(&mut self, client: &mut Client, positions: &Positions) -> Result<Vec<Read>> {
        let names: BTreeSet<String> = positions.keys().map(|id| id.topic.to_string()).collect();
        let names: Vec<String> = names.into_iter().collect();
        let committed_only = self.committed_only;
        let answers = client
            .retry(async |client| {
                // Taken out by a fetch that fails: whatever went wrong, the leader may be another one now.
                self.fetch(client, &names, positions).await
            })
            .await?;
        let mut reads = Vec::new();
        for (id, data) in answers {
            let position = positions.get(&id).copied().unwrap_or(0);
            let data = match data {
                Ok(data) => data,
                Err(next_offset) => {
                    eprintln!("{id}: offset {position} is gone; going on at {next_offset}");
                    reads.push(Read { id, records: Vec::new(), next_offset });
                    continue;
                }
            };
            let (records, next_offset) =
                unpack(&data, position, committed_only).with_context(|| id.to_string())?;
            reads.push(Read { id, records, next_offset });
        }
        Ok(reads)
    }

    /// Asks all leaders at the same time. `Err(offset)` for a partition whose position is outside of its log.
    async fn fetch(
        &mut self,
        client: &mut Client,
        names: &[String],
        positions: &Positions,
    ) -> Result<Vec<(TopicPartition, Result<PartitionData, i64>)>> {
        let cluster = match self.cluster.take() {
            Some(cluster) => cluster,
            None => client.cluster(Some(names)).await?,
        };
        let mut by_leader: BTreeMap<i32, Positions> = BTreeMap::new();
        for (id, offset) in positions {
            by_leader.entry(cluster.leader(id)?).or_default().insert(id.clone(), *offset);
        }
        let mut asked = Vec::new();
        for (leader, positions) in by_leader {
            asked.push((client.broker(leader).await?, request(&positions, self.committed_only)));
        }
        let calls = asked.iter().map(|(connection, request)| connection.call(12, request));
        let mut found = Vec::new();
        for answer in join_all(calls).await {
            let answer = answer?;
            Refused::check(answer.error_code, None, || "the fetch".to_owned())?;
            for topic in answer.responses {
                for data in topic.partitions {
                    let id = TopicPartition::new(topic.topic.as_str(), data.partition_index);
                    match Refused::check(data.error_code, None, || id.to_string()) {
                        Ok(()) => found.push((id, Ok(data))),
                        Err(refused) if refused.rejection == Rejection::OffsetOutOfRange => {
                            let start = Positions::from([(id.clone(), EARLIEST)]);
                            let start = client.offsets(&start, false).await?.remove(&id).flatten();
                            found.push((id, Err(start.unwrap_or(0))));
                        }
                        Err(refused) => return Err(refused.into()),
                    }
                }
            }
        }
        self.cluster = Some(cluster);
        Ok(found)
    }
}

fn request(positions: &Positions, committed_only: bool) -> FetchRequest {
    let mut topics: BTreeMap<&str, Vec<FetchPartition>> = BTreeMap::new();
    for (id, offset) in positions {
        let partition = FetchPartition::default()
            .with_partition(id.partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(PARTITION_BYTES_MAX);
        topics.entry(&id.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        FetchTopic::default().with_topic(to_wire_topic(name)).with_partitions(partitions)
    });
    FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(WAIT_MS)
        .with_min_bytes(1)
        .with_max_bytes(FETCH_BYTES_MAX)
        .with_isolation_level(i8::from(committed_only))
        .with_session_epoch(-1)
        .with_topics(topics.collect())
}

/// The records from `position` on, and where to go on. Markers are left out and, for a reader of what is committed, the
/// records of aborted transactions.
fn unpack(data: &PartitionData, position: i64, committed_only: bool) -> Result<(Vec<InspectedRecord>, i64)> {
    let bytes: Bytes = data.records.clone().unwrap_or_default();
    let mut aborted: Vec<(i64, i64)> = match (&data.aborted_transactions, committed_only) {
        (Some(found), true) => found.iter().map(|one| (one.first_offset, one.producer_id.0)).collect(),
        _ => Vec::new(),
    };
    aborted.sort_unstable();
    let mut aborted = aborted.into_iter().peekable();
    let mut aborting: BTreeSet<i64> = BTreeSet::new();
    let mut records = Vec::new();
    let mut next = position;
    for batch in Batches::new(&bytes) {
        let (header, range) = batch?;
        while let Some((_, producer)) = aborted.next_if(|(first, _)| *first <= header.last_offset()) {
            aborting.insert(producer);
        }
        next = next.max(header.next_offset());
        let bytes = bytes[range].to_vec();
        let crc = check_crc(&header, &bytes);
        let batch = InspectedBatch { position: 0, header, bytes, crc };
        if header.is_control() {
            // The marker ends the transaction; the producer's next one may be committed.
            aborting.remove(&header.producer_id);
            continue;
        }
        if header.is_transactional() && aborting.contains(&header.producer_id) {
            continue;
        }
        batch.crc?;
        let found =
            batch.records().map_err(|why| anyhow::anyhow!("the batch at {}: {why}", header.base_offset))?;
        records.extend(found.into_iter().filter(|record| position <= record.offset));
    }
    Ok((records, next))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::fetch_response::AbortedTransaction;
    use kafka_protocol::records::{
        Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
    };

    use super::*;

    /// A batch of two records, or of a marker.
    fn batch(first: i64, producer_id: i64, transactional: bool, control: bool) -> BytesMut {
        let count = if control { 1 } else { 2 };
        let record = |number: i64| Record {
            transactional,
            control,
            partition_leader_epoch: 0,
            producer_id,
            producer_epoch: 0,
            timestamp_type: TimestampType::Creation,
            offset: first + number,
            sequence: (first + number) as i32,
            timestamp: 5,
            key: control.then(|| Bytes::from_static(&[0, 0, 0, 0])),
            value: Some(format!("{}", first + number).into()),
            headers: Default::default(),
        };
        let records: Vec<Record> = (0..count).map(record).collect();
        let mut bytes = BytesMut::new();
        let options = RecordEncodeOptions { version: 2, compression: Compression::None };
        RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
        bytes
    }

    fn offsets(data: &PartitionData, position: i64, committed_only: bool) -> (Vec<i64>, i64) {
        let (records, next) = unpack(data, position, committed_only).unwrap();
        (records.iter().map(|record| record.offset).collect(), next)
    }

    #[test]
    fn aborted_records_and_markers_are_left_out() {
        let pieces = [
            batch(0, -1, false, false),
            batch(2, 7, true, false),
            batch(4, 8, true, false),
            batch(6, 7, true, true),
            batch(7, 7, true, false),
            batch(9, 8, true, true),
        ];
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let aborted = AbortedTransaction::default().with_producer_id(7.into()).with_first_offset(2);
        let data = PartitionData::default()
            .with_records(Some(bytes.into()))
            .with_aborted_transactions(Some(vec![aborted]));
        assert_eq!(offsets(&data, 0, true), (vec![0, 1, 4, 5, 7, 8], 10));
        assert_eq!(offsets(&data, 0, false), (vec![0, 1, 2, 3, 4, 5, 7, 8], 10));
        assert_eq!(offsets(&data, 5, true), (vec![5, 7, 8], 10), "a batch begins before the position");
    }

    #[test]
    fn a_cut_batch_waits_and_a_damaged_one_is_an_error() {
        let whole = batch(0, -1, false, false).freeze();
        let cut = [&whole[..], &whole[..30]].concat();
        let data = PartitionData::default().with_records(Some(cut.into()));
        assert_eq!(offsets(&data, 0, false), (vec![0, 1], 2));
        let mut damaged = whole.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        let data = PartitionData::default().with_records(Some(damaged.into()));
        assert!(unpack(&data, 0, false).is_err());
        assert_eq!(offsets(&PartitionData::default(), 4, false), (vec![], 4));
    }
}
