//! The storage engine: partition logs in files that Apache Kafka 3.x reads and writes too.
//!
//! Start with [`PartitionLog`] (append, truncate, epochs), then [`ReadPlan`] and [`FlushPlan`] (what happens outside
//! of the owner's lock), then [`OpenMode`] and the decision table of the `load` module. Everything here is
//! synchronous; no file knows of the network, of ZooKeeper or of replication.

mod batch;
mod block_cache;
mod buffers;
mod checkpoint;
pub(crate) mod cleaner;
mod compression;
mod config;
mod copying;
mod directory;
mod epoch_file;
mod epoch_starts;
mod epochs;
mod error;
mod faults;
mod files;
mod flush;
mod incarnation;
mod index;
pub mod inspect;
mod load;
mod marker;
mod meta_properties;
mod metadata;
mod partition_log;
mod producers;
mod read;
mod records;
mod recover;
mod retention;
mod scan;
mod segment;
mod split;
mod stream;
mod survey;
mod transaction_index;
mod truncate;
mod turned_away;
mod validate;
mod verification;

#[cfg(test)]
pub(crate) use faults::{Disk, Machine};
#[cfg(test)]
pub(crate) mod test_batches;
#[cfg(test)]
pub(crate) mod tests;

pub use batch::{BatchError, BatchHeader, Batches, HEADER_BYTES, check_crc};
pub(crate) use compression::{compress, decompress};
pub(crate) use marker::Marker;
#[cfg(test)]
pub(crate) use producers::{Admission, ProducerStates};
pub(crate) use records::Records;
#[cfg(test)]
pub(crate) use turned_away::TurnedAway;
#[cfg(test)]
pub(crate) use verification::Verifications;

pub(crate) use buffers::Wait;
pub use checkpoint::{CheckpointError, decode_offsets, encode_offsets};
pub use cleaner::{CleaningReport, CleaningSettings, compact_once};
pub use config::{LogConfig, Recompression};
pub(crate) use copying::{precedence, read_generation, read_topic_id, remove_directory, rename_durably};
pub(crate) use directory::Aside;
pub use directory::{
    Checkpoints, DirectoryError, FoundDirectory, LogDirectory, OffsetCheckpoint, parse_partition,
};
pub use epoch_starts::EpochStarts;
pub use epochs::{EpochEnd, EpochEntry, LeaderEpochs};
pub use error::{AppendError, LogError, ReadError, RecordError, StorageError};
pub(crate) use files::{FileSystem, sync_directory};
pub use flush::FlushPlan;
pub use incarnation::{Incarnation, current_boot_id};
pub(crate) use load::sync_created;
pub use load::{OpenMode, bytes_to_recover};
pub use partition_log::{AppendInfo, PartitionLog};
pub use read::ReadPlan;
pub use retention::{DeletionReason, KeptBecause};
pub(crate) use stream::{RecordStream, STREAMED_FROM_BYTES};
pub use survey::{SurveyedDirectory, SurveyedLog, survey_directory};
pub use transaction_index::AbortedTransaction;
pub(crate) use validate::FetchedBatches;
pub use validate::{AppendOrigin, BatchRules, CheckedBatches};
pub use verification::{Asking, Verification, VerificationGuard};
