//! The hot leaves of produce and fetch, one at a time: `cargo bench -p zurau-broker --bench leaves`, with the directory
//! to write to in `TMPDIR`. What they come to together is measured by the other benches.

mod batches;

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kafka_protocol::records::Compression;
use zurau_broker::cores::OffsetWaiters;
use zurau_broker::cores::leader::{Leader, LeaderRules, LogEnds, Office};
use zurau_broker::cores::progress::FollowerFetch;
use zurau_broker::log::{
    AppendOrigin, BatchRules, CheckedBatches, LogConfig, OpenMode, PartitionLog, Verification,
};
use zurau_common::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::zk::isr::StoredIsr;

use batches::{NOW, encode, value};

const MIB: usize = 1 << 20;
/// Of the log that is read: many index blocks, and no trouble for the page cache.
const LOG_BYTES: usize = 256 * MIB;

fn batch(records: usize, value_bytes: usize, compression: Compression) -> Bytes {
    encode(records, &value(value_bytes), compression, |_| None)
}

fn config() -> LogConfig {
    LogConfig { max_message_bytes: 8 << 20, ..LogConfig::default() }
}

fn check(bytes: &Bytes) -> CheckedBatches {
    CheckedBatches::new(bytes.clone(), BatchRules::of(&config()), AppendOrigin::Client, NOW)
}

/// What a produce does before the partition is locked, and what it does with the lock.
fn produce(criterion: &mut Criterion) {
    let rows = [
        ("one record of 1 KiB", batch(1, 950, Compression::None)),
        ("16 records of 1 KiB", batch(16, 1000, Compression::None)),
        ("1000 records of 1 KiB", batch(1000, 1000, Compression::None)),
        ("1000 records of 1 KiB, lz4", batch(1000, 1000, Compression::Lz4)),
        ("1000 records of 1 KiB, zstd", batch(1000, 1000, Compression::Zstd)),
    ];
    for (name, bytes) in &rows {
        let mut group = criterion.benchmark_group(*name);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("check", |bencher| bencher.iter(|| check(bytes)));
        group.bench_function("stamp and append", |bencher| {
            bencher.iter_custom(|rounds| appended(bytes, rounds));
        });
        group.finish();
    }
}

/// Time with the lock. A new log now and then bounds what is written.
fn appended(bytes: &Bytes, rounds: u64) -> Duration {
    let rounds_per_log = (LOG_BYTES / bytes.len()) as u64;
    let (mut left, mut spent) = (rounds, Duration::ZERO);
    while 0 < left {
        let directory = tempfile::tempdir().expect("a directory");
        let mut log =
            PartitionLog::create(&directory.path().join("t-0"), None, config(), NOW).expect("creates");
        for _ in 0..left.min(rounds_per_log) {
            let checked = check(bytes);
            let start = Instant::now();
            log.append_checked(checked, 0, Verification::NotAsked).expect("appends");
            spent += start.elapsed();
        }
        left = left.saturating_sub(rounds_per_log);
    }
    spent
}

fn filled(path: &Path, bytes: &Bytes) -> PartitionLog {
    let mut log = PartitionLog::create(path, None, config(), NOW).expect("creates");
    for _ in 0..LOG_BYTES / bytes.len() {
        log.append_as_leader(bytes, 0, NOW).expect("appends");
    }
    log.close().expect("closes");
    let mode = OpenMode { clean: true, recovery_point: i64::MAX, log_start_offset: 0 };
    PartitionLog::open(path, config(), mode, NOW).expect("opens")
}

/// Lookups at random, and a megabyte as a fetch gets it.
fn fetch(criterion: &mut Criterion) {
    let rows = [
        ("batches of 1 KiB", batch(1, 950, Compression::None)),
        ("batches of 16 KiB", batch(16, 1000, Compression::None)),
    ];
    for (name, bytes) in rows {
        let directory = tempfile::tempdir().expect("a directory");
        let log = filled(&directory.path().join("t-0"), &bytes);
        let end = log.log_end_offset();
        let mut offset = 1;
        let mut next = || {
            offset = (offset * 6_364_136_223 + 1_442_695) % end;
            offset
        };
        let mut group = criterion.benchmark_group(name);
        group.bench_function("look an offset up", |bencher| {
            bencher.iter(|| log.read_plan(next(), MIB, end, true).expect("plans"));
        });
        group.throughput(Throughput::Bytes(MIB as u64));
        group.bench_function("fetch 1 MiB", |bencher| {
            bencher.iter(|| log.read_plan(next() / 2, MIB, end, true).expect("plans").read().expect("reads"));
        });
        group.finish();
    }
}

/// Broker 1 leads; 2 and 3 follow.
fn leader() -> Leader {
    let ids: Vec<BrokerId> = [1, 2, 3].map(BrokerId).to_vec();
    let rules = LeaderRules {
        min_insync_replicas: 2,
        unclean_election: false,
        lag_max_ms: 30_000,
        fetch_wait_max_ms: 500,
    };
    let order = LeaderAndIsr {
        partition: TopicPartition::new("t", 0),
        topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").expect("an id"),
        controller_epoch: ControllerEpoch(1),
        leader: ids[0],
        leader_epoch: LeaderEpoch(5),
        isr: ids.clone(),
        partition_epoch: PartitionEpoch(0),
        replicas: ids.clone(),
        adding_replicas: Vec::new(),
        removing_replicas: Vec::new(),
        is_new: false,
        recovery: false,
        state_version: 3,
        elr: Some(Vec::new()),
    };
    let office = Office { own: ids[0], broker_epoch: BrokerEpoch(7), epoch_start: 0, rules };
    let stored = StoredIsr { isr: ids, elr: Vec::new(), partition_epoch: PartitionEpoch(0) };
    Leader::new(office, &order, stored, 0)
}

/// A follower's fetch that moves the high watermark; and the produces that it releases.
fn commit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commit");
    let (mut leader, mut offset) = (leader(), 0);
    group.bench_function("high watermark after two fetches", |bencher| {
        bencher.iter(|| {
            offset += 1;
            for follower in [2, 3] {
                let fetch =
                    FollowerFetch { offset, broker_epoch: Some(BrokerEpoch(1)), now_ms: offset as u64 };
                assert!(leader.record_fetch(BrokerId(follower), fetch, offset));
                leader.record_answer(BrokerId(follower), offset as u64, offset as u64);
            }
            let risen = leader.risen_high_watermark(LogEnds { high_watermark: offset - 1, log_end: offset });
            assert_eq!(risen, Some(offset));
        });
    });
    for waiting in [10, 10_000] {
        let mut waiters = OffsetWaiters::default();
        (0..waiting).for_each(|offset| waiters.wait(offset, ()));
        let mut reached = 0;
        group.bench_function(format!("one of {waiting} waiters comes, one goes"), |bencher| {
            bencher.iter(|| {
                waiters.wait(reached + waiting, ());
                assert_eq!(waiters.release(reached).len(), 1);
                reached += 1;
            });
        });
    }
    group.bench_function("1000 waiters go at once", |bencher| {
        let filled = || {
            let mut waiters = OffsetWaiters::default();
            (0..1000).for_each(|offset| waiters.wait(offset, ()));
            waiters
        };
        bencher.iter_batched(filled, |mut waiters| waiters.release(1000), BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, produce, fetch, commit);
criterion_main!(benches);
