//! Writes a fetch answer as pieces: what is between the records is encoded here, the records themselves are passed on
//! as they were read. The general encoder would copy them all into one buffer.

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;
use zurau_common::id::{BrokerId, LeaderEpoch};
use zurau_common::wire::server::{Frame, Piece, Stream};

use crate::handlers::leader_hint::TopicRef;
use crate::log::{AbortedTransaction, EpochEnd};
use crate::metadata::BrokerAddress;

/// Records up to this size are copied between their neighbours: one more piece would cost more.
const COPIED_BYTES_MAX: usize = 512;

/// First version with compact strings and tagged fields.
const FLEXIBLE_FROM: i16 = 12;

/// Whole batches.
pub(super) enum Records {
    Read(Bytes),
    /// Read while the answer is written.
    Stream(Box<dyn Stream>),
}

impl Records {
    pub(super) const NONE: Self = Self::Read(Bytes::new());

    /// Size in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Stream(stream) => stream.remaining(),
        }
    }
}

/// One partition of an answer. Offsets of −1 are unknown.
pub(super) struct PartitionAnswer {
    pub(super) partition: i32,
    pub(super) error_code: i16,
    pub(super) high_watermark: i64,
    pub(super) last_stable_offset: i64,
    pub(super) log_start_offset: i64,
    pub(super) diverging: Option<EpochEnd>,
    pub(super) current_leader: Option<(BrokerId, LeaderEpoch)>,
    /// Where the consumer shall read instead (KIP-392).
    pub(super) preferred_read_replica: Option<BrokerId>,
    /// `None`: the reader did not ask for committed records only.
    pub(super) aborted: Option<Vec<AbortedTransaction>>,
    pub(super) records: Records,
}

impl PartitionAnswer {
    pub(super) fn refused(partition: i32, error_code: i16) -> Self {
        Self {
            partition,
            error_code,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging: None,
            current_leader: None,
            preferred_read_replica: None,
            aborted: Some(Vec::new()),
            records: Records::NONE,
        }
    }
}

/// A broker's address as the answer names it.
pub(super) type Endpoint<'a> = (BrokerId, &'a BrokerAddress, Option<&'a str>);

/// A whole answer.
pub(super) struct FetchAnswer<'a> {
    pub(super) error_code: i16,
    pub(super) session_id: i32,
    /// Consecutive partitions of one topic stand together.
    pub(super) partitions: Vec<(&'a TopicRef, PartitionAnswer)>,
    pub(super) endpoints: Vec<Endpoint<'a>>,
}

/// The framed answer.
pub(super) fn encode(answer: FetchAnswer<'_>, version: i16, correlation_id: i32) -> Frame {
    let mut writer = Writer { version, pieces: Vec::new(), open: BytesMut::with_capacity(256) };
    writer.open.put_i32(correlation_id);
    writer.tags_end();
    writer.open.put_i32(0); // throttle time
    if 7 <= version {
        writer.open.put_i16(answer.error_code);
        writer.open.put_i32(answer.session_id);
    }
    writer.topics(answer.partitions);
    writer.endpoints(&answer.endpoints);
    writer.finish()
}

struct Writer {
    version: i16,
    pieces: Vec<Piece>,
    open: BytesMut,
}

impl Writer {
    fn is_flexible(&self) -> bool {
        FLEXIBLE_FROM <= self.version
    }

    fn varint(&mut self, mut value: usize) {
        while 0x80 <= value {
            self.open.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.open.put_u8(value as u8);
    }

    /// Length of an array, of bytes; `None` is null.
    fn length(&mut self, length: Option<usize>) {
        if self.is_flexible() {
            self.varint(length.map_or(0, |length| length + 1));
        } else {
            let length = length.map_or(-1, |length| i32::try_from(length).unwrap_or(i32::MAX));
            self.open.put_i32(length);
        }
    }

    fn string(&mut self, text: Option<&str>) {
        if self.is_flexible() {
            self.varint(text.map_or(0, |text| text.len() + 1));
        } else {
            self.open.put_i16(text.map_or(-1, |text| i16::try_from(text.len()).unwrap_or(i16::MAX)));
        }
        self.open.put_slice(text.unwrap_or_default().as_bytes());
    }

    /// An empty list of tagged fields.
    fn tags_end(&mut self) {
        if self.is_flexible() {
            self.open.put_u8(0);
        }
    }

    fn topics(&mut self, mut partitions: Vec<(&TopicRef, PartitionAnswer)>) {
        let counts: Vec<usize> =
            partitions.chunk_by(|left, right| left.0 == right.0).map(<[_]>::len).collect();
        self.length(Some(counts.len()));
        let mut partitions = partitions.drain(..).peekable();
        for count in counts {
            match partitions.peek().map(|(topic, _)| *topic) {
                Some(TopicRef::Name(name)) if self.version < 13 => self.string(Some(name)),
                Some(TopicRef::Id(id)) => self.open.put_slice(id.0.as_bytes()),
                Some(TopicRef::Name(_)) | None => self.open.put_slice(Uuid::nil().as_bytes()),
            }
            self.length(Some(count));
            for (_, partition) in partitions.by_ref().take(count) {
                self.partition(partition);
            }
            self.tags_end();
        }
    }

    fn partition(&mut self, partition: PartitionAnswer) {
        self.open.put_i32(partition.partition);
        self.open.put_i16(partition.error_code);
        self.open.put_i64(partition.high_watermark);
        self.open.put_i64(partition.last_stable_offset);
        if 5 <= self.version {
            self.open.put_i64(partition.log_start_offset);
        }
        self.length(partition.aborted.as_ref().map(Vec::len));
        for aborted in partition.aborted.iter().flatten() {
            self.open.put_i64(aborted.producer_id);
            self.open.put_i64(aborted.first_offset);
            self.tags_end();
        }
        if 11 <= self.version {
            self.open.put_i32(partition.preferred_read_replica.map_or(-1, |broker| broker.0));
        }
        self.records(partition.records);
        self.partition_tags(partition.diverging, partition.current_leader);
    }

    fn records(&mut self, records: Records) {
        self.length(Some(records.len()));
        let piece = match records {
            Records::Read(bytes) if bytes.len() <= COPIED_BYTES_MAX => {
                self.open.put_slice(&bytes);
                return;
            }
            Records::Read(bytes) => Piece::Bytes(bytes),
            Records::Stream(stream) => Piece::Stream(stream),
        };
        self.pieces.push(Piece::Bytes(self.open.split().freeze()));
        self.pieces.push(piece);
    }

    fn partition_tags(
        &mut self,
        diverging: Option<EpochEnd>,
        current_leader: Option<(BrokerId, LeaderEpoch)>,
    ) {
        if !self.is_flexible() {
            return;
        }
        let count = usize::from(diverging.is_some()) + usize::from(current_leader.is_some());
        self.varint(count);
        if let Some(end) = diverging {
            self.open.put_slice(&[0, 4 + 8 + 1]); // tag, size
            self.open.put_i32(end.leader_epoch);
            self.open.put_i64(end.end_offset);
            self.tags_end();
        }
        if let Some((leader, epoch)) = current_leader {
            self.open.put_slice(&[1, 4 + 4 + 1]); // tag, size
            self.open.put_i32(leader.0);
            self.open.put_i32(epoch.0);
            self.tags_end();
        }
    }

    fn endpoints(&mut self, endpoints: &[Endpoint<'_>]) {
        if self.version < 16 || endpoints.is_empty() {
            self.tags_end();
            return;
        }
        // The size stands in front, so the field is written apart.
        let mut field = Self { version: self.version, pieces: Vec::new(), open: BytesMut::new() };
        field.length(Some(endpoints.len()));
        for (id, address, rack) in endpoints {
            field.open.put_i32(id.0);
            field.string(Some(&address.host));
            field.open.put_i32(i32::from(address.port));
            field.string(*rack);
            field.tags_end();
        }
        self.open.put_slice(&[1, 0]); // one tagged field, its tag
        self.varint(field.open.len());
        self.open.put_slice(&field.open);
    }

    fn finish(mut self) -> Frame {
        self.pieces.push(Piece::Bytes(self.open.freeze()));
        let size: usize = self.pieces.iter().map(Piece::size).sum();
        let size = i32::try_from(size).expect("fetch.max.bytes keeps answers below 2 GiB");
        self.pieces.insert(0, Piece::Bytes(Bytes::copy_from_slice(&size.to_be_bytes())));
        Frame(self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::fetch_response::{
        self, FetchableTopicResponse, NodeEndpoint, PartitionData,
    };
    use kafka_protocol::messages::{FetchResponse, ResponseHeader};
    use kafka_protocol::protocol::{Decodable as _, StrBytes};
    use zurau_common::id::TopicId;
    use zurau_common::wire::control::to_wire_topic;

    use super::*;

    fn whole(partition: i32, records: usize) -> PartitionAnswer {
        PartitionAnswer {
            partition,
            error_code: 6,
            high_watermark: 100,
            last_stable_offset: 90,
            log_start_offset: 5,
            diverging: Some(EpochEnd { leader_epoch: 3, end_offset: 44 }),
            current_leader: Some((BrokerId(2), LeaderEpoch(9))),
            preferred_read_replica: Some(BrokerId(3)),
            aborted: Some(vec![AbortedTransaction {
                producer_id: 7,
                first_offset: 8,
                last_offset: 9,
                last_stable_offset: 9,
            }]),
            records: Records::Read(Bytes::from(vec![9; records])),
        }
    }

    struct Nines(usize);

    impl Stream for Nines {
        fn remaining(&self) -> usize {
            self.0
        }

        fn next_at_once(&mut self) -> Result<Option<Bytes>, String> {
            self.next_blocking().map(Some)
        }

        fn next_blocking(&mut self) -> Result<Bytes, String> {
            let taken = self.0.min(1000);
            self.0 -= taken;
            Ok(Bytes::from(vec![9; taken]))
        }
    }

    /// The frame as it goes over the wire.
    fn written(frame: Frame) -> Bytes {
        let mut bytes = Vec::new();
        for piece in frame.0 {
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(&piece),
                Piece::File(_) => panic!("no stream of these tests gives any"),
                Piece::Stream(mut stream) => {
                    while 0 < stream.remaining() {
                        bytes.extend_from_slice(&stream.next_blocking().unwrap());
                    }
                }
            }
        }
        Bytes::from(bytes)
    }

    fn plain(partition: i32) -> PartitionAnswer {
        PartitionAnswer { aborted: None, ..PartitionAnswer::refused(partition, 0) }
    }

    fn expected_partition(answer: &PartitionAnswer, version: i16) -> PartitionData {
        let mut data = PartitionData::default()
            .with_partition_index(answer.partition)
            .with_error_code(answer.error_code)
            .with_high_watermark(answer.high_watermark)
            .with_last_stable_offset(answer.last_stable_offset)
            .with_log_start_offset(if 5 <= version { answer.log_start_offset } else { -1 })
            .with_aborted_transactions(answer.aborted.as_ref().map(|aborted| {
                let wire = |one: &AbortedTransaction| {
                    fetch_response::AbortedTransaction::default()
                        .with_producer_id(one.producer_id.into())
                        .with_first_offset(one.first_offset)
                };
                aborted.iter().map(wire).collect()
            }))
            .with_preferred_read_replica(
                answer.preferred_read_replica.filter(|_| 11 <= version).map_or(-1, |broker| broker.0).into(),
            )
            .with_records(Some(match &answer.records {
                Records::Read(bytes) => bytes.clone(),
                Records::Stream(stream) => Bytes::from(vec![9; stream.remaining()]),
            }));
        if let Some(end) = answer.diverging.filter(|_| 12 <= version) {
            data.diverging_epoch.epoch = end.leader_epoch;
            data.diverging_epoch.end_offset = end.end_offset;
        }
        if let Some((leader, epoch)) = answer.current_leader.filter(|_| 12 <= version) {
            data.current_leader.leader_id = leader.0.into();
            data.current_leader.leader_epoch = epoch.0;
        }
        data
    }

    #[test]
    fn a_client_decodes_in_every_version_what_was_meant() {
        let (id, name) = (TopicId(Uuid::from_u128(5)), "topic");
        let address = BrokerAddress { listener: "L".into(), host: "h".into(), port: 9092 };
        for version in 4..=17 {
            let topics: Vec<TopicRef> = if 13 <= version {
                vec![TopicRef::Id(id), TopicRef::Id(TopicId(Uuid::from_u128(6)))]
            } else {
                vec![TopicRef::Name(name.into()), TopicRef::Name("other".into())]
            };
            let streamed =
                PartitionAnswer { records: Records::Stream(Box::new(Nines(70_000))), ..whole(2, 0) };
            let partitions = vec![
                (&topics[0], whole(0, 100_000)),
                (&topics[0], whole(1, 3)),
                (&topics[0], streamed),
                (&topics[1], plain(200)),
            ];
            let answer = FetchAnswer {
                error_code: 70,
                session_id: 11,
                endpoints: vec![(BrokerId(2), &address, Some("r"))],
                partitions,
            };
            let topic = |index: usize, partitions: &[(&TopicRef, PartitionAnswer)]| {
                let topic = FetchableTopicResponse::default().with_partitions(
                    partitions.iter().map(|(_, answer)| expected_partition(answer, version)).collect(),
                );
                match &topics[index] {
                    TopicRef::Id(id) => topic.with_topic_id(id.0),
                    TopicRef::Name(name) => topic.with_topic(to_wire_topic(name)),
                }
            };
            let mut expected = FetchResponse::default()
                .with_responses(vec![topic(0, &answer.partitions[..3]), topic(1, &answer.partitions[3..])]);
            if 7 <= version {
                expected = expected.with_error_code(70).with_session_id(11);
            }
            if 16 <= version {
                let endpoint = NodeEndpoint::default()
                    .with_node_id(2.into())
                    .with_host("h".into())
                    .with_port(9092)
                    .with_rack(Some(StrBytes::from_static_str("r")));
                expected = expected.with_node_endpoints(vec![endpoint]);
            }

            let frame = encode(answer, version, 77);
            assert_eq!(frame.0.len(), 6, "large records are pieces of their own");
            let mut bytes = written(frame);
            let size = i32::from_be_bytes(bytes.split_to(4)[..].try_into().unwrap());
            assert_eq!(usize::try_from(size).unwrap(), bytes.len());
            let header = ResponseHeader::decode(&mut bytes, i16::from(12 <= version)).unwrap();
            assert_eq!(header.correlation_id, 77);
            let decoded = FetchResponse::decode(&mut bytes, version).unwrap();
            assert!(bytes.is_empty(), "v{version}");
            assert_eq!(decoded, expected, "v{version}");
        }
    }
}
