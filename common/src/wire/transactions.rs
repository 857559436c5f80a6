//! What the wire crate lacks of transactions of version 2 (KIP-890): Produce v12, TxnOffsetCommit v5, EndTxn v5.
//!
//! The first two are the versions before them, byte for byte; only their meaning differs ([`coded_as`]). EndTxn v5 adds
//! the producer of the next transaction to the answer.

use anyhow::{Result, bail};
use kafka_protocol::messages::{
    ApiKey, EndTxnRequest as RequestV4, EndTxnResponse as ResponseV4, ProducerId,
};
use kafka_protocol::protocol::buf::{ByteBuf, ByteBufMut};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, VersionRange};

use super::consumer_group::{put_tagged_fields, tagged_fields};

/// The last versions.
pub const PRODUCE_VERSION_MAX: i16 = 12;
pub const TXN_OFFSET_COMMIT_VERSION_MAX: i16 = 5;
pub const END_TXN_VERSION_MAX: i16 = 5;

const END_TXN_CARRIED: i16 = 4;
const VERSIONS: VersionRange = VersionRange { min: 0, max: END_TXN_VERSION_MAX };

/// The version that the wire crate codes as this one: another one only where the bytes are the same.
#[must_use]
pub fn coded_as(api_key: i16, version: i16) -> i16 {
    match (ApiKey::try_from(api_key), version) {
        (Ok(ApiKey::Produce), PRODUCE_VERSION_MAX)
        | (Ok(ApiKey::TxnOffsetCommit), TXN_OFFSET_COMMIT_VERSION_MAX) => version - 1,
        _ => version,
    }
}

/// EndTxn of every version; they differ in nothing but their encoding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndTxnRequest(pub RequestV4);

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct EndTxnResponse {
    /// What version 4 has.
    pub fields: ResponseV4,
    /// From version 5 on: who the producer is in its next transaction, −1 with an error.
    pub producer_id: ProducerId,
    pub producer_epoch: i16,
}

impl Default for EndTxnResponse {
    fn default() -> Self {
        Self { fields: ResponseV4::default(), producer_id: ProducerId(-1), producer_epoch: -1 }
    }
}

fn carried(version: i16) -> Result<i16> {
    match version {
        0..=END_TXN_VERSION_MAX => Ok(version.min(END_TXN_CARRIED)),
        _ => bail!("specified version not supported by this message type"),
    }
}

impl Encodable for EndTxnRequest {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, version: i16) -> Result<()> {
        self.0.encode(buf, carried(version)?)
    }

    fn compute_size(&self, version: i16) -> Result<usize> {
        self.0.compute_size(carried(version)?)
    }
}

impl Decodable for EndTxnRequest {
    fn decode<B: ByteBuf>(buf: &mut B, version: i16) -> Result<Self> {
        RequestV4::decode(buf, carried(version)?).map(Self)
    }
}

impl Message for EndTxnRequest {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl HeaderVersion for EndTxnRequest {
    fn header_version(version: i16) -> i16 {
        RequestV4::header_version(version)
    }
}

impl Request for EndTxnRequest {
    const KEY: i16 = ApiKey::EndTxn as i16;
    type Response = EndTxnResponse;
}

impl Encodable for EndTxnResponse {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, version: i16) -> Result<()> {
        if carried(version)? == version {
            return self.fields.encode(buf, version);
        }
        buf.put_i32(self.fields.throttle_time_ms);
        buf.put_i16(self.fields.error_code);
        buf.put_i64(self.producer_id.0);
        buf.put_i16(self.producer_epoch);
        put_tagged_fields(buf, &self.fields.unknown_tagged_fields)
    }

    fn compute_size(&self, version: i16) -> Result<usize> {
        const PRODUCER_BYTES: usize = 10;
        let carried = carried(version)?;
        let more = if carried == version { 0 } else { PRODUCER_BYTES };
        Ok(self.fields.compute_size(carried)? + more)
    }
}

impl Decodable for EndTxnResponse {
    fn decode<B: ByteBuf>(buf: &mut B, version: i16) -> Result<Self> {
        if carried(version)? == version {
            return Ok(Self { fields: ResponseV4::decode(buf, version)?, ..Self::default() });
        }
        let fields = ResponseV4::default()
            .with_throttle_time_ms(buf.try_get_i32()?)
            .with_error_code(buf.try_get_i16()?);
        let (producer_id, producer_epoch) = (ProducerId(buf.try_get_i64()?), buf.try_get_i16()?);
        let fields = fields.with_unknown_tagged_fields(tagged_fields(buf)?);
        Ok(Self { fields, producer_id, producer_epoch })
    }
}

impl Message for EndTxnResponse {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl HeaderVersion for EndTxnResponse {
    fn header_version(version: i16) -> i16 {
        ResponseV4::header_version(version)
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::{
        ProduceRequest, ProduceResponse, TransactionalId, TxnOffsetCommitRequest,
    };
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::wire::frame::{
        ApiVersion, RequestFrame, decode_body, decode_request_body, decode_response_body, encode_request,
        encode_response, is_known_version, parse_request, split_correlation_id,
    };

    const END_TXN: ApiVersion = ApiVersion { api_key: 26, api_version: 5 };

    fn request() -> EndTxnRequest {
        let fields = RequestV4::default()
            .with_transactional_id(TransactionalId(StrBytes::from_static_str("x")))
            .with_producer_id(ProducerId(7))
            .with_producer_epoch(3)
            .with_committed(true);
        EndTxnRequest(fields)
    }

    fn answer() -> EndTxnResponse {
        let fields = ResponseV4::default()
            .with_throttle_time_ms(1)
            .with_error_code(2)
            .with_unknown_tagged_field(9, Bytes::from_static(b"xy"));
        EndTxnResponse { fields, producer_id: ProducerId(7), producer_epoch: 4 }
    }

    fn encoded(message: &impl Encodable, version: i16) -> Bytes {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, version).unwrap();
        assert_eq!(bytes.len(), message.compute_size(version).unwrap());
        bytes.freeze()
    }

    #[test]
    fn the_end_of_a_transaction_is_as_kafka_writes_it() {
        let expected = b"\x02x\x00\x00\x00\x00\x00\x00\x00\x07\x00\x03\x01\x00";
        assert_eq!(encoded(&request(), 5)[..], expected[..]);
        let expected = b"\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x07\x00\x04\x01\x09\x02xy";
        assert_eq!(encoded(&answer(), 5)[..], expected[..]);
    }

    #[test]
    fn every_version_of_the_end_comes_back() {
        for version in 0..=END_TXN_VERSION_MAX {
            let api = ApiVersion { api_version: version, ..END_TXN };
            assert_eq!(decode_body::<EndTxnRequest>(encoded(&request(), version), api).unwrap(), request());
            let mut expected = answer();
            if version < 5 {
                (expected.producer_id, expected.producer_epoch) = (ProducerId(-1), -1);
            }
            if version < 3 {
                expected.fields.unknown_tagged_fields.clear();
            }
            let answered = decode_body::<EndTxnResponse>(encoded(&answer(), version), api).unwrap();
            assert_eq!(answered, expected, "v{version}");
        }
        for version in [-1, END_TXN_VERSION_MAX + 1] {
            assert!(request().encode(&mut BytesMut::new(), version).is_err());
            assert!(EndTxnResponse::decode(&mut Bytes::new(), version).is_err());
        }
    }

    #[test]
    fn cut_and_hostile_answers_are_refused() {
        let whole = encoded(&answer(), 5);
        for length in 0..whole.len() {
            assert!(decode_body::<EndTxnResponse>(whole.slice(..length), END_TXN).is_err(), "{length}");
        }
        // 2³¹ tagged fields, and one of 2³¹ bytes.
        for tail in [&[0xff, 0xff, 0xff, 0xff, 0x07][..], &[1, 9, 0xff, 0xff, 0xff, 0xff, 0x07]] {
            let hostile = [&whole[..16], tail].concat();
            assert!(decode_body::<EndTxnResponse>(hostile.into(), END_TXN).is_err());
        }
    }

    #[test]
    fn versions_of_the_same_bytes_are_framed_like_the_ones_before_them() {
        let client = StrBytes::from_static_str("c");
        let produce = ProduceRequest::default().with_acks(-1).with_timeout_ms(9);
        let frames: Vec<Bytes> =
            [11, 12].map(|version| encode_request(version, 1, &client, &produce).unwrap()).into();
        assert_eq!(frames[0][8..], frames[1][8..], "behind the version of the header");
        let frame = parse_request(frames[1].slice(4..)).unwrap();
        assert_eq!(frame.api_version, 12);
        assert_eq!(decode_request_body::<ProduceRequest>(&frame).unwrap(), produce);
        let commit = TxnOffsetCommitRequest::default().with_producer_epoch(3);
        let sent = encode_request(5, 1, &client, &commit).unwrap();
        let frame: RequestFrame = parse_request(sent.slice(4..)).unwrap();
        assert_eq!(decode_request_body::<TxnOffsetCommitRequest>(&frame).unwrap(), commit);
        let answer = ProduceResponse::default().with_throttle_time_ms(5);
        let sent = encode_response(0, 12, 1, &answer).unwrap();
        let (_, rest) = split_correlation_id(sent.slice(4..)).unwrap();
        let api = ApiVersion { api_key: 0, api_version: 12 };
        assert_eq!(decode_response_body::<ProduceResponse>(rest, api).unwrap(), answer);
        for (api, last) in [(ApiKey::Produce, 12), (ApiKey::EndTxn, 5), (ApiKey::TxnOffsetCommit, 5)] {
            assert!(is_known_version(api, last) && !is_known_version(api, last + 1), "{api:?}");
        }
    }
}
