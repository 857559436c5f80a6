//! Sound bytes, changed at random, given to everything that reads bytes of clients or files: no panic, no hang, no
//! allocation beyond bounds. Deterministic: `ZURAU_CORPUS_SEED=n` replays one round, `ZURAU_CORPUS_ROUNDS=n` sets how
//! many run.

use std::path::Path;

use bytes::Bytes;
use kafka_protocol::records::Compression;

use super::directory_in_memory;
use crate::log::batch::HEADER_BYTES;
use crate::log::epochs::LeaderEpochs;
use crate::log::meta_properties::MetaProperties;
use crate::log::producers::ProducerStates;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::transaction_index::decode_entries;
use crate::log::{
    AppendOrigin, BatchHeader, Batches, Incarnation, LogConfig, OpenMode, PartitionLog, Records, check_crc,
    decode_offsets, decompress,
};

const NOW: i64 = 1_000_000;
const ROUNDS: u64 = 1_000;
/// Address space that a run may take besides what is there: the largest body that is decompressed, several times.
const GROWTH_BYTES_MAX: u64 = 4 << 30;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// Changes some bytes: flips, numbers at the edge of their range, cuts, repetitions, holes.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            match self.below(7) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => {
                    let value = [0_u32, u32::MAX, 0x7fff_ffff, 0x8000_0000, 0xff][self.below(5)];
                    let end = (at + 4).min(bytes.len());
                    bytes[at..end].copy_from_slice(&value.to_be_bytes()[..end - at]);
                }
                3 => bytes.truncate(at),
                4 => {
                    let end = (at + 1 + self.below(64)).min(bytes.len());
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
                5 => {
                    let end = (at + 1 + self.below(64)).min(bytes.len());
                    bytes[at..end].fill(0);
                }
                _ => drop(bytes.remove(at)),
            }
        }
    }
}

/// Every kind of batch, one after the other.
fn batches(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut base_offset = 0;
    let codecs =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    for (index, compression) in codecs.into_iter().enumerate() {
        let spec = BatchSpec {
            base_offset,
            records: 1 + (seed as i32 + index as i32) % 7,
            timestamp: NOW,
            value_bytes: 40,
            compression,
            producer: Some((7, 0, base_offset as i32)),
            ..BatchSpec::default()
        };
        base_offset += i64::from(spec.records);
        bytes.extend_from_slice(&batch(&spec));
    }
    let mut ending = marker(false, (7, 0), 0, NOW).to_vec();
    ending[..8].copy_from_slice(&base_offset.to_be_bytes());
    bytes.extend_from_slice(&ending);
    bytes
}

/// Makes the CRC of each batch fit, so that the change is seen behind it, too.
fn repair(bytes: &mut [u8]) {
    let mut at = 0;
    while let Ok(header) = BatchHeader::parse(&bytes[at..]) {
        let Some(end) = at.checked_add(header.size_bytes()).filter(|end| *end <= bytes.len()) else { return };
        let crc = crc32c::crc32c(&bytes[at + 21..end]);
        bytes[at + 17..at + 21].copy_from_slice(&crc.to_be_bytes());
        at = end;
    }
}

fn read_batches(bytes: &[u8]) {
    let mut records = 0;
    for (header, range) in Batches::new(bytes).map_while(Result::ok) {
        let whole = &bytes[range];
        let _ = check_crc(&header, whole);
        if let Ok(plain) = decompress(header.compression(), &whole[HEADER_BYTES..]) {
            let count = Records::new(&plain, header.record_count).take_while(Result::is_ok).count();
            assert!(count <= plain.len(), "a record has at least a byte");
            records += count;
        }
    }
    assert!(records <= 128 << 20);
}

fn batches_of_clients_and_leaders(seed: u64, path: &Path) {
    let mut random = Random(seed);
    let mut bytes = batches(seed);
    random.change(&mut bytes);
    if random.below(4) > 0 {
        repair(&mut bytes);
    }
    read_batches(&bytes);
    let bytes = Bytes::from(bytes);
    let mut log = PartitionLog::create(path, None, LogConfig::default(), NOW).unwrap();
    for origin in [AppendOrigin::Client, AppendOrigin::Coordinator] {
        let end = log.log_end_offset();
        if log.append_with_origin(&bytes, 0, origin, NOW).is_err() {
            assert_eq!(log.log_end_offset(), end, "all or nothing");
        }
    }
    let _ = log.append_as_follower(&bytes, NOW);
}

fn texts_and_snapshots(seed: u64) {
    let mut random = Random(seed);
    let mut states = ProducerStates::new(0);
    for (header, _) in Batches::new(&batches(seed)).map(Result::unwrap) {
        states.adopt(&header, None);
    }
    let sound: [&[u8]; 6] = [
        &states.encode(),
        b"0\n2\nt 0 5\na-b 12 7\n",
        b"0\n2\n0 0\n5 1234567\n",
        b"#\nversion=0\nbroker.id=1\ncluster.id=abc\n",
        b"{\"id\":5,\"next\":-1,\"boot\":\"x\"}",
        &[0; 68],
    ];
    for bytes in sound {
        let mut bytes = bytes.to_vec();
        random.change(&mut bytes);
        let entries = decode_offsets(&bytes).map_or(0, |offsets| offsets.len());
        let epochs = LeaderEpochs::decode(&bytes).map_or(0, |epochs| epochs.entries().len());
        let aborted = decode_entries(&bytes).map_or(0, |aborted| aborted.len());
        assert!(entries.max(epochs).max(aborted) <= bytes.len());
        let _ = MetaProperties::decode(&bytes);
        if let Some(decoded) = ProducerStates::decode(&bytes, 10) {
            assert!(decoded.len() <= bytes.len());
        }
    }
}

/// A log whose files were changed: opened, read everywhere, closed and opened again.
fn files_of_a_log(seed: u64, path: &Path) {
    let mut random = Random(seed);
    let config = LogConfig { segment_bytes: 400, index_interval_bytes: 60, ..LogConfig::default() };
    let mut log = PartitionLog::create(path, None, config.clone(), NOW).unwrap();
    log.append_as_follower(&batches(seed).into(), NOW).unwrap();
    log.append_with_origin(&marker(false, (7, 0), 0, NOW), 1, AppendOrigin::Coordinator, NOW).unwrap();
    let end = log.log_end_offset();
    log.close().unwrap();
    let mut files: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for _ in 0..=random.below(3) {
        let file = &files[random.below(files.len())];
        let mut bytes = std::fs::read(file).unwrap();
        random.change(&mut bytes);
        if random.below(2) == 0 {
            repair(&mut bytes);
        }
        std::fs::write(file, bytes).unwrap();
    }
    for clean in [true, false] {
        let mode = OpenMode { clean, recovery_point: -1, log_start_offset: 0 };
        let Ok(log) = PartitionLog::open(path, config.clone(), mode, NOW) else { continue };
        for offset in log.log_start_offset()..=log.log_end_offset().min(end + 100) {
            if let Ok(plan) = log.read_plan(offset, 1 << 20, i64::MAX, true) {
                let _ = plan.read();
            }
        }
        let _ = log.aborted_transactions(0, end);
        let _ = Incarnation::read(path);
    }
}

/// The most address space that this process had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn round(seed: u64) {
    let directory = directory_in_memory();
    batches_of_clients_and_leaders(seed, &directory.path().join("t-0"));
    texts_and_snapshots(seed);
    files_of_a_log(seed, &directory.path().join("u-0"));
}

#[test]
fn changed_bytes_harm_nobody() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("ZURAU_CORPUS_SEED") {
        return round(seed);
    }
    let before = peak_bytes();
    for seed in 0..number("ZURAU_CORPUS_ROUNDS").unwrap_or(ROUNDS) {
        if let Err(panic) = std::panic::catch_unwind(|| round(seed)) {
            eprintln!("failed with ZURAU_CORPUS_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    let growth = peak_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes more than before");
}
