//! What a topic's configuration means for its log. Keys and defaults are Kafka 3.9's, except D8.

use std::time::Duration;

use zurau_common::config::{CleanupPolicy, CompressionType, TimestampType, TopicConfig};

use super::compression::{GZIP, LZ4, NONE, SNAPPY, ZSTD};

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
    pub message_timestamp_type: TimestampType,
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
    /// `compression.type`, with `compression.<type>.level`.
    pub compression: Recompression,
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
    /// `min.cleanable.dirty.ratio` in millionths: the share of uncompacted bytes from which a log is compacted.
    pub min_cleanable_millionths: u32,
    /// `producer.id.expiration.ms` (broker setting): state of a silent producer is dropped after this time.
    pub producer_id_expiration_ms: i64,
}

/// In which form a leader stores the records of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompression {
    pub target: CompressionType,
    /// As the codec of `target` counts; `None`: its default.
    pub level: Option<i32>,
}

impl Recompression {
    /// As the producer sent them.
    pub const KEEP: Self = Self { target: CompressionType::Producer, level: None };

    fn from_topic(topic: &TopicConfig) -> Self {
        let target = topic.compression_type;
        let level = match target {
            CompressionType::Gzip => Some(topic.compression_gzip_level),
            CompressionType::Lz4 => Some(topic.compression_lz4_level),
            CompressionType::Zstd => Some(topic.compression_zstd_level),
            CompressionType::Producer | CompressionType::Uncompressed | CompressionType::Snappy => None,
        };
        Self { target, level }
    }

    /// The compression type in the attributes of stored batches; `None`: as the producer sent it.
    pub(crate) fn stored_as(self) -> Option<u8> {
        match self.target {
            CompressionType::Producer => None,
            CompressionType::Uncompressed => Some(NONE),
            CompressionType::Gzip => Some(GZIP),
            CompressionType::Snappy => Some(SNAPPY),
            CompressionType::Lz4 => Some(LZ4),
            CompressionType::Zstd => Some(ZSTD),
        }
    }
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
            message_timestamp_type: TimestampType::CreateTime,
            message_timestamp_before_max_ms: i64::MAX,
            message_timestamp_after_max_ms: 3_600_000,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            cleanup_policy: CleanupPolicy { compact: false, delete: true },
            compression: Recompression::KEEP,
            file_delete_delay_ms: 60_000,
            preallocate: false,
            delete_retention_ms: 24 * 3_600_000,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_millionths: 500_000,
            producer_id_expiration_ms: 24 * 3_600_000,
        }
    }
}

impl LogConfig {
    /// The log's view of a topic's configuration. `producer_id_expiration_ms` is a setting of the broker.
    pub fn from_topic(topic: &TopicConfig, producer_id_expiration_ms: i64) -> Self {
        let unlimited = |time: Option<Duration>| time.map_or(i64::MAX, millis);
        Self {
            segment_bytes: topic.segment_bytes,
            segment_ms: millis(topic.segment_age_max),
            segment_jitter_ms: millis(topic.segment_jitter),
            index_interval_bytes: topic.index_interval_bytes,
            segment_index_bytes: topic.segment_index_bytes,
            max_message_bytes: i32::try_from(topic.max_message_bytes).unwrap_or(i32::MAX),
            retention_ms: topic.retention.map_or(-1, millis),
            retention_bytes: topic.retention_bytes.map_or(-1, saturating),
            message_timestamp_type: topic.message_timestamp_type,
            message_timestamp_before_max_ms: unlimited(topic.message_timestamp_before_max),
            message_timestamp_after_max_ms: unlimited(topic.message_timestamp_after_max),
            flush_messages: topic.flush_messages.map_or(i64::MAX, saturating),
            flush_ms: unlimited(topic.flush_interval),
            cleanup_policy: topic.cleanup_policy,
            compression: Recompression::from_topic(topic),
            file_delete_delay_ms: millis(topic.file_delete_delay),
            preallocate: topic.preallocate,
            delete_retention_ms: millis(topic.delete_retention),
            min_compaction_lag_ms: millis(topic.min_compaction_lag),
            max_compaction_lag_ms: unlimited(topic.max_compaction_lag),
            min_cleanable_millionths: (topic.min_cleanable_dirty_ratio * 1e6) as u32,
            producer_id_expiration_ms,
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn saturating(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
