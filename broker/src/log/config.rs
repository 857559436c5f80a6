//! What a topic's configuration means for its log. Keys and defaults are Kafka 3.9's, except D8.

/// `message.timestamp.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageTimestampType {
    CreateTime,
    LogAppendTime,
}

/// `cleanup.policy`; both may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    pub compact: bool,
    pub delete: bool,
}

/// `compression.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionType {
    /// Stored as the producer sent it.
    Producer,
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// Settings of one log. All sizes are bytes, all times milliseconds; `-1` means unlimited where Kafka says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`: a segment that would grow beyond is rolled; also the largest batch.
    pub segment_bytes: u32,
    /// `segment.ms`: a segment whose first record is older is rolled at the next append.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: taken off `segment.ms`, different for each segment, so that not all roll at once.
    pub segment_jitter_ms: i64,
    /// `index.interval.bytes`: log bytes between two index entries.
    pub index_interval_bytes: u32,
    /// `segment.index.bytes`: an index of this size is full and makes the segment roll.
    pub segment_index_bytes: u32,
    /// `max.message.bytes`: largest batch a client may append.
    pub max_message_bytes: i32,
    /// `retention.ms`, -1 for ever.
    pub retention_ms: i64,
    /// `retention.bytes`, -1 unlimited.
    pub retention_bytes: i64,
    /// `message.timestamp.type`.
    pub message_timestamp_type: MessageTimestampType,
    /// `message.timestamp.before.max.ms`.
    pub message_timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`; one hour by default (D8, Kafka 4's default).
    pub message_timestamp_after_max_ms: i64,
    /// `flush.messages`: records appended before the log asks to be flushed.
    pub flush_messages: i64,
    /// `flush.ms`: longest time that appended records stay unflushed.
    pub flush_ms: i64,
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `compression.type`.
    pub compression_type: CompressionType,
    /// `file.delete.delay.ms`: between taking a segment out of the log and removing its files.
    pub file_delete_delay_ms: i64,
    /// `preallocate`: reserve `segment_bytes` on disk when a segment is created.
    pub preallocate: bool,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
    /// `producer.id.expiration.ms` (broker setting): state of a silent producer is dropped after this time.
    pub producer_id_expiration_ms: i64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            segment_index_bytes: 10 << 20,
            max_message_bytes: 1_048_588,
            retention_ms: 7 * 24 * 3_600_000,
            retention_bytes: -1,
            message_timestamp_type: MessageTimestampType::CreateTime,
            message_timestamp_before_max_ms: i64::MAX,
            message_timestamp_after_max_ms: 3_600_000,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            cleanup_policy: CleanupPolicy { compact: false, delete: true },
            compression_type: CompressionType::Producer,
            file_delete_delay_ms: 60_000,
            preallocate: false,
            delete_retention_ms: 24 * 3_600_000,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            producer_id_expiration_ms: 24 * 3_600_000,
        }
    }
}
