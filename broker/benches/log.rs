//! Speed of the log as ratios to what the machine does without it, measured in the same run.
//!
//! `cargo bench -p zurau-broker --bench log`, with the directory to write to in `TMPDIR`.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};
use zurau_broker::log::{LogConfig, OpenMode, PartitionLog};

const NOW: i64 = 1_700_000_000_000;
const MIB: usize = 1 << 20;

fn batch(records: usize, value_bytes: usize) -> Bytes {
    let value = Bytes::from((0..value_bytes).map(|n| (n * 31 % 251) as u8).collect::<Vec<u8>>());
    let records: Vec<Record> = (0..records)
        .map(|index| Record {
            transactional: false,
            control: false,
            partition_leader_epoch: 0,
            producer_id: -1,
            producer_epoch: -1,
            timestamp_type: TimestampType::Creation,
            offset: index as i64,
            sequence: index as i32 - 1,
            timestamp: NOW,
            key: None,
            value: Some(value.clone()),
            headers: Default::default(),
        })
        .collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut bytes, records.iter(), &options).expect("encodes");
    bytes.freeze()
}

fn config() -> LogConfig {
    LogConfig { max_message_bytes: 8 << 20, ..LogConfig::default() }
}

/// Seconds for `count` appends of `bytes` to a new log.
fn append(path: &Path, bytes: &Bytes, count: usize) -> f64 {
    let mut log = PartitionLog::create(path, None, config(), NOW).expect("creates");
    let start = Instant::now();
    for _ in 0..count {
        log.append_as_leader(bytes, 0, NOW).expect("appends");
    }
    start.elapsed().as_secs_f64()
}

/// Seconds for the same bytes with a CRC and one `write` each, and nothing else.
fn plain(path: &Path, bytes: &Bytes, count: usize) -> f64 {
    let mut file = File::create(path).expect("creates");
    let mut sum = 0u32;
    let start = Instant::now();
    for _ in 0..count {
        sum ^= crc32c::crc32c(bytes);
        file.write_all(bytes).expect("writes");
    }
    let elapsed = start.elapsed().as_secs_f64();
    std::hint::black_box(sum);
    elapsed
}

fn compare(directory: &Path, name: &str, bytes: &Bytes, count: usize) {
    let (mut best_plain, mut best_log) = (f64::MAX, f64::MAX);
    for round in 0..5 {
        let file = directory.join(format!("plain-{round}"));
        best_plain = best_plain.min(plain(&file, bytes, count));
        std::fs::remove_file(&file).expect("removes");
        let log = directory.join(format!("log-{round}"));
        best_log = best_log.min(append(&log, bytes, count));
        std::fs::remove_dir_all(&log).expect("removes");
    }
    let megabytes = (bytes.len() * count) as f64 / 1e6;
    println!(
        "{name}: plain write+CRC {:.0} MB/s, log {:.0} MB/s, ratio {:.2}, {:.0} appends/s",
        megabytes / best_plain,
        megabytes / best_log,
        best_plain / best_log,
        count as f64 / best_log,
    );
}

fn reads_and_recovery(directory: &Path) {
    let path = directory.join("reads");
    let bytes = batch(16, 1000);
    let count = 900 * MIB / bytes.len();
    append(&path, &bytes, count);
    let start = Instant::now();
    let mode = OpenMode::UNKNOWN;
    let mut log = PartitionLog::open(&path, config(), mode, NOW).expect("opens");
    let seconds = start.elapsed().as_secs_f64();
    println!("recovery: {:.2} GB/s", log.size_bytes() as f64 / 1e9 / seconds);
    log.update_high_watermark(log.log_end_offset());
    let end = log.log_end_offset();
    let lookups = 100_000;
    let start = Instant::now();
    let mut offset = 1;
    for _ in 0..lookups {
        offset = (offset * 6_364_136_223 + 1_442_695) % end;
        let plan = log.read_plan(offset, MIB, end, true).expect("plans");
        assert!(!plan.is_empty());
    }
    println!("offset lookup: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(lookups));
    let start = Instant::now();
    let (mut offset, mut read) = (0, 0);
    while offset < end {
        let bytes = log.read_plan(offset, MIB, end, true).expect("plans").read().expect("reads");
        read += bytes.len();
        offset += 16 * (bytes.len() / batch_bytes(&bytes)) as i64;
    }
    println!("sequential read: {:.0} MB/s", read as f64 / 1e6 / start.elapsed().as_secs_f64());
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory is named");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// A start after a clean stop with many partitions, each with a segment of some batches, and what they cost in memory.
fn idle_partitions(directory: &Path) {
    const PARTITIONS: usize = 10_000;
    const THREADS: usize = 4;
    let bytes = batch(4, 1000);
    let path = |number: usize| directory.join(format!("idle-{number}"));
    let next = AtomicUsize::new(0);
    let each = |work: &(dyn Fn(usize) + Sync)| {
        next.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Some(number) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < PARTITIONS)
                    {
                        work(number);
                    }
                });
            }
        });
    };
    each(&|number| {
        let mut log = PartitionLog::create(&path(number), None, config(), NOW).expect("creates");
        for _ in 0..3 {
            log.append_as_leader(&bytes, 0, NOW).expect("appends");
        }
        log.close().expect("closes");
    });
    let before = resident_bytes();
    let opened = Mutex::new(Vec::with_capacity(PARTITIONS));
    let start = Instant::now();
    each(&|number| {
        let mode = OpenMode { clean: true, recovery_point: 12, log_start_offset: 0 };
        let log = PartitionLog::open(&path(number), config(), mode, NOW).expect("opens");
        opened.lock().expect("no thread panics").push(log);
    });
    let seconds = start.elapsed().as_secs_f64();
    let kib = resident_bytes().saturating_sub(before) as f64 / 1024.0 / PARTITIONS as f64;
    println!(
        "start of {PARTITIONS} partitions after a clean stop: {seconds:.2} s, {kib:.1} KiB resident each"
    );
}

fn batch_bytes(bytes: &Bytes) -> usize {
    zurau_broker::log::BatchHeader::parse(bytes).expect("a batch").size_bytes()
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    compare(directory.path(), "1 MiB batches of 1 KiB records", &batch(1000, 1000), 500);
    compare(directory.path(), "16 KiB batches of 1 KiB records", &batch(16, 1000), 20_000);
    compare(directory.path(), "1 KiB single records", &batch(1, 950), 200_000);
    compare(directory.path(), "16 KiB batches of 100 B records", &batch(150, 90), 20_000);
    reads_and_recovery(directory.path());
    idle_partitions(directory.path());
}
