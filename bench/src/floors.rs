//! What this machine can do at best, measured in the same run: numbers without it mean nothing.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use zurau_tests::machine;

use crate::report::{Bar, Floor, Report, milliseconds};

/// Rates in MB/s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floors {
    loopback: f64,
    /// One flow over loopback that is appended to a file.
    receive_and_append: f64,
}

/// How much to move for each of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) bytes: u64,
    pub(crate) syncs: usize,
}

impl Floors {
    pub(crate) fn loopback(&self, bar: Option<Bar>) -> Floor<'static> {
        Floor { name: "loopback", megabytes_per_second: self.loopback, bar }
    }

    pub(crate) fn receive_and_append(&self) -> Floor<'static> {
        Floor { name: "receive and append", megabytes_per_second: self.receive_and_append, bar: None }
    }

    /// # Errors
    /// The loopback or the directory does not work.
    pub(crate) fn measure(report: &mut Report, directory: &Path, effort: Effort) -> Result<Self> {
        let loopback = machine::loopback_rate(effort.bytes)?;
        report.add("loopback TCP, one flow", loopback, "MB/s", None);
        let append = machine::append_rate(directory, effort.bytes / 2)?;
        report.add("page-cache append", append, "MB/s", None);
        let receive_and_append = machine::receive_and_append_rate(directory, effort.bytes / 2)?;
        report.add("receive from loopback and append", receive_and_append, "MB/s", None);
        let sync = milliseconds(machine::sync_time(directory, effort.syncs)?);
        report.add("append 4 KiB + fdatasync, median", sync, "ms", None);
        report.add("CRC32C", crc_rate(effort.bytes / 8), "MB/s", None);
        Ok(Self { loopback, receive_and_append })
    }
}

fn crc_rate(bytes: u64) -> f64 {
    let block = vec![7_u8; 1 << 20];
    let rounds = (bytes >> 20).max(1);
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..rounds {
        sum ^= crc32c::crc32c(std::hint::black_box(&block));
    }
    std::hint::black_box(sum);
    (rounds << 20) as f64 / 1e6 / start.elapsed().as_secs_f64()
}
