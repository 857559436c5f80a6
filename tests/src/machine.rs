//! What this machine can do at best: the floors that every benchmark result is held against.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::fs::Advice;

/// Megabytes per second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// One TCP flow over loopback with 64 KiB writes, in MB/s.
///
/// # Errors
/// The connection fails.
pub fn loopback_rate(total: u64) -> Result<f64> {
    flow(total, 64 << 10, 256 << 10, |_| Ok(()))
}

/// One TCP flow over loopback whose receiver appends what it reads to a file, into the page cache, in MB/s: what a
/// broker must do at least.
///
/// # Errors
/// The connection fails or the file cannot be written.
pub fn receive_and_append_rate(directory: &Path, total: u64) -> Result<f64> {
    const CHUNK: usize = 1 << 20;
    let path = directory.join("receive-and-append");
    let mut file = File::create(&path).context("creating a file")?;
    let found = flow(total, CHUNK, CHUNK, move |bytes| Ok(file.write_all(bytes)?))?;
    fs::remove_file(&path)?;
    Ok(found)
}

/// Sends `total` bytes over loopback in writes of `written_bytes`; the receiver gives what it reads, up to `read_bytes` at
/// once, to `receive`. In MB/s.
fn flow(
    total: u64,
    written_bytes: usize,
    read_bytes: usize,
    mut receive: impl FnMut(&[u8]) -> Result<()> + Send + 'static,
) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let receiver = thread::spawn(move || -> Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; read_bytes];
        let mut seen = 0;
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(seen);
            }
            receive(&buffer[..count])?;
            seen += count as u64;
        }
    });
    let mut stream = TcpStream::connect(address)?;
    let chunk = vec![7; written_bytes];
    let start = Instant::now();
    let mut sent = 0;
    while sent < total {
        stream.write_all(&chunk)?;
        sent += chunk.len() as u64;
    }
    drop(stream);
    let seen = receiver.join().map_err(|_| anyhow!("the receiver panicked"))??;
    Ok(rate(seen, start.elapsed()))
}

/// Appends of 1 MiB to a new file, into the page cache, in MB/s. The first run touches fresh memory; the second is
/// the machine's real rate.
///
/// # Errors
/// The file cannot be written.
pub fn append_rate(directory: &Path, total: u64) -> Result<f64> {
    let path = directory.join("append-rate");
    let chunk = vec![7; 1 << 20];
    let mut best: f64 = 0.0;
    for _ in 0..2 {
        let mut file = File::create(&path).context("creating a file")?;
        let start = Instant::now();
        let mut written = 0;
        while written < total {
            file.write_all(&chunk)?;
            written += chunk.len() as u64;
        }
        best = best.max(rate(written, start.elapsed()));
    }
    fs::remove_file(&path)?;
    Ok(best)
}

/// Median time of an append of 4 KiB and fdatasync.
///
/// # Errors
/// The file cannot be written.
pub fn sync_time(directory: &Path, rounds: usize) -> Result<Duration> {
    let path = directory.join("sync-time");
    let mut file = File::create(&path).context("creating a file")?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds.max(1) {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Fills the page cache, as it is on every machine that has run for a while, with zeros of a file that has no blocks: new
/// pages of a log then take the place of old ones. A hypervisor that has memory which a guest leaves free back soon makes
/// the first write to it ten times as slow as any other, and a bench would measure that.
///
/// # Errors
/// The file cannot be made or read, or the system does not tell how much memory is free.
pub fn fill_page_cache(directory: &Path) -> Result<()> {
    const CHUNK: u64 = 8 << 20;
    const LEFT_FREE: u64 = 1 << 30;
    let path = directory.join("ballast");
    let file = File::options().create(true).truncate(false).write(true).read(true).open(&path);
    let file = file.context("creating a file that fills the page cache")?;
    let size = memory("MemTotal:")?;
    file.set_len(size)?;
    for at in (0..size).step_by(usize::try_from(CHUNK)?) {
        if memory("MemFree:")? <= LEFT_FREE {
            break;
        }
        // Parts that are there already cost nothing.
        rustix::fs::fadvise(&file, at, NonZeroU64::new(CHUNK), Advice::WillNeed)?;
    }
    Ok(())
}

fn memory(name: &str) -> Result<u64> {
    memory_in(&fs::read_to_string("/proc/meminfo")?, name)
}

/// Bytes that a line of /proc/meminfo tells.
///
/// # Errors
/// There is no such line, or no number in it.
pub fn memory_in(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {name} in /proc/meminfo"))? << 10)
}
