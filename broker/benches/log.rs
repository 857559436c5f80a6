//! Speed of the log as ratios to what the machine does without it, measured in the same run.
//!
//! `cargo bench -p zurau-broker --bench log`, with the directory to write to in `TMPDIR`. Arguments behind `--` choose
//! parts by name (`append`, `lookup`, `recovery`, `idle`); `ZURAU_BENCH_RECOVERY_MIB` is how much is recovered (2048).

mod batches;

use std::fs::File;
use std::io::{IoSlice, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::records::Compression;
use zurau_broker::log::{LogConfig, OpenMode, PartitionLog};

use batches::{NOW, encode, value};

const MIB: usize = 1 << 20;

fn batch(records: usize, value_bytes: usize) -> Bytes {
    encode(records, &value(value_bytes), Compression::None, |_| None)
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

/// Seconds for the system calls alone: header and records of each batch in one `pwritev`.
fn bare(path: &Path, bytes: &Bytes, count: usize) -> f64 {
    let file = File::create(path).expect("creates");
    let (head, body) = bytes.split_at(61);
    let start = Instant::now();
    let mut position = 0;
    for _ in 0..count {
        let slices = [IoSlice::new(head), IoSlice::new(body)];
        position += rustix::io::pwritev(&file, &slices, position).expect("writes") as u64;
    }
    start.elapsed().as_secs_f64()
}

fn compare(directory: &Path, name: &str, bytes: &Bytes, count: usize) {
    let (mut best_plain, mut best_bare, mut best_log) = (f64::MAX, f64::MAX, f64::MAX);
    for round in 0..5 {
        let file = directory.join(format!("plain-{round}"));
        best_plain = best_plain.min(plain(&file, bytes, count));
        std::fs::remove_file(&file).expect("removes");
        best_bare = best_bare.min(bare(&file, bytes, count));
        std::fs::remove_file(&file).expect("removes");
        let log = directory.join(format!("log-{round}"));
        best_log = best_log.min(append(&log, bytes, count));
        std::fs::remove_dir_all(&log).expect("removes");
    }
    let megabytes = (bytes.len() * count) as f64 / 1e6;
    println!(
        "{name}: write and CRC {:.0} MB/s, log {:.0} MB/s, ratio {:.2}; {:.0} pwritev/s, {:.0} appends/s, ratio {:.2}",
        megabytes / best_plain,
        megabytes / best_log,
        best_plain / best_log,
        count as f64 / best_bare,
        count as f64 / best_log,
        best_bare / best_log,
    );
}

/// A segment of nearly 1 GiB with batches of 16 KiB, and one with single records: lookups at random, and a read from the
/// first to the last.
fn lookups(directory: &Path, name: &str, bytes: &Bytes) {
    let path = directory.join("lookups");
    let records = i64::from(zurau_broker::log::BatchHeader::parse(bytes).expect("a batch").record_count);
    append(&path, bytes, 1000 * MIB / bytes.len());
    let mode = OpenMode { clean: true, recovery_point: 0, log_start_offset: 0 };
    let mut log = PartitionLog::open(&path, config(), mode, NOW).expect("opens");
    log.update_high_watermark(log.log_end_offset());
    let end = log.log_end_offset();
    let mut offset = 1;
    let mut next = || {
        offset = (offset * 6_364_136_223 + 1_442_695) % end;
        offset
    };
    let count = 200_000;
    let timed = |what: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..count).for_each(|_| what());
        start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    };
    // Everything is in the page cache, and the first lookup gathers what later ones remember.
    drop(log.read_plan(0, MIB, end, true).expect("plans").read());
    let mut plan = |bytes| assert!(!log.read_plan(next(), bytes, end, true).expect("plans").is_empty());
    let lookup = timed(&mut || plan(1));
    let both_ends = timed(&mut || plan(MIB));
    let file = File::open(path.join("00000000000000000000.log")).expect("opens");
    let (length, mut buffer) = (log.size_bytes(), [0; 1024]);
    let floor = timed(&mut || {
        let at = next() as u64 * 1013 % (length - 1024);
        rustix::io::pread(&file, &mut buffer, at).map(drop).expect("reads");
    });
    println!("{name}: offset lookup {lookup:.2} us (one pread of 1 KiB {floor:.2} us)");
    println!("{name}: plan of a read of 1 MiB, where its last whole batch ends as well {both_ends:.2} us");
    let start = Instant::now();
    let (mut offset, mut read) = (0, 0);
    while offset < end {
        let bytes = log.read_plan(offset, MIB, end, true).expect("plans").read().expect("reads");
        read += bytes.len();
        offset += records * (bytes.len() / batch_bytes(&bytes)) as i64;
    }
    println!("{name}: sequential read {:.0} MB/s", read as f64 / 1e6 / start.elapsed().as_secs_f64());
    drop(log);
    std::fs::remove_dir_all(&path).expect("removes");
}

/// Everything unflushed is read again after a stop that was not clean. The floor: the same files read once.
fn recovery(directory: &Path) {
    let path = directory.join("recovery");
    let mib = std::env::var("ZURAU_BENCH_RECOVERY_MIB").ok().and_then(|text| text.parse().ok());
    let bytes = batch(16, 1000);
    append(&path, &bytes, mib.unwrap_or(2048) * MIB / bytes.len());
    let start = Instant::now();
    let mut buffer = vec![0; MIB];
    for entry in std::fs::read_dir(&path).expect("lists").map(|entry| entry.expect("lists").path()) {
        let mut file = File::open(entry).expect("opens");
        while std::io::Read::read(&mut file, &mut buffer).expect("reads") > 0 {}
    }
    let floor = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let log = PartitionLog::open(&path, config(), OpenMode::UNKNOWN, NOW).expect("opens");
    let seconds = start.elapsed().as_secs_f64();
    let gigabytes = log.size_bytes() as f64 / 1e9;
    println!(
        "recovery of {gigabytes:.2} GB: {:.2} GB/s (reading it once: {:.2} GB/s)",
        gigabytes / seconds,
        gigabytes / floor
    );
    drop(log);
    std::fs::remove_dir_all(&path).expect("removes");
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
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_chosen = |part: &str| chosen.is_empty() || chosen.iter().any(|name| name == part);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    if is_chosen("append") {
        compare(path, "1 MiB batches of 1 KiB records", &batch(1000, 1000), 500);
        compare(path, "16 KiB batches of 1 KiB records", &batch(16, 1000), 20_000);
        compare(path, "1 KiB single records", &batch(1, 950), 200_000);
        compare(path, "16 KiB batches of 100 B records", &batch(150, 90), 20_000);
    }
    if is_chosen("lookup") {
        lookups(path, "16 KiB batches", &batch(16, 1000));
        lookups(path, "1 KiB batches", &batch(1, 950));
    }
    if is_chosen("recovery") {
        recovery(path);
    }
    if is_chosen("idle") {
        idle_partitions(path);
    }
}
