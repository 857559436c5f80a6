//! Random histories against a list of records that is never compacted (C1 to C4).

use std::collections::BTreeMap;

use kafka_protocol::records::Compression;
use proptest::prelude::*;

use super::support::{
    DELETE_RETENTION_MS, NOW, Origin, Seen, TestLog, batch, batches, config, fold, read_committed,
};
use crate::log::cleaner::{CleaningSettings, compact_once};
use crate::log::{BatchHeader, LogConfig};

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

#[derive(Clone, Debug)]
enum Step {
    /// Records (key, value), codec, producer: 0 none, 1 and 2 idempotent, 3 to 5 transactional.
    Append {
        records: Vec<(u8, Option<u8>)>,
        codec: usize,
        producer: u8,
    },
    End {
        producer: u8,
        commit: bool,
    },
    Roll,
    /// Raises the high watermark over this share of what is above it, to the end of a batch.
    Commit {
        percent: u8,
    },
    Compact {
        after_ms: i64,
        keys: usize,
    },
    Restart {
        snapshots: bool,
    },
    /// A reader stops at the last stable offset and goes on later.
    Pause,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let record = (0..8_u8, prop::option::weighted(0.75, any::<u8>()));
    let step = prop_oneof![
        8 => (prop::collection::vec(record, 1..6), 0..CODECS.len(), 0..6_u8)
            .prop_map(|(records, codec, producer)| Step::Append { records, codec, producer }),
        3 => (3..6_u8, any::<bool>()).prop_map(|(producer, commit)| Step::End { producer, commit }),
        3 => Just(Step::Roll),
        4 => prop_oneof![Just(100), 0..100_u8].prop_map(|percent| Step::Commit { percent }),
        4 => (0..DELETE_RETENTION_MS, prop_oneof![Just(1000_usize), 1..6_usize])
            .prop_map(|(after_ms, keys)| Step::Compact { after_ms, keys }),
        1 => any::<bool>().prop_map(|snapshots| Step::Restart { snapshots }),
        2 => Just(Step::Pause),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Decided { commit: bool },
    Open { producer: u8 },
}

struct Reader {
    at_ms: i64,
    offset: i64,
    map: BTreeMap<String, String>,
}

/// The log, and what it would hold if nothing was ever compacted.
struct World {
    test: TestLog,
    now_ms: i64,
    records: Vec<(Seen, Fate)>,
    next_sequence: [i32; 6],
    /// The last batch of each producer and its first offset.
    last_batch: [Option<(bytes::Bytes, i64)>; 6],
    /// Ends of all batches.
    ends: Vec<i64>,
    readers: Vec<Reader>,
}

impl World {
    fn new() -> Self {
        let config = LogConfig { segment_bytes: 600, ..config() };
        Self {
            test: TestLog::with(config),
            now_ms: NOW,
            records: Vec::new(),
            next_sequence: [0; 6],
            last_batch: Default::default(),
            ends: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn append(&mut self, records: &[(u8, Option<u8>)], codec: usize, producer: u8) {
        let texts: Vec<(String, Option<String>)> = records
            .iter()
            .map(|(key, value)| (format!("key{key}"), value.map(|value| format!("value{value}"))))
            .collect();
        let parts: Vec<_> = texts.iter().map(|(key, value)| (Some(key.as_str()), value.as_deref())).collect();
        let index = usize::from(producer);
        let origin = Origin {
            producer: (producer > 0).then_some((i64::from(producer), 0, self.next_sequence[index])),
            transactional: producer >= 3,
        };
        let bytes = batch(&parts, origin, CODECS[codec], self.now_ms);
        let info = self.test.log.append_as_leader(&bytes, 0, self.now_ms).unwrap();
        self.next_sequence[index] += records.len() as i32;
        self.ends.push(info.last_offset + 1);
        self.last_batch[index] = Some((bytes, info.first_offset));
        let fate = if producer >= 3 { Fate::Open { producer } } else { Fate::Decided { commit: true } };
        for (index, (key, value)) in texts.into_iter().enumerate() {
            let index = index as i64;
            let (offset, timestamp) = (info.first_offset + index, self.now_ms + index);
            self.records.push((Seen { offset, timestamp, key: Some(key), value }, fate));
        }
    }

    fn end(&mut self, producer: u8, commit: bool) {
        let mut open = false;
        for (_, fate) in self.records.iter_mut().filter(|(_, fate)| *fate == Fate::Open { producer }) {
            *fate = Fate::Decided { commit };
            open = true;
        }
        if open {
            let offset = self.test.end_transaction(commit, (i64::from(producer), 0));
            self.ends.push(offset + 1);
        }
    }

    /// Committed records below the last stable offset, from `from` on, none of them compacted away.
    fn uncompacted(&self) -> Vec<Seen> {
        let stable = self.test.log.last_stable_offset();
        let committed =
            |(seen, fate): &&(Seen, Fate)| seen.offset < stable && *fate == Fate::Decided { commit: true };
        self.records.iter().filter(committed).map(|(seen, _)| seen.clone()).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let log = &self.test.log;
        let all = self.uncompacted();
        let expected = fold(&all, BTreeMap::new());
        let seen = read_committed(log, 0);
        // C1 for a reader from the start, C3: every record that is left is one that was written and committed.
        prop_assert_eq!(fold(&seen, BTreeMap::new()), expected.clone());
        for record in &seen {
            prop_assert!(all.contains(record), "{:?} was never committed", record);
        }
        // What passes have covered holds each key once.
        let cleaned: Vec<_> = seen.iter().filter(|record| record.offset < log.cleaned_offset()).collect();
        let keys: std::collections::BTreeSet<_> = cleaned.iter().map(|record| &record.key).collect();
        prop_assert_eq!(keys.len(), cleaned.len(), "a superseded record is left");
        // C1 for readers that stopped less than the retention of tombstones ago.
        let fresh = |reader: &&Reader| self.now_ms - reader.at_ms < DELETE_RETENTION_MS;
        for reader in self.readers.iter().filter(fresh) {
            let map = fold(&read_committed(log, reader.offset), reader.map.clone());
            prop_assert_eq!(map, expected.clone(), "reader from {}", reader.offset);
        }
        Ok(())
    }

    fn compact(&mut self, after_ms: i64, keys: usize) -> Result<(), TestCaseError> {
        self.now_ms += after_ms;
        let log = &mut self.test.log;
        let (end, stable) = (log.log_end_offset(), log.last_stable_offset());
        let active = log.segments.last_key_value().map_or(0, |(base, _)| *base);
        let bound = stable.min(active);
        let above = |log: &crate::log::PartitionLog| -> Vec<(BatchHeader, bytes::Bytes)> {
            let all = batches(log, 0, i64::MAX);
            all.into_iter().filter(|(header, _)| header.last_offset() >= bound).collect()
        };
        let before = above(log);
        let settings = CleaningSettings { offset_map_bytes: (keys + 1) * 24, load_factor: 1.0 };
        let report = compact_once(log, &settings, self.now_ms).unwrap();
        prop_assert_eq!(above(log), before, "C2");
        prop_assert_eq!((log.log_end_offset(), log.last_stable_offset()), (end, stable), "C4");
        if let Some(report) = report {
            prop_assert!(report.end_offset > report.first_dirty_offset, "progress");
            prop_assert!(log.cleaned_offset() <= bound);
        }
        Ok(())
    }

    fn restart(mut self, snapshots: bool) -> Result<Self, TestCaseError> {
        let (end, stable) = (self.test.log.log_end_offset(), self.test.log.last_stable_offset());
        let epochs = self.test.log.epoch_entries().to_vec();
        self.test = self.test.reopen(snapshots);
        let log = &mut self.test.log;
        prop_assert_eq!(log.log_end_offset(), end, "C4");
        prop_assert_eq!(log.last_stable_offset(), stable, "C3, T3: no transaction hangs or is forgotten");
        prop_assert_eq!(log.epoch_entries(), &epochs[..]);
        for (bytes, first_offset) in self.last_batch.iter().skip(1).flatten() {
            let info = log.append_as_leader(bytes, 0, self.now_ms);
            let info = info.map_err(|error| TestCaseError::fail(format!("retry refused: {error}")))?;
            prop_assert!(info.duplicate, "C4: the last batch at {} is not known any more", first_offset);
            prop_assert_eq!(info.first_offset, *first_offset);
        }
        Ok(self)
    }

    fn run(mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            match step {
                Step::Append { records, codec, producer } => self.append(records, *codec, *producer),
                Step::End { producer, commit } => self.end(*producer, *commit),
                Step::Roll => self.test.roll(),
                Step::Commit { percent } => {
                    let log = &mut self.test.log;
                    let above = log.log_end_offset() - log.high_watermark();
                    let target = log.high_watermark() + above * i64::from(*percent) / 100;
                    let end = self.ends.iter().rfind(|end| **end <= target).copied().unwrap_or(0);
                    log.update_high_watermark(end);
                }
                Step::Compact { after_ms, keys } => {
                    self.compact(*after_ms, *keys)?;
                    self.check()?;
                }
                Step::Restart { snapshots } => {
                    self = self.restart(*snapshots)?;
                    self.check()?;
                }
                Step::Pause => self.readers.push(Reader {
                    at_ms: self.now_ms,
                    offset: self.test.log.last_stable_offset(),
                    map: fold(&read_committed(&self.test.log, 0), BTreeMap::new()),
                }),
            }
        }
        self.test.roll();
        self.test.log.update_high_watermark(self.test.log.log_end_offset());
        self.compact(0, 1000)?;
        self.check()?;
        self.restart(false)?.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn c1_c2_c3_c4_compaction_changes_nothing_that_a_reader_can_tell(steps in steps()) {
        World::new().run(&steps)?;
    }
}
