//! Kafka frames: the header in front of every request and response, and the body behind it.
//!
//! A frame is `length: i32` and that many bytes. Which header follows depends on API and version: flexible versions
//! (KIP-482) carry tagged fields in it. Two exceptions: the answer to ApiVersions never has tagged fields in its header,
//! because a client reads it before both sides agree on a version (KIP-511), and ControlledShutdown v0 has no client id.
//!
//! Decoding never copies: strings and records are slices of the frame.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, Message as _, Request, StrBytes};
use thiserror::Error;

use super::consumer_group::ConsumerGroupHeartbeatRequest;
use super::guard::{Guard, STRUCTURE_BYTES_MAX};
use super::transactions::{EndTxnRequest, coded_as};

/// Bytes of the length in front of a frame.
pub const LENGTH_PREFIX: usize = 4;

/// A request's header, and its body still undecoded.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestFrame {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    /// `None` when the client sent null, or when the API is unknown, so that the header's shape is.
    pub client_id: Option<StrBytes>,
    pub body: Bytes,
}

impl RequestFrame {
    pub fn api(&self) -> ApiVersion {
        ApiVersion { api_key: self.api_key, api_version: self.api_version }
    }
}

/// An API and a version of it, printed by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiVersion {
    pub api_key: i16,
    pub api_version: i16,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ApiKey::try_from(self.api_key) {
            Ok(api) => write!(f, "{api:?} v{}", self.api_version),
            Err(()) => write!(f, "unknown API {} v{}", self.api_key, self.api_version),
        }
    }
}

/// What is wrong with a frame. Each is the peer's doing: the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("a frame of {size} bytes is larger than the limit of {limit} bytes (socket.request.max.bytes)")]
    FrameTooLarge { size: usize, limit: usize },
    #[error("a frame announces the negative size {size}; the peer does not speak the Kafka protocol")]
    NegativeSize { size: i32 },
    #[error("a frame of {size} bytes is too short for the header it should have")]
    HeaderTooShort { size: usize },
    #[error("the header of a {api} frame is malformed: {reason}")]
    MalformedHeader { api: ApiVersion, reason: String },
    #[error("the body of a {api} frame is malformed: {reason}")]
    MalformedBody { api: ApiVersion, reason: String },
    #[error("the body of a {api} frame has {unread} bytes after its last field")]
    TrailingBytes { api: ApiVersion, unread: usize },
    #[error(
        "a {api} frame has more than {STRUCTURE_BYTES_MAX} bytes of structure; send it in several smaller requests"
    )]
    TooMuchStructure { api: ApiVersion },
    #[error("a {api} frame cannot be encoded: {reason}")]
    Unencodable { api: ApiVersion, reason: String },
}

/// Bytes of key, version and correlation id, which every request starts with.
const REQUEST_PREFIX: usize = 8;

/// Takes a request's header apart. An API key or version that is not known still yields key, version and correlation
/// id, so that it can be answered.
///
/// # Errors
/// [`FrameError::HeaderTooShort`] and [`FrameError::MalformedHeader`].
pub fn parse_request(mut frame: Bytes) -> Result<RequestFrame, FrameError> {
    if frame.len() < REQUEST_PREFIX {
        return Err(FrameError::HeaderTooShort { size: frame.len() });
    }
    let mut prefix = frame.slice(..REQUEST_PREFIX);
    let (api_key, api_version) = (prefix.get_i16(), prefix.get_i16());
    let correlation_id = prefix.get_i32();
    let api = ApiVersion { api_key, api_version };
    let unknown = |body| RequestFrame { api_key, api_version, correlation_id, client_id: None, body };

    let Ok(known) = ApiKey::try_from(api_key) else {
        return Ok(unknown(frame.slice(REQUEST_PREFIX..)));
    };
    let whole = frame.clone();
    match RequestHeader::decode(&mut frame, known.request_header_version(api_version)) {
        Ok(header) => Ok(RequestFrame {
            api_key,
            api_version,
            correlation_id,
            client_id: header.client_id,
            body: frame,
        }),
        // A version of the future may have another header; it is answered, not hung up on.
        Err(_) if !is_known_version(known, api_version) => Ok(unknown(whole.slice(REQUEST_PREFIX..))),
        Err(reason) => Err(FrameError::MalformedHeader { api, reason: reason.to_string() }),
    }
}

/// Whether this version of the API can be decoded, by the wire crate or here.
pub fn is_known_version(api: ApiKey, version: i16) -> bool {
    let versions = match api {
        ApiKey::ConsumerGroupHeartbeat => ConsumerGroupHeartbeatRequest::VERSIONS,
        ApiKey::EndTxn => EndTxnRequest::VERSIONS,
        _ => api.valid_versions(),
    };
    (versions.min..=versions.max).contains(&coded_as(api as i16, version))
}

/// Decodes the body of a request, which must end where the frame ends. Metadata may have more, as with Kafka: librdkafka
/// (2.12) writes the null list of a flexible version as four zero bytes instead of one, and the rest is left over.
///
/// # Errors
/// [`FrameError::MalformedBody`], [`FrameError::TrailingBytes`], [`FrameError::TooMuchStructure`].
pub fn decode_request_body<T: Decodable>(frame: &RequestFrame) -> Result<T, FrameError> {
    let (message, unread) = decode_front(frame.body.clone(), frame.api())?;
    if frame.api_key == ApiKey::Metadata as i16 {
        Ok(message)
    } else {
        check_end(message, unread, frame.api())
    }
}

/// Decodes a body that came from a peer. Memory is bounded by the body's size, whatever lengths it claims.
///
/// # Errors
/// [`FrameError::MalformedBody`], [`FrameError::TrailingBytes`], [`FrameError::TooMuchStructure`].
pub fn decode_body<T: Decodable>(body: Bytes, api: ApiVersion) -> Result<T, FrameError> {
    let (message, unread) = decode_front(body, api)?;
    check_end(message, unread, api)
}

fn check_end<T>(message: T, unread: usize, api: ApiVersion) -> Result<T, FrameError> {
    if unread == 0 { Ok(message) } else { Err(FrameError::TrailingBytes { api, unread }) }
}

/// The message at the front of a body, and how many bytes follow it.
fn decode_front<T: Decodable>(body: Bytes, api: ApiVersion) -> Result<(T, usize), FrameError> {
    let mut guard = Guard::suspicious(body.clone());
    let first = decode_from(&mut guard, api);
    if guard.structure_exhausted() {
        return Err(FrameError::TooMuchStructure { api });
    }
    let message = first?;
    if !guard.replaced_a_field() {
        return Ok(message);
    }
    decode_from(&mut Guard::trusting(body), api)
}

fn decode_from<T: Decodable>(guard: &mut Guard, api: ApiVersion) -> Result<(T, usize), FrameError> {
    let message = T::decode(guard, coded_as(api.api_key, api.api_version))
        .map_err(|reason| FrameError::MalformedBody { api, reason: reason.to_string().trim().to_owned() })?;
    Ok((message, guard.unread()))
}

/// The version of the header in front of a response: 1 carries tagged fields, 0 does not.
pub fn response_header_version(api_key: i16, api_version: i16) -> i16 {
    ApiKey::try_from(api_key).map_or(0, |api| api.response_header_version(api_version))
}

/// A whole response frame, the length in front included.
///
/// # Errors
/// [`FrameError::Unencodable`] when a field holds what this version cannot carry: a bug of the caller.
pub fn encode_response(
    api_key: i16,
    api_version: i16,
    correlation_id: i32,
    body: &impl Encodable,
) -> Result<Bytes, FrameError> {
    let api = ApiVersion { api_key, api_version };
    encode_frame(api, body, |frame| {
        frame.put_i32(correlation_id);
        if 1 <= response_header_version(api_key, api_version) {
            frame.put_u8(0);
        }
        Ok(())
    })
}

/// Bytes that a response header takes at most.
const RESPONSE_HEADER_MAX: usize = 5;

/// Takes the correlation id off a response frame and leaves what follows it.
///
/// # Errors
/// [`FrameError::HeaderTooShort`].
pub fn split_correlation_id(mut frame: Bytes) -> Result<(i32, Bytes), FrameError> {
    if frame.len() < 4 {
        return Err(FrameError::HeaderTooShort { size: frame.len() });
    }
    let correlation_id = frame.get_i32();
    Ok((correlation_id, frame))
}

/// Decodes a response from what follows its correlation id.
///
/// # Errors
/// [`FrameError::MalformedHeader`] and everything of [`decode_body`].
pub fn decode_response_body<T: Decodable>(mut rest: Bytes, api: ApiVersion) -> Result<T, FrameError> {
    if 1 <= response_header_version(api.api_key, api.api_version) {
        skip_tagged_fields(&mut rest).ok_or_else(|| FrameError::MalformedHeader {
            api,
            reason: "its tagged fields end early".to_owned(),
        })?;
    }
    decode_body(rest, api)
}

fn skip_tagged_fields(rest: &mut Bytes) -> Option<()> {
    let count = take_varint(rest)?;
    for _ in 0..count {
        take_varint(rest)?;
        let size = usize::try_from(take_varint(rest)?).ok()?;
        if rest.len() < size {
            return None;
        }
        rest.advance(size);
    }
    Some(())
}

fn take_varint(rest: &mut Bytes) -> Option<u32> {
    let mut value = 0;
    for index in 0..5 {
        let byte = rest.try_get_u8().ok()?;
        value |= u32::from(byte & 0x7f) << (index * 7);
        if byte < 0x80 {
            break;
        }
    }
    Some(value)
}

/// A whole request frame, the length in front included.
///
/// # Errors
/// [`FrameError::Unencodable`] when a field holds what this version cannot carry: a bug of the caller.
pub fn encode_request<R: Request>(
    version: i16,
    correlation_id: i32,
    client_id: &StrBytes,
    request: &R,
) -> Result<Bytes, FrameError> {
    let api = ApiVersion { api_key: R::KEY, api_version: version };
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(client_id.clone()));
    encode_frame(api, request, |frame| header.encode(frame, R::header_version(version)))
}

fn encode_frame(
    api: ApiVersion,
    body: &impl Encodable,
    put_header: impl FnOnce(&mut BytesMut) -> anyhow::Result<()>,
) -> Result<Bytes, FrameError> {
    let unencodable = |reason: anyhow::Error| FrameError::Unencodable { api, reason: reason.to_string() };
    let version = coded_as(api.api_key, api.api_version);
    let size = body.compute_size(version).map_err(unencodable)?;
    let mut frame = BytesMut::with_capacity(LENGTH_PREFIX + RESPONSE_HEADER_MAX + size);
    frame.put_i32(0);
    put_header(&mut frame).map_err(unencodable)?;
    body.encode(&mut frame, version).map_err(unencodable)?;
    let length = i32::try_from(frame.len() - LENGTH_PREFIX).map_err(|_| FrameError::Unencodable {
        api,
        reason: format!("it has {} bytes, more than a frame can hold", frame.len()),
    })?;
    frame[..LENGTH_PREFIX].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
