//! Reading the files of a log one by one, for tools: what stands in them, right or wrong. Nothing is repaired.

use std::path::Path;
use std::sync::Arc;

use super::batch::{BatchError, BatchHeader, HEADER_BYTES, check_crc};
use super::compression::decompress;
use super::epochs::{EpochEntry, LeaderEpochs};
use super::error::{StorageContext, StorageError};
use super::files::{LogFile, read_if_present, read_up_to};
use super::marker::Marker;
use super::producers::ProducerStates;
use super::records::Records;
use super::transaction_index::{AbortedTransaction, decode_entries};

/// A record with its offset and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedRecord {
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// What a control batch says: commit or abort, by a coordinator of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectedMarker {
    pub commit: bool,
    pub coordinator_epoch: i32,
}

/// What a log, or one of its snapshots, knows of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectedProducer {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub coordinator_epoch: i32,
    pub last_timestamp: i64,
    /// First offset of the open transaction.
    pub transaction_first_offset: Option<i64>,
    /// Last sequence and last offset of the last batch.
    pub last_batch: Option<(i32, i64)>,
}

/// A batch as it stands in a `.log` file.
#[derive(Debug)]
pub struct InspectedBatch {
    /// Byte in the file.
    pub position: u64,
    pub header: BatchHeader,
    /// The whole batch.
    pub bytes: Vec<u8>,
    /// Whether the stored CRC is that of the bytes.
    pub crc: Result<(), BatchError>,
}

impl InspectedBatch {
    /// The records, unpacked.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub fn records(&self) -> Result<Vec<InspectedRecord>, String> {
        let header = &self.header;
        let body = &self.bytes[HEADER_BYTES..];
        let plain = decompress(header.compression(), body).map_err(|error| error.to_string())?;
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let records = Records::new(&plain, header.record_count).map(|record| {
            let record =
                record.map_err(|_| "a record is malformed, or the record count is wrong".to_owned())?;
            let timestamp = match header.has_log_append_time() {
                true => header.max_timestamp,
                false => header.base_timestamp.wrapping_add(record.timestamp_delta),
            };
            Ok(InspectedRecord {
                offset: header.base_offset.saturating_add(i64::from(record.offset_delta)),
                timestamp,
                key: owned(record.key),
                value: owned(record.value),
                headers: record.headers().map(|(name, value)| (name.to_vec(), owned(value))).collect(),
            })
        });
        records.collect()
    }

    /// Of a control batch that ends a transaction.
    pub fn marker(&self) -> Option<InspectedMarker> {
        let marker = Marker::parse(&self.header, &self.bytes[HEADER_BYTES..])?;
        Some(InspectedMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch })
    }
}

/// The batches of a `.log` file in order. Ends after the first bytes that are no batch.
pub struct BatchReader {
    log: Arc<LogFile>,
    position: u64,
    file_bytes: u64,
    ended: bool,
}

impl BatchReader {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let log = LogFile::new(path.to_owned());
        let file_bytes = std::fs::metadata(path).storage("look at", path)?.len();
        Ok(Self { log, position: 0, file_bytes, ended: false })
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn read(&mut self) -> Result<Option<Result<InspectedBatch, BatchError>>, StorageError> {
        let path = self.log.path();
        let file = std::fs::File::open(&path).storage("open", &path)?;
        let left = usize::try_from(self.file_bytes - self.position).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(None);
        }
        let start = read_up_to(&file, HEADER_BYTES.min(left), self.position).storage("read", &path)?;
        let header = match BatchHeader::parse(&start) {
            Ok(header) => header,
            Err(error) => return Ok(Some(Err(error))),
        };
        if header.size_bytes() > left {
            return Ok(Some(Err(BatchError::Short { needed: header.size_bytes(), available: left })));
        }
        let bytes = read_up_to(&file, header.size_bytes(), self.position).storage("read", &path)?;
        let crc = check_crc(&header, &bytes);
        let batch = InspectedBatch { position: self.position, header, bytes, crc };
        self.position += header.size_bytes() as u64;
        Ok(Some(Ok(batch)))
    }
}

impl Iterator for BatchReader {
    type Item = Result<Result<InspectedBatch, BatchError>, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read().transpose();
        self.ended = !matches!(next, Some(Ok(Ok(_))));
        next
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StorageError> {
    std::fs::read(path).storage("read", path)
}

fn base_of(path: &Path) -> i64 {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The entries of an `.index` file, (offset, position), and how many bytes are left over behind them.
pub fn read_offset_index(path: &Path) -> Result<(Vec<(i64, u32)>, usize), StorageError> {
    let (bytes, base) = (read(path)?, base_of(path));
    let (entries, rest) = bytes.as_chunks::<8>();
    let entry = |entry: &[u8; 8]| {
        let [o0, o1, o2, o3, position @ ..] = *entry;
        (base + i64::from(i32::from_be_bytes([o0, o1, o2, o3])), u32::from_be_bytes(position))
    };
    Ok((entries.iter().map(entry).collect(), rest.len()))
}

/// The entries of a `.timeindex` file, (timestamp, offset), and how many bytes are left over behind them.
pub fn read_time_index(path: &Path) -> Result<(Vec<(i64, i64)>, usize), StorageError> {
    let (bytes, base) = (read(path)?, base_of(path));
    let (entries, rest) = bytes.as_chunks::<12>();
    let entry = |entry: &[u8; 12]| {
        let (timestamp, offset) = entry.split_at(8);
        let timestamp = i64::from_be_bytes(timestamp.try_into().expect("eight of twelve bytes"));
        let offset = i32::from_be_bytes(offset.try_into().expect("four of twelve bytes"));
        (timestamp, base + i64::from(offset))
    };
    Ok((entries.iter().map(entry).collect(), rest.len()))
}

/// The entries of a `.txnindex` file; `None` for a damaged one.
pub fn read_transaction_index(path: &Path) -> Result<Option<Vec<AbortedTransaction>>, StorageError> {
    Ok(decode_entries(&read(path)?))
}

/// The producers of a `.snapshot` file by id; `None` for a damaged one.
pub fn read_snapshot(path: &Path) -> Result<Option<Vec<InspectedProducer>>, StorageError> {
    Ok(ProducerStates::decode(&read(path)?, base_of(path)).map(|states| states.inspect()))
}

/// The entries of a `leader-epoch-checkpoint`, or why it is damaged. Kafka creates the file empty and fills it with the
/// first epoch.
pub fn read_epochs(path: &Path) -> Result<Result<Vec<EpochEntry>, String>, StorageError> {
    let text = read_if_present(path)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    Ok(LeaderEpochs::decode(&text).map(|epochs| epochs.entries().to_vec()).map_err(|error| error.to_string()))
}
