//! A crash after every step of a replacement of segments, and after losing unsynced renames: reopening gives the old
//! or the new set, never a mixture, with the same producers (CMP-04, C4).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::support::{NOW, Origin, Seen, TestLog, config, fold, open, read_committed, shown};
use crate::log::cleaner::swap::{FileStep, SwapSteps, swap_steps};
use crate::log::cleaner::{CLEANED_SUFFIX, CleaningSettings, LogAccess, pass};
use crate::log::faults::Machine;
use crate::log::{LogConfig, PartitionLog};

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Keeps a copy of the directory as it is just before each look at the log.
struct Snooping {
    log: Mutex<PartitionLog>,
    copies: Mutex<Vec<tempfile::TempDir>>,
}

impl LogAccess for Snooping {
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        let mut log = self.log.lock();
        let copy = tempfile::tempdir().unwrap();
        copy_directory(log.directory(), copy.path());
        self.copies.lock().push(copy);
        Some(work(&mut log))
    }
}

/// A directory with a replacement about to begin: its new files written as `.cleaned`.
struct Prepared {
    directory: tempfile::TempDir,
    steps: SwapSteps,
}

/// Base offsets and names of the segment files in a directory that end with `suffix`.
fn segment_files(directory: &Path, suffix: &str) -> BTreeMap<i64, Vec<PathBuf>> {
    let mut files: BTreeMap<i64, Vec<PathBuf>> = BTreeMap::new();
    for kind in [".log", ".index", ".timeindex", ".txnindex"] {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if let Some(base) = name.strip_suffix(&format!("{kind}{suffix}")) {
                let path = directory.join(format!("{base}{kind}"));
                files.entry(base.parse().unwrap()).or_default().push(path);
            }
        }
    }
    files
}

fn prepare(directory: tempfile::TempDir, end_offset: i64) -> Prepared {
    let new: Vec<Vec<PathBuf>> = segment_files(directory.path(), CLEANED_SUFFIX).into_values().collect();
    let old = segment_files(directory.path(), "");
    let old: Vec<PathBuf> = old.range(..end_offset).flat_map(|(_, files)| files.clone()).collect();
    let steps = swap_steps(directory.path(), &old, &new);
    Prepared { directory, steps }
}

impl Prepared {
    fn all_steps(&self) -> Vec<FileStep> {
        self.steps.prepare.iter().chain(&self.steps.finish).cloned().collect()
    }

    fn copy(&self) -> (tempfile::TempDir, Vec<FileStep>) {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(self.directory.path(), copy.path());
        let moved = |path: &Path| copy.path().join(path.file_name().unwrap());
        let steps = self.all_steps().into_iter().map(|step| match step {
            FileStep::Rename { from, to } => FileStep::Rename { from: moved(&from), to: moved(&to) },
            FileStep::RenameIfPresent { from, to } => {
                FileStep::RenameIfPresent { from: moved(&from), to: moved(&to) }
            }
            FileStep::SyncDirectory(_) => FileStep::SyncDirectory(copy.path().to_owned()),
        });
        let steps = steps.collect();
        (copy, steps)
    }
}

/// What must be the same in the old and the new set, and which set it is.
#[derive(Debug, PartialEq)]
struct Content {
    map: BTreeMap<String, String>,
    log_end_offset: i64,
    high_record: Option<Seen>,
    producers: Vec<u8>,
    epochs: Vec<(i32, i64)>,
}

fn content(directory: &Path, config: &LogConfig) -> (Content, Vec<String>) {
    let mut log = open(directory, config.clone());
    log.update_high_watermark(i64::MAX);
    check_directory(&log);
    content_of(&log)
}

fn content_of(log: &PartitionLog) -> (Content, Vec<String>) {
    let seen = read_committed(log, 0);
    let content = Content {
        map: fold(&seen, BTreeMap::new()),
        log_end_offset: log.log_end_offset(),
        high_record: seen.last().cloned(),
        producers: log.producers.encode(),
        epochs: log.epoch_entries().iter().map(|entry| (entry.leader_epoch, entry.start_offset)).collect(),
    };
    (content, shown(log))
}

/// Segments in order and apart (L4), and no left-overs.
fn check_directory(log: &PartitionLog) {
    let mut end = 0;
    for segment in log.segments.values() {
        assert!(segment.base_offset >= end, "segment {} begins below {end}", segment.base_offset);
        end = segment.read_next_offset().unwrap();
    }
    let files = segment_files(log.directory(), "");
    assert_eq!(files.keys().collect::<Vec<_>>(), log.segments.keys().collect::<Vec<_>>());
    for entry in fs::read_dir(log.directory()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            ![".cleaned", ".swap", ".deleted"].iter().any(|suffix| name.ends_with(suffix)),
            "{name} is left"
        );
    }
}

/// Several segments with transactions and idempotent producers that become one.
fn merging() -> Prepared {
    let mut test = TestLog::new();
    let transaction = |sequence| Origin { producer: Some((1, 0, sequence)), transactional: true };
    for round in 0..4 {
        test.append(&[&format!("a={round}"), &format!("b{round}=1")]);
        test.append_from(&[&format!("a={round}t")], transaction(round * 2));
        test.append_from(&["c=1"], transaction(round * 2 + 1));
        test.end_transaction(round % 2 == 0, (1, 0));
        test.append_from(&["d=1"], Origin { producer: Some((2, 0, round)), transactional: false });
        test.roll();
    }
    test.append(&["tail=1"]);
    test.log.update_high_watermark(test.log.log_end_offset());
    test.log.flush().unwrap();
    let end_offset = test.log.segments.last_key_value().map(|(base, _)| *base).unwrap();
    let TestLog { log, directory: _directory } = test;
    let snooping = Snooping { log: Mutex::new(log), copies: Mutex::default() };
    let settings = CleaningSettings { offset_map_bytes: 1 << 16, load_factor: 0.9 };
    pass::clean(&snooping, &settings, &mut |_| Ok(()), NOW).unwrap().unwrap();
    // The second look is the replacement.
    let copy = snooping.copies.into_inner().swap_remove(1);
    prepare(copy, end_offset)
}

/// One segment that becomes several with the same records.
fn splitting() -> Prepared {
    let texts: Vec<String> = (0..12).map(|n| format!("k{n}={n}")).collect();
    let fill = |rolled: bool| {
        let mut test = TestLog::new();
        for (index, text) in texts.iter().enumerate() {
            test.append(&[text]);
            if rolled && index % 4 == 3 {
                test.roll();
            }
        }
        test.roll();
        test.append(&["tail=1"]);
        test.log.flush().unwrap();
        test
    };
    let (whole, parts) = (fill(false), fill(true));
    let copy = tempfile::tempdir().unwrap();
    copy_directory(whole.log.directory(), copy.path());
    for (base, files) in segment_files(parts.log.directory(), "") {
        for file in files.iter().filter(|_| base < 12) {
            let name = format!("{}{CLEANED_SUFFIX}", file.file_name().unwrap().to_str().unwrap());
            fs::copy(file, copy.path().join(name)).unwrap();
        }
    }
    prepare(copy, 12)
}

fn check_every_step(prepared: &Prepared) {
    let (old_copy, _) = prepared.copy();
    let (expected, old) = content(old_copy.path(), &config());
    let steps = prepared.all_steps().len();
    let mut sets = Vec::new();
    for stop_after in 0..=steps {
        let (copy, steps) = prepared.copy();
        steps[..stop_after].iter().try_for_each(FileStep::run).unwrap();
        let (found, set) = content(copy.path(), &config());
        assert_eq!(found, expected, "stopped after step {stop_after}: {steps:?}");
        let (again, set_again) = content(copy.path(), &config());
        assert_eq!((again, &set_again), (found, &set), "a second recovery changes nothing");
        sets.push(set);
    }
    let new = sets.last().unwrap().clone();
    let point = sets.iter().position(|set| *set == new).unwrap();
    assert!(sets[..point].iter().all(|set| *set == old), "the old set until the swap set is complete");
    assert!(sets[point..].iter().all(|set| *set == new), "the new set from then on");
}

#[test]
fn cmp_04_crash_at_each_step_of_merging() {
    let prepared = merging();
    let files = segment_files(prepared.directory.path(), "");
    assert!(files.len() >= 5, "several segments become one");
    check_every_step(&prepared);
    let (copy, steps) = prepared.copy();
    let (_, old) = content(prepared.copy().0.path(), &config());
    steps.iter().try_for_each(FileStep::run).unwrap();
    let (_, new) = content(copy.path(), &config());
    assert!(new.len() < old.len(), "{old:?} became {new:?}");
    assert_eq!(segment_files(copy.path(), "").len(), 2);
}

#[test]
fn cmp_04_crash_at_each_step_of_splitting() {
    check_every_step(&splitting());
}

#[test]
fn cmp_04_crash_while_the_new_files_are_written() {
    let prepared = merging();
    let (expected_copy, _) = prepared.copy();
    let expected = content(expected_copy.path(), &config());
    for cut in [0, 1, 61, 200] {
        let (copy, _) = prepared.copy();
        let log = segment_files(copy.path(), CLEANED_SUFFIX).into_values().next().unwrap().remove(0);
        let cleaned = PathBuf::from(format!("{}{CLEANED_SUFFIX}", log.display()));
        fs::File::options().write(true).open(cleaned).unwrap().set_len(cut).unwrap();
        assert_eq!(content(copy.path(), &config()), expected, "cut at {cut}");
    }
}

#[test]
fn a_failed_step_leaves_the_log_as_it_was_or_stopped() {
    let mut test = TestLog::new();
    test.append(&["a=1"]);
    test.append(&["a=2"]);
    test.roll();
    test.log.update_high_watermark(2);
    // Something in the way of the set-aside name: a rename onto a directory fails.
    let path = test.log.segments.first_key_value().unwrap().1.log.path();
    fs::create_dir(format!("{}.deleted", path.display())).unwrap();
    let error = crate::log::compact_once(&mut test.log, &CleaningSettings::default(), NOW).unwrap_err();
    assert!(error.to_string().contains("rename"), "{error}");
    assert!(test.log.stopped().is_some(), "the swap set is complete: only opening again may finish it");
    fs::remove_dir(format!("{}.deleted", path.display())).unwrap();
    let test = test.reopen(true);
    assert_eq!(shown(&test.log), ["1:a=2"]);

    let mut test = TestLog::new();
    test.append(&["a=1"]);
    test.append(&["a=2"]);
    test.roll();
    test.log.update_high_watermark(2);
    let path = test.log.segments.first_key_value().unwrap().1.log.path();
    fs::create_dir(format!("{}.swap", path.display())).unwrap();
    crate::log::compact_once(&mut test.log, &CleaningSettings::default(), NOW).unwrap_err();
    fs::remove_dir(format!("{}.swap", path.display())).unwrap();
    let test = test.reopen(true);
    assert_eq!(shown(&test.log), ["0:a=1", "1:a=2"]);
}

/// Power goes off before every single change of a file that a pass makes, in different ways each time.
#[test]
fn power_loss_at_every_change_of_a_pass() {
    let fill = || {
        let mut test = TestLog::with(LogConfig { segment_bytes: 500, ..config() });
        let transaction = |sequence| Origin { producer: Some((1, 0, sequence)), transactional: true };
        for round in 0..6 {
            test.append(&[&format!("a={round}"), &format!("b{round}=1"), "c"]);
            test.append_from(&[&format!("a={round}t")], transaction(round));
            test.end_transaction(round % 2 == 0, (1, 0));
        }
        test.roll();
        test.append(&["tail=1"]);
        test.log.update_high_watermark(test.log.log_end_offset());
        test.log.flush().unwrap();
        test
    };
    let (mut changes, mut seed) = (0, 0);
    loop {
        changes += 1;
        let mut finished = false;
        for _way in 0..6 {
            seed += 1;
            Machine::start(seed);
            let mut test = fill();
            let (expected, _) = content_of(&test.log);
            Machine::stop_after(changes);
            let settings = CleaningSettings { offset_map_bytes: 1 << 16, load_factor: 0.9 };
            let result = crate::log::compact_once(&mut test.log, &settings, NOW);
            finished = !Machine::is_off();
            assert_eq!(result.is_ok(), finished, "change {changes}: {result:?}");
            let path = test.log.directory().to_owned();
            drop(test.log);
            Machine::restart();
            Machine::lose_unsynced(&path);
            let (found, _) = content(&path, &LogConfig { segment_bytes: 500, ..config() });
            assert_eq!(found, expected, "off before change {changes}, seed {seed}");
        }
        if finished {
            break;
        }
    }
    assert!(changes > 30, "{changes} changes");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    /// Power loss: of the renames since the last directory sync any may be on disk, in any combination.
    #[test]
    fn cmp_04_power_loss_with_unsynced_renames(
        stop in any::<prop::sample::Index>(),
        lost in prop::collection::vec(any::<bool>(), 64),
        split in any::<bool>(),
    ) {
        thread_local! {
            static PREPARED: [Prepared; 2] = [merging(), splitting()];
        }
        PREPARED.with(|prepared| {
            let prepared = &prepared[usize::from(split)];
            let (expected, _) = content(prepared.copy().0.path(), &config());
            let (copy, steps) = prepared.copy();
            let stop_after = stop.index(steps.len() + 1);
            let is_sync = |step: &FileStep| matches!(step, FileStep::SyncDirectory(_));
            let synced = steps[..stop_after].iter().rposition(is_sync).map_or(0, |index| index + 1);
            for (index, step) in steps[..stop_after].iter().enumerate() {
                if index < synced || !lost[index % lost.len()] {
                    step.run().unwrap();
                }
            }
            let (found, _) = content(copy.path(), &config());
            prop_assert_eq!(found, expected, "stopped after {} of {:?}", stop_after, steps);
            Ok(())
        })?;
    }
}
