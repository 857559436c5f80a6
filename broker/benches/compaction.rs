//! Speed of compaction: bytes of dirty segments cleaned a second on one thread, beside reading the same files twice.
//!
//! `cargo bench -p zurau-broker --bench compaction`, with the directory to write to in `TMPDIR`.

mod batches;

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::records::Compression;
use zurau_broker::log::{CleaningReport, CleaningSettings, LogConfig, PartitionLog, compact_once};

use batches::{NOW, encode, value};

const MIB: usize = 1 << 20;
const INPUT_BYTES: usize = 256 * MIB;
const RECORDS_PER_BATCH: usize = 64;

/// A batch whose keys are spread over `keys`.
fn batch(number: usize, keys: usize, value: &Bytes, compression: Compression) -> Bytes {
    encode(RECORDS_PER_BATCH, value, compression, |index| {
        let key = (number * RECORDS_PER_BATCH + index).wrapping_mul(2_654_435_761) % keys;
        Some(Bytes::from(format!("key-{key:08}")))
    })
}

fn filled(path: &Path, value_bytes: usize, keys: usize, compression: Compression) -> PartitionLog {
    let mut config = LogConfig { segment_bytes: 64 * MIB as u32, ..LogConfig::default() };
    config.cleanup_policy.compact = true;
    let mut log = PartitionLog::create(path, None, config, NOW).expect("creates");
    let value = value(value_bytes);
    let mut number = 0;
    while (log.size_bytes() as usize) < INPUT_BYTES {
        log.append_as_leader(&batch(number, keys, &value, compression), 0, NOW).expect("appends");
        number += 1;
    }
    log.update_high_watermark(log.log_end_offset());
    log
}

/// Seconds to read every segment twice.
fn read_twice(path: &Path) -> f64 {
    let start = Instant::now();
    let mut buffer = vec![0; MIB];
    for _ in 0..2 {
        for entry in std::fs::read_dir(path).expect("lists").map(|entry| entry.expect("lists").path()) {
            if entry.extension().is_some_and(|extension| extension == "log") {
                let mut file = std::fs::File::open(entry).expect("opens");
                while file.read(&mut buffer).expect("reads") > 0 {}
            }
        }
    }
    start.elapsed().as_secs_f64()
}

fn measure(name: &str, value_bytes: usize, keys: usize, compression: Compression) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t-0");
    let mut log = filled(&path, value_bytes, keys, compression);
    let floor = read_twice(&path);
    let start = Instant::now();
    let report: Option<CleaningReport> =
        compact_once(&mut log, &CleaningSettings::default(), NOW).expect("compacts");
    let seconds = start.elapsed().as_secs_f64();
    let report = report.expect("there is something to compact");
    let megabytes = report.bytes_before as f64 / 1e6;
    println!(
        "{name}: {:.0} MB/s of input ({:.0} MB with {} records to {:.0} MB with {}, {} keys; {:.2} s, reading it twice {:.2} s)",
        megabytes / seconds,
        megabytes,
        report.records_before,
        report.bytes_after as f64 / 1e6,
        report.records_after,
        report.keys,
        seconds,
        floor
    );
}

fn main() {
    measure("1 KiB values, every key ten times", 1024, 25_000, Compression::None);
    measure("100 B values, every key ten times", 100, 200_000, Compression::None);
    measure("1 KiB values, every key once", 1024, 10_000_000, Compression::None);
    measure("1 KiB values, zstd", 1024, 25_000, Compression::Zstd);
    measure("1 KiB values, lz4", 1024, 25_000, Compression::Lz4);
}
