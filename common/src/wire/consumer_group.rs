//! ConsumerGroupHeartbeat (68), versions 0 and 1. The wire crate carries version 0; version 1 adds the subscription by
//! a regular expression, between the subscribed topics and the assignor, and leaves the answer as it is (KIP-848).

use anyhow::{Context as _, Result, bail, ensure};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ApiKey, ConsumerGroupHeartbeatRequest as RequestV0, ConsumerGroupHeartbeatResponse as ResponseV0,
    GroupId, TopicName,
};
use kafka_protocol::protocol::buf::{ByteBuf, ByteBufMut};
use kafka_protocol::protocol::{
    Decodable, Encodable, HeaderVersion, Message, Request, StrBytes, VersionRange,
};

use super::control::TaggedFields;

/// The last version.
pub const HEARTBEAT_VERSION_MAX: i16 = 1;

const VERSIONS: VersionRange = VersionRange { min: 0, max: HEARTBEAT_VERSION_MAX };
const STRING_BYTES_MAX: u32 = i16::MAX as u32;
/// The version of the parts that both versions share.
const SHARED: i16 = 0;

/// A heartbeat of either version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConsumerGroupHeartbeatRequest {
    /// What version 0 has.
    pub fields: RequestV0,
    /// From version 1 on: `None` if it did not change since the last heartbeat; empty for none any more.
    pub subscribed_topic_regex: Option<StrBytes>,
}

/// The answer, the same in both versions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConsumerGroupHeartbeatResponse(pub ResponseV0);

impl ConsumerGroupHeartbeatRequest {
    fn encode_v1<B: ByteBufMut>(&self, buf: &mut B) -> Result<()> {
        let fields = &self.fields;
        put_string(buf, Some(&fields.group_id))?;
        put_string(buf, Some(&fields.member_id))?;
        buf.put_i32(fields.member_epoch);
        put_string(buf, fields.instance_id.as_ref())?;
        put_string(buf, fields.rack_id.as_ref())?;
        buf.put_i32(fields.rebalance_timeout_ms);
        put_length(buf, fields.subscribed_topic_names.as_ref().map(Vec::len))?;
        for name in fields.subscribed_topic_names.iter().flatten() {
            put_string(buf, Some(name))?;
        }
        put_string(buf, self.subscribed_topic_regex.as_ref())?;
        put_string(buf, fields.server_assignor.as_ref())?;
        put_length(buf, fields.topic_partitions.as_ref().map(Vec::len))?;
        for owned in fields.topic_partitions.iter().flatten() {
            owned.encode(buf, SHARED)?;
        }
        put_tagged_fields(buf, &fields.unknown_tagged_fields)
    }

    fn decode_v1<B: ByteBuf>(buf: &mut B) -> Result<Self> {
        let group_id = GroupId(string(buf)?);
        let member_id = string(buf)?;
        let member_epoch = buf.try_get_i32()?;
        let instance_id = nullable_string(buf)?;
        let rack_id = nullable_string(buf)?;
        let rebalance_timeout_ms = buf.try_get_i32()?;
        let names = nullable_list(buf, |buf| Ok(TopicName(string(buf)?)))?;
        let subscribed_topic_regex = nullable_string(buf)?;
        let server_assignor = nullable_string(buf)?;
        let owned = nullable_list(buf, |buf| TopicPartitions::decode(buf, SHARED))?;
        let unknown_tagged_fields = tagged_fields(buf)?;
        let fields = RequestV0::default()
            .with_group_id(group_id)
            .with_member_id(member_id)
            .with_member_epoch(member_epoch)
            .with_instance_id(instance_id)
            .with_rack_id(rack_id)
            .with_rebalance_timeout_ms(rebalance_timeout_ms)
            .with_subscribed_topic_names(names)
            .with_server_assignor(server_assignor)
            .with_topic_partitions(owned)
            .with_unknown_tagged_fields(unknown_tagged_fields);
        Ok(Self { fields, subscribed_topic_regex })
    }
}

/// The tagged fields that end a message of a flexible version.
pub(super) fn put_tagged_fields<B: ByteBufMut>(buf: &mut B, fields: &TaggedFields) -> Result<()> {
    put_varint(buf, u32::try_from(fields.len())?);
    for (tag, value) in fields {
        put_varint(buf, u32::try_from(*tag)?);
        put_varint(buf, u32::try_from(value.len())?);
        buf.put_slice(value);
    }
    Ok(())
}

pub(super) fn tagged_fields<B: ByteBuf>(buf: &mut B) -> Result<TaggedFields> {
    let mut fields = TaggedFields::new();
    for _ in 0..varint(buf)? {
        let tag = i32::try_from(varint(buf)?)?;
        let size = usize::try_from(varint(buf)?)?;
        fields.insert(tag, buf.try_get_bytes(size)?);
    }
    Ok(fields)
}

fn put_varint<B: ByteBufMut>(buf: &mut B, mut value: u32) {
    while 0x80 <= value {
        buf.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buf.put_u8(value as u8);
}

/// A compact length: one more than it is, 0 for null.
fn put_length<B: ByteBufMut>(buf: &mut B, length: Option<usize>) -> Result<()> {
    put_varint(buf, length.map_or(Ok(0), |length| u32::try_from(length + 1))?);
    Ok(())
}

fn put_string<B: ByteBufMut>(buf: &mut B, text: Option<&StrBytes>) -> Result<()> {
    put_length(buf, text.map(|text| text.len()))?;
    buf.put_slice(text.map(|text| text.as_bytes()).unwrap_or_default());
    Ok(())
}

fn string_size(text: Option<&StrBytes>) -> usize {
    let Some(text) = text else { return 1 };
    let digits = usize::BITS - (text.len() + 1).leading_zeros();
    digits.div_ceil(7) as usize + text.len()
}

fn varint<B: ByteBuf>(buf: &mut B) -> Result<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = buf.try_get_u8()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a number has more than five bytes")
}

fn nullable_string<B: ByteBuf>(buf: &mut B) -> Result<Option<StrBytes>> {
    let Some(length) = varint(buf)?.checked_sub(1) else { return Ok(None) };
    // As in Kafka, whatever the encoding could carry.
    ensure!(length <= STRING_BYTES_MAX, "a string of {length} bytes is too long");
    let bytes = buf.try_get_bytes(usize::try_from(length)?)?;
    Ok(Some(StrBytes::from_utf8(bytes)?))
}

fn string<B: ByteBuf>(buf: &mut B) -> Result<StrBytes> {
    nullable_string(buf)?.context("a string that may not be null is null")
}

/// Grows with what is there, whatever length is claimed.
fn nullable_list<B: ByteBuf, T>(
    buf: &mut B,
    mut item: impl FnMut(&mut B) -> Result<T>,
) -> Result<Option<Vec<T>>> {
    let Some(length) = varint(buf)?.checked_sub(1) else { return Ok(None) };
    let mut items = Vec::new();
    for _ in 0..length {
        items.push(item(buf)?);
    }
    Ok(Some(items))
}

impl Encodable for ConsumerGroupHeartbeatRequest {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, version: i16) -> Result<()> {
        match version {
            0 if self.subscribed_topic_regex.is_some() => bail!("version 0 has no regular expression"),
            0 => self.fields.encode(buf, version),
            1 => self.encode_v1(buf),
            _ => bail!("specified version not supported by this message type"),
        }
    }

    fn compute_size(&self, version: i16) -> Result<usize> {
        let regex = match version {
            0 => 0,
            _ => string_size(self.subscribed_topic_regex.as_ref()),
        };
        Ok(self.fields.compute_size(SHARED)? + regex)
    }
}

impl Decodable for ConsumerGroupHeartbeatRequest {
    fn decode<B: ByteBuf>(buf: &mut B, version: i16) -> Result<Self> {
        match version {
            0 => Ok(Self { fields: RequestV0::decode(buf, version)?, subscribed_topic_regex: None }),
            1 => Self::decode_v1(buf),
            _ => bail!("specified version not supported by this message type"),
        }
    }
}

impl Message for ConsumerGroupHeartbeatRequest {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl HeaderVersion for ConsumerGroupHeartbeatRequest {
    fn header_version(_version: i16) -> i16 {
        RequestV0::header_version(SHARED)
    }
}

impl Request for ConsumerGroupHeartbeatRequest {
    const KEY: i16 = ApiKey::ConsumerGroupHeartbeat as i16;
    type Response = ConsumerGroupHeartbeatResponse;
}

impl Encodable for ConsumerGroupHeartbeatResponse {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, _version: i16) -> Result<()> {
        self.0.encode(buf, SHARED)
    }

    fn compute_size(&self, _version: i16) -> Result<usize> {
        self.0.compute_size(SHARED)
    }
}

impl Decodable for ConsumerGroupHeartbeatResponse {
    fn decode<B: ByteBuf>(buf: &mut B, _version: i16) -> Result<Self> {
        ResponseV0::decode(buf, SHARED).map(Self)
    }
}

impl Message for ConsumerGroupHeartbeatResponse {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl HeaderVersion for ConsumerGroupHeartbeatResponse {
    fn header_version(_version: i16) -> i16 {
        ResponseV0::header_version(SHARED)
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use uuid::Uuid;

    use super::*;
    use crate::wire::frame::{RequestFrame, decode_request_body, response_header_version};

    fn request() -> ConsumerGroupHeartbeatRequest {
        let owned =
            TopicPartitions::default().with_topic_id(Uuid::from_u128(0x0102)).with_partitions(vec![0, 5]);
        let fields = RequestV0::default()
            .with_group_id(GroupId(StrBytes::from_static_str("g")))
            .with_member_id(StrBytes::from_static_str("mm"))
            .with_member_epoch(7)
            .with_instance_id(Some(StrBytes::from_static_str("i")))
            .with_rebalance_timeout_ms(300)
            .with_subscribed_topic_names(Some(vec![TopicName(StrBytes::from_static_str("t"))]))
            .with_topic_partitions(Some(vec![owned]))
            .with_unknown_tagged_field(9, Bytes::from_static(b"xy"));
        ConsumerGroupHeartbeatRequest {
            fields,
            subscribed_topic_regex: Some(StrBytes::from_static_str("^a.*")),
        }
    }

    fn encoded(request: &ConsumerGroupHeartbeatRequest, version: i16) -> Bytes {
        let mut bytes = BytesMut::new();
        request.encode(&mut bytes, version).unwrap();
        assert_eq!(bytes.len(), request.compute_size(version).unwrap());
        bytes.freeze()
    }

    fn decoded(body: Bytes, version: i16) -> Result<ConsumerGroupHeartbeatRequest> {
        let frame =
            RequestFrame { api_key: 68, api_version: version, correlation_id: 1, client_id: None, body };
        Ok(decode_request_body(&frame)?)
    }

    #[test]
    fn version_1_is_as_kafka_writes_it() {
        let mut expected =
            b"\x02g\x03mm\x00\x00\x00\x07\x02i\x00\x00\x00\x01\x2c\x02\x02t\x05^a.*\x00\x02".to_vec();
        expected.extend([0; 14]);
        expected.extend(b"\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00\x05\x00\x01\x09\x02xy");
        assert_eq!(encoded(&request(), 1), expected);
    }

    #[test]
    fn both_versions_come_back_with_their_tagged_fields() {
        let whole = request();
        assert_eq!(decoded(encoded(&whole, 1), 1).unwrap(), whole);
        assert!(whole.encode(&mut BytesMut::new(), 0).is_err(), "nothing is dropped in silence");
        let old = ConsumerGroupHeartbeatRequest { subscribed_topic_regex: None, ..whole };
        assert_eq!(decoded(encoded(&old, 0), 0).unwrap(), old);
        assert_eq!(decoded(encoded(&old, 1), 1).unwrap(), old);
    }

    #[test]
    fn cut_and_hostile_bodies_are_refused() {
        let whole = encoded(&request(), 1);
        for length in 0..whole.len() {
            assert!(decoded(whole.slice(..length), 1).is_err(), "{length}");
        }
        // A list of 2³¹ topics.
        let mut hostile = whole.slice(..16).to_vec();
        hostile.extend([0xff, 0xff, 0xff, 0xff, 0x07]);
        assert!(decoded(hostile.into(), 1).is_err());
    }

    #[test]
    fn headers_are_flexible() {
        assert_eq!(ConsumerGroupHeartbeatRequest::header_version(1), 2);
        assert_eq!((response_header_version(68, 0), response_header_version(68, 1)), (1, 1));
        let api = ApiKey::ConsumerGroupHeartbeat;
        assert_eq!((api.request_header_version(1), api.response_header_version(1)), (2, 1));
    }
}
