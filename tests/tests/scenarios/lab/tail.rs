//! What a machine that loses its power does to a log: whatever was written after the last sync may be gone, in part.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use super::random::Random;

/// Bytes of a batch's header up to its length: base offset and length.
const BATCH_PREFIX: usize = 12;

/// Cuts the logs below `data` somewhere behind their recovery points. Says how many bytes are gone.
pub(super) fn lose_unsynced(data: &Path, random: &mut Random) -> Result<u64> {
    let synced = recovery_points(data)?;
    let mut lost = 0;
    for entry in fs::read_dir(data).context("listing the data directory")? {
        let directory = entry?.path();
        let Some(name) = directory.file_name().and_then(|name| name.to_str()) else { continue };
        if directory.is_dir() {
            let point = synced.get(name).copied().unwrap_or(0);
            lost += cut_log(&directory, point, random).with_context(|| format!("cutting {name}"))?;
        }
    }
    Ok(lost)
}

/// `topic-partition` → the offset below which everything is synced.
fn recovery_points(data: &Path) -> Result<BTreeMap<String, i64>> {
    let path = data.join("recovery-point-offset-checkpoint");
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut points = BTreeMap::new();
    // The first two lines are the version and the number of entries.
    for line in text.lines().skip(2) {
        let mut fields = line.rsplitn(3, ' ');
        let mut next = || fields.next().context("a short line in a checkpoint");
        let (offset, partition, topic) = (next()?, next()?, next()?);
        points.insert(format!("{topic}-{partition}"), offset.parse()?);
    }
    Ok(points)
}

/// The segments of a log by ascending base offset: the last one that may be cut is, those after it lose everything.
fn cut_log(directory: &Path, synced: i64, random: &mut Random) -> Result<u64> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            segments.push(path);
        }
    }
    segments.sort();
    let mut lost = 0;
    let mut cut = false;
    for segment in segments {
        let bytes = fs::read(&segment)?;
        let keep = if cut { 0 } else { kept(&bytes, synced, random) };
        cut |= keep < bytes.len();
        if keep < bytes.len() {
            File::options().write(true).open(&segment)?.set_len(keep as u64)?;
            lost += (bytes.len() - keep) as u64;
        }
    }
    Ok(lost)
}

/// How many bytes of a segment survive: all that is synced, and any part of the rest.
fn kept(bytes: &[u8], synced: i64, random: &mut Random) -> usize {
    let mut position = 0;
    while let Some(prefix) = bytes.get(position..position + BATCH_PREFIX) {
        let (offset, length) = prefix.split_at(8);
        let offset = i64::from_be_bytes(offset.try_into().unwrap_or_default());
        let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
        if offset >= synced || length == 0 {
            break;
        }
        position += BATCH_PREFIX + length;
    }
    let position = position.min(bytes.len());
    position + random.below(bytes.len() - position + 1)
}

#[test]
fn a_cut_spares_what_is_synced() {
    let batch = |offset: i64| {
        let mut bytes = offset.to_be_bytes().to_vec();
        bytes.extend(8_u32.to_be_bytes());
        bytes.extend([7; 8]);
        bytes
    };
    let log: Vec<u8> = (0..4).flat_map(batch).collect();
    let mut random = Random::new(1);
    let lengths: Vec<usize> = (0..200).map(|_| kept(&log, 2, &mut random)).collect();
    assert!(lengths.iter().all(|length| (40..=80).contains(length)));
    assert!(lengths.contains(&40) && lengths.contains(&80) && lengths.iter().any(|length| length % 20 != 0));
}
