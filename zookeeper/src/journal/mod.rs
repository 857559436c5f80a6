//! The durable side: a log of transactions and snapshots, in a format of our own (not
//! ZooKeeper's). Recovery takes the newest whole snapshot and replays the logs after it.
//!
//! Files: `snapshot.<zxid>` is the state after that transaction; `log.<zxid>` holds transactions
//! after it. A log is never appended to after a restart: recovery writes a snapshot and starts the
//! next log, so a torn tail is left behind in a file that goes away.

mod record;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use bytes::Bytes;

use crate::core::change::Transaction;
use crate::core::{Core, Limits, Now};

/// A new snapshot is due when the log has outgrown the last snapshot by this factor ...
const LOG_TO_SNAPSHOT_RATIO: u64 = 2;
/// ... and is at least this long, in bytes.
const LOG_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// An open data directory. Every call blocks on the disk.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    log: File,
    log_bytes: u64,
    snapshot_bytes: u64,
    /// Held while the directory is in use.
    _lock: File,
}

impl Journal {
    /// Recovers the state in `directory`, which is created when absent. Errors: another process
    /// holds it, it cannot be read or written, or a log other than the last is damaged.
    pub(crate) fn open(directory: &Path, limits: Limits, now: Now) -> anyhow::Result<(Self, Core)> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let lock = lock(directory)?;
        let core = recover(directory, limits, now)?;
        let zxid = core.zxid();
        // An old log of the same name holds nothing that the snapshot lacks.
        let snapshot_bytes = write_snapshot(directory, zxid, &core.to_snapshot())?;
        let log = create_log(directory, zxid)?;
        remove_older_than(directory, zxid)?;
        let journal =
            Self { directory: directory.to_owned(), log, log_bytes: 0, snapshot_bytes, _lock: lock };
        Ok((journal, core))
    }

    /// Appends the transactions and waits until the disk has them.
    pub(crate) fn commit(&mut self, transactions: &[Transaction]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for transaction in transactions {
            record::append(&mut bytes, &transaction.encode());
        }
        self.log
            .write_all(&bytes)
            .and_then(|()| self.log.sync_data())
            .with_context(|| format!("cannot write the transaction log in {}", self.directory.display()))?;
        self.log_bytes += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn wants_snapshot(&self) -> bool {
        self.log_bytes >= LOG_BYTES_MIN.max(self.snapshot_bytes * LOG_TO_SNAPSHOT_RATIO)
    }

    /// Replaces the log so far by a snapshot of the state after its last transaction.
    pub(crate) fn snapshot(&mut self, zxid: i64, records: &[Bytes]) -> anyhow::Result<()> {
        self.snapshot_bytes = write_snapshot(&self.directory, zxid, records)?;
        self.log = create_log(&self.directory, zxid)?;
        self.log_bytes = 0;
        remove_older_than(&self.directory, zxid)
    }
}

fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(anyhow!("{} is in use by another process; stop it or choose another", directory.display()))
        }
        Err(TryLockError::Error(error)) => Err(error).context(format!("cannot lock {}", path.display())),
    }
}

/// Numbers of the files called `<prefix>.<number>`, ascending.
fn numbers(directory: &Path, prefix: &str) -> anyhow::Result<Vec<i64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_prefix('.'));
        found.extend(number.and_then(|number| i64::from_str_radix(number, 16).ok()));
    }
    found.sort_unstable();
    Ok(found)
}

fn file(directory: &Path, prefix: &str, zxid: i64) -> PathBuf {
    directory.join(format!("{prefix}.{zxid:016x}"))
}

fn recover(directory: &Path, limits: Limits, now: Now) -> anyhow::Result<Core> {
    let mut core = newest_snapshot(directory, limits, now)?;
    let logs = numbers(directory, "log")?;
    // The last log that starts at or before the snapshot may hold what follows it.
    let base = core.zxid();
    let first = logs.iter().rposition(|start| *start <= base).unwrap_or(0);
    for (index, start) in logs.iter().enumerate().skip(first) {
        let path = file(directory, "log", *start);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (records, rest) = record::split(Bytes::from(bytes));
        if rest > 0 {
            ensure!(
                index + 1 == logs.len(),
                "{} is damaged {rest} bytes before its end, and newer logs follow it",
                path.display()
            );
            tracing::warn!(path = %path.display(), bytes = rest, "cut the torn tail of a transaction log");
        }
        for record in records {
            let transaction = Transaction::decode(record)
                .map_err(|error| anyhow!("{} holds no transaction: {}", path.display(), error.0))?;
            let zxid = transaction.stamp.zxid;
            if zxid > core.zxid() {
                ensure!(
                    zxid == core.zxid() + 1,
                    "{} skips from transaction {:#x} to {zxid:#x}",
                    path.display(),
                    core.zxid()
                );
                core.replay(&transaction, now);
            }
        }
    }
    Ok(core)
}

fn newest_snapshot(directory: &Path, limits: Limits, now: Now) -> anyhow::Result<Core> {
    let snapshots = numbers(directory, "snapshot")?;
    for zxid in snapshots.iter().rev() {
        let path = file(directory, "snapshot", *zxid);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (records, _) = record::split(Bytes::from(bytes));
        match Core::from_snapshot(records, limits, now) {
            Ok(core) => return Ok(core),
            Err(error) => {
                tracing::warn!(path = %path.display(), reason = error.0, "skip a damaged snapshot");
            }
        }
    }
    if !snapshots.is_empty() {
        bail!("no snapshot in {} can be read; restore one or empty the directory", directory.display());
    }
    Ok(Core::new(limits, now))
}

/// Writes beside the final name and renames, so that a file of that name is always whole.
fn write_snapshot(directory: &Path, zxid: i64, records: &[Bytes]) -> anyhow::Result<u64> {
    let mut bytes = Vec::new();
    for record in records {
        record::append(&mut bytes, record);
    }
    let path = file(directory, "snapshot", zxid);
    let temporary = directory.join("snapshot.writing");
    File::create(&temporary)
        .and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, &path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    sync_directory(directory)?;
    Ok(bytes.len() as u64)
}

fn create_log(directory: &Path, zxid: i64) -> anyhow::Result<File> {
    let path = file(directory, "log", zxid);
    let log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    sync_directory(directory)?;
    Ok(log)
}

fn sync_directory(directory: &Path) -> anyhow::Result<()> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("cannot sync {}", directory.display()))
}

fn remove_older_than(directory: &Path, zxid: i64) -> anyhow::Result<()> {
    for prefix in ["snapshot", "log"] {
        for number in numbers(directory, prefix)?.into_iter().filter(|number| *number < zxid) {
            let path = file(directory, prefix, number);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
