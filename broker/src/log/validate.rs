//! What a leader checks before it takes a client's batches, and the bytes it stores instead of theirs.
//!
//! Pure. The records are not copied: a stored batch is a new 61-byte header and a slice of the client's bytes, unless
//! `compression.type` asks for other bytes. Offset and epoch are not covered by the CRC; it is computed anew only when
//! something else changes.
//!
//! Every byte is looked at before the log is locked ([`CheckedBatches`]); what is left to do then is to put offset and epoch
//! into headers.

use bytes::Bytes;
use zurau_common::config::TimestampType;

use super::batch::{
    ATTRIBUTES_AT, BASE_OFFSET_AT, BATCH_LENGTH_AT, BatchError, BatchHeader, Batches, COMPRESSION_MASK,
    CRC_AT, CRC_START, DELETE_HORIZON_MASK, HEADER_BYTES, LEADER_EPOCH_AT, LOG_OVERHEAD, MAX_TIMESTAMP_AT,
    NO_TIMESTAMP, TIMESTAMP_TYPE_MASK, check_crc,
};
use super::compression::{DecompressError, compress, decompress};
use super::config::{LogConfig, Recompression};
use super::error::{AppendError, RecordError};
use super::records::Records;

/// Record errors named in one answer; more are counted only.
const RECORD_ERRORS_MAX: usize = 100;

/// Who asks a leader to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOrigin {
    /// A Produce request: everything is checked.
    Client,
    /// The broker's own coordinators: may write transaction markers; sequences are not checked.
    Coordinator,
}

/// Batches ready to be written: headers as stored, bytes as stored.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) headers: Vec<BatchHeader>,
    /// Per batch its header and its records.
    pub(crate) parts: Vec<Bytes>,
    pub(crate) size_bytes: usize,
}

/// What a topic's configuration asks of a client's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRules {
    max_message_bytes: i32,
    segment_bytes: u32,
    is_compacted: bool,
    timestamp_type: TimestampType,
    timestamp_before_max_ms: i64,
    timestamp_after_max_ms: i64,
    compression: Recompression,
}

impl BatchRules {
    /// Those of a log with that configuration.
    pub fn of(config: &LogConfig) -> Self {
        Self {
            max_message_bytes: config.max_message_bytes,
            segment_bytes: config.segment_bytes,
            is_compacted: config.cleanup_policy.compact,
            timestamp_type: config.message_timestamp_type,
            timestamp_before_max_ms: config.message_timestamp_before_max_ms,
            timestamp_after_max_ms: config.message_timestamp_after_max_ms,
            compression: config.compression,
        }
    }
}

/// Batches for a leader's log that were checked, and found good or not, without the log.
#[derive(Debug)]
pub struct CheckedBatches {
    records: Bytes,
    rules: BatchRules,
    origin: AppendOrigin,
    now_ms: i64,
    outcome: Result<Vec<CheckedBatch>, AppendError>,
}

/// A batch as it will be stored, but for offset and epoch.
#[derive(Debug)]
struct CheckedBatch {
    header: BatchHeader,
    head: [u8; HEADER_BYTES],
    body: Bytes,
}

/// What a batch is checked against.
struct LeaderRules<'a> {
    config: &'a BatchRules,
    origin: AppendOrigin,
    now_ms: i64,
}

impl CheckedBatches {
    /// Validates the batches of a produce request. All or nothing; bytes after the last whole batch make the request
    /// corrupt. A refusal is told by the append, where others may come before it.
    pub fn new(records: Bytes, rules: BatchRules, origin: AppendOrigin, now_ms: i64) -> Self {
        let outcome = check_batches(&records, &LeaderRules { config: &rules, origin, now_ms });
        Self { records, rules, origin, now_ms, outcome }
    }

    /// When the append began, in milliseconds since 1970: the time that is stamped.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    pub(crate) fn origin(&self) -> AppendOrigin {
        self.origin
    }

    /// Gives the batches their offsets and the leader's epoch. Checks them again if the rules have changed meanwhile.
    ///
    /// # Errors
    /// What was found wrong with them.
    pub(crate) fn stamp(
        self,
        rules: BatchRules,
        first_offset: i64,
        leader_epoch: i32,
    ) -> Result<Prepared, AppendError> {
        let fits = self.rules == rules;
        let checked = if fits { self } else { Self::new(self.records, rules, self.origin, self.now_ms) };
        let batches = checked.outcome?;
        let (headers, parts) = (Vec::with_capacity(batches.len()), Vec::with_capacity(2 * batches.len()));
        let mut prepared = Prepared { headers, parts, size_bytes: 0 };
        let mut next_offset = first_offset;
        for CheckedBatch { mut header, mut head, body } in batches {
            (header.base_offset, header.partition_leader_epoch) = (next_offset, leader_epoch);
            put(&mut head, BASE_OFFSET_AT, &next_offset.to_be_bytes());
            put(&mut head, LEADER_EPOCH_AT, &leader_epoch.to_be_bytes());
            next_offset = header.next_offset();
            prepared.size_bytes += header.size_bytes();
            prepared.headers.push(header);
            prepared.parts.push(Bytes::copy_from_slice(&head));
            prepared.parts.push(body);
        }
        Ok(prepared)
    }
}

fn check_batches(records: &Bytes, rules: &LeaderRules<'_>) -> Result<Vec<CheckedBatch>, AppendError> {
    let mut checked = Vec::new();
    let mut walk = Batches::new(records);
    for batch in walk.by_ref() {
        let (header, range) = batch?;
        let bytes = records.slice(range);
        check_size(bytes.len(), rules.config)?;
        check_crc(&header, &bytes)?;
        check_header(&header, rules)?;
        let (largest, packed) = check_records(&header, &bytes, rules)?;
        let body = packed.unwrap_or_else(|| bytes.slice(HEADER_BYTES..));
        let (header, head) = stored_header(&header, (&bytes, &body), largest, rules);
        checked.push(CheckedBatch { header, head, body });
    }
    let rest = records.len() - walk.consumed();
    if rest > 0 {
        let needed = rest.max(HEADER_BYTES);
        return Err(AppendError::CorruptMessage(BatchError::Short { needed, available: rest }));
    }
    if checked.is_empty() {
        return Err(AppendError::invalid("the request holds no record batch"));
    }
    Ok(checked)
}

fn check_size(size_bytes: usize, config: &BatchRules) -> Result<(), AppendError> {
    let limit_bytes = config.max_message_bytes.max(0) as usize;
    if size_bytes > limit_bytes {
        return Err(AppendError::MessageTooLarge { size_bytes, limit_bytes });
    }
    let limit_bytes = config.segment_bytes as usize;
    if size_bytes > limit_bytes {
        return Err(AppendError::RecordListTooLarge { size_bytes, limit_bytes });
    }
    Ok(())
}

/// Checks of the header alone.
fn check_header(header: &BatchHeader, rules: &LeaderRules<'_>) -> Result<(), AppendError> {
    if header.record_count <= 0 {
        return Err(AppendError::invalid(format!("the batch announces {} records", header.record_count)));
    }
    if header.last_offset_delta != header.record_count - 1 {
        return Err(AppendError::invalid(format!(
            "the batch announces {} records but its last offset delta is {}",
            header.record_count, header.last_offset_delta
        )));
    }
    if header.compression() > 4 {
        return Err(AppendError::UnsupportedCompressionType(header.compression()));
    }
    if rules.origin == AppendOrigin::Coordinator {
        return Ok(());
    }
    if header.is_control() {
        return Err(AppendError::invalid("clients may not write control batches"));
    }
    if header.has_log_append_time() {
        let message = "producers may not set the timestamp type LogAppendTime".to_owned();
        return Err(AppendError::InvalidTimestamp { message, record_errors: Vec::new() });
    }
    if header.has_producer() && header.base_sequence < 0 {
        return Err(AppendError::invalid(format!(
            "sequence {} in a batch of producer {}",
            header.base_sequence, header.producer_id
        )));
    }
    if header.is_transactional() && !header.has_producer() {
        return Err(AppendError::invalid("a transactional batch without producer id"));
    }
    Ok(())
}

/// Checks every record; returns the largest timestamp, and the records in the form that `compression.type` asks for if
/// that is not the client's.
fn check_records(
    header: &BatchHeader,
    bytes: &Bytes,
    rules: &LeaderRules<'_>,
) -> Result<(i64, Option<Bytes>), AppendError> {
    let body = bytes.slice(HEADER_BYTES..);
    let plain = decompress(header.compression(), &body).map_err(|error| match error {
        DecompressError::TooLarge { limit_bytes } => AppendError::invalid(format!(
            "the batch of {} bytes expands beyond {limit_bytes} bytes",
            bytes.len()
        )),
        DecompressError::Damaged(reason) => {
            AppendError::invalid(format!("the batch does not decompress: {reason}"))
        }
    })?;
    let mut findings = Findings::default();
    let mut largest = NO_TIMESTAMP;
    for (index, record) in Records::new(&plain, header.record_count).enumerate() {
        let Ok(record) = record else {
            return Err(AppendError::invalid(format!(
                "record {index} of {} is malformed, or bytes are left after the last one",
                header.record_count
            )));
        };
        if i64::from(record.offset_delta) != index as i64 {
            let delta = record.offset_delta;
            return Err(AppendError::invalid(format!("record {index} has offset delta {delta}")));
        }
        if record.key.is_none() && rules.config.is_compacted && !header.is_control() {
            findings.add(index, false, || "a compacted topic takes no record without key".to_owned());
            continue;
        }
        let timestamp = header.base_timestamp.wrapping_add(record.timestamp_delta);
        if out_of_range(timestamp, rules) {
            findings.add(index, true, || out_of_range_message(timestamp, rules));
            continue;
        }
        largest = largest.max(timestamp);
    }
    findings.result()?;
    Ok((largest, recompress(header, &plain, rules.config)?))
}

/// The compression type under which a batch is stored. Markers stay as the coordinator wrote them.
fn stored_compression(header: &BatchHeader, config: &BatchRules) -> u8 {
    let kept = header.compression();
    if header.is_control() { kept } else { config.compression.stored_as().unwrap_or(kept) }
}

/// The records packed anew, if they are to be stored under another compression type than they came in. The limits on
/// sizes hold for what is stored, too.
fn recompress(header: &BatchHeader, plain: &[u8], config: &BatchRules) -> Result<Option<Bytes>, AppendError> {
    let target = stored_compression(header, config);
    if target == header.compression() {
        return Ok(None);
    }
    let packed = compress(target, config.compression.level, plain)
        .map_err(|error| AppendError::invalid(format!("the batch cannot be compressed anew: {error}")))?;
    check_size(HEADER_BYTES + packed.len(), config)?;
    Ok(Some(packed.into()))
}

fn out_of_range(timestamp: i64, rules: &LeaderRules<'_>) -> bool {
    rules.config.timestamp_type == TimestampType::CreateTime
        && timestamp != NO_TIMESTAMP
        && (rules.now_ms.saturating_sub(timestamp) > rules.config.timestamp_before_max_ms
            || timestamp.saturating_sub(rules.now_ms) > rules.config.timestamp_after_max_ms)
}

fn out_of_range_message(timestamp: i64, rules: &LeaderRules<'_>) -> String {
    let earliest = rules.now_ms.saturating_sub(rules.config.timestamp_before_max_ms);
    let latest = rules.now_ms.saturating_add(rules.config.timestamp_after_max_ms);
    format!("timestamp {timestamp} is outside {earliest}..={latest}")
}

#[derive(Default)]
struct Findings {
    count: usize,
    timestamps: bool,
    named: Vec<RecordError>,
}

impl Findings {
    fn add(&mut self, index: usize, timestamp: bool, message: impl FnOnce() -> String) {
        self.count += 1;
        self.timestamps |= timestamp;
        if self.named.len() < RECORD_ERRORS_MAX {
            self.named.push(RecordError { batch_index: index as i32, message: message() });
        }
    }

    fn result(self) -> Result<(), AppendError> {
        let Some(first) = self.named.first() else { return Ok(()) };
        let message = format!("{} records refused, the first because: {}", self.count, first.message);
        if self.timestamps {
            return Err(AppendError::InvalidTimestamp { message, record_errors: self.named });
        }
        Err(AppendError::InvalidRecord { message, record_errors: self.named })
    }
}

/// The header as it is stored but for offset and epoch, as fields and as bytes. `bytes` is the client's batch, `body` the
/// records as stored.
fn stored_header(
    header: &BatchHeader,
    (bytes, body): (&Bytes, &Bytes),
    largest_timestamp: i64,
    rules: &LeaderRules<'_>,
) -> (BatchHeader, [u8; HEADER_BYTES]) {
    let mut stored = *header;
    let compression = stored_compression(header, rules.config);
    if compression != header.compression() {
        // As in Kafka, a delete horizon that a client set stays in a batch that is stored as it came only.
        let kept = header.attributes & !(COMPRESSION_MASK | DELETE_HORIZON_MASK);
        stored.attributes = kept | i16::from(compression);
        // At most `max.message.bytes`, which is an i32.
        stored.batch_length = (HEADER_BYTES - LOG_OVERHEAD + body.len()) as i32;
    }
    match rules.config.timestamp_type {
        TimestampType::CreateTime => stored.max_timestamp = largest_timestamp,
        TimestampType::LogAppendTime => {
            stored.max_timestamp = rules.now_ms;
            stored.attributes |= TIMESTAMP_TYPE_MASK;
        }
    }
    let mut head: [u8; HEADER_BYTES] =
        bytes[..HEADER_BYTES].try_into().expect("a parsed batch has a whole header");
    if stored.max_timestamp != header.max_timestamp || stored.attributes != header.attributes {
        put(&mut head, BATCH_LENGTH_AT, &stored.batch_length.to_be_bytes());
        put(&mut head, MAX_TIMESTAMP_AT, &stored.max_timestamp.to_be_bytes());
        put(&mut head, ATTRIBUTES_AT, &stored.attributes.to_be_bytes());
        let covered = crc32c::crc32c(&head[CRC_START..]);
        stored.crc = crc32c::crc32c_append(covered, body);
        put(&mut head, CRC_AT, &stored.crc.to_be_bytes());
    }
    (stored, head)
}

fn put(head: &mut [u8; HEADER_BYTES], at: usize, value: &[u8]) {
    head[at..at + value.len()].copy_from_slice(value);
}

/// Batches that a follower got from its leader, checked without its log.
#[derive(Debug)]
pub(crate) struct FetchedBatches(Result<Prepared, AppendError>);

impl FetchedBatches {
    /// Checks them. A refusal is told by the append.
    pub(crate) fn new(records: &Bytes) -> Self {
        Self(prepare_follower_append(records))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_ok_and(|prepared| prepared.headers.is_empty())
    }

    /// # Errors
    /// What was found wrong with them.
    pub(crate) fn prepared(self) -> Result<Prepared, AppendError> {
        self.0
    }
}

/// Checks the batches a follower got from its leader: structure and CRC (LOG-12). Bytes after the last whole batch
/// are left out, as a fetch answer may end in the middle of one.
fn prepare_follower_append(records: &Bytes) -> Result<Prepared, AppendError> {
    let mut prepared = Prepared { headers: Vec::new(), parts: Vec::new(), size_bytes: 0 };
    let mut walk = Batches::new(records);
    for batch in walk.by_ref() {
        let (header, range) = batch?;
        let bytes = records.slice(range);
        check_crc(&header, &bytes)?;
        prepared.headers.push(header);
        prepared.parts.push(bytes);
    }
    prepared.size_bytes = walk.consumed();
    Ok(prepared)
}
