//! A child process with its output in a file, ended by its own pid, never left behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// Linux's USER_HZ, the unit of the times in /proc; the same on every machine.
const TICKS_PER_SECOND: u64 = 100;

pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with standard output and error appended to `log`.
    ///
    /// # Errors
    /// The program cannot be started or the log not be written.
    pub fn spawn(name: impl Into<String>, command: &mut Command, log: &Path) -> Result<Self> {
        let name = name.into();
        let output = File::options().append(true).create(true).open(log).context("opening the log")?;
        let errors = output.try_clone()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name}: {:?}", command.get_program()))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// What the process has printed, in all its lives.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// # Errors
    /// The process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no pid", self.name))?;
        kill_process(pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Ends it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// It could not be signalled or waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }

    /// Asks with SIGTERM and returns the exit status and the time it took.
    ///
    /// # Errors
    /// It has not ended within `limit`.
    pub fn stop(&mut self, limit: Duration) -> Result<(ExitStatus, Duration)> {
        self.stop_with(Signal::TERM, limit)
    }

    /// Like [`Self::stop`], with another signal.
    ///
    /// # Errors
    /// It has not ended within `limit`.
    pub fn stop_with(&mut self, signal: Signal, limit: Duration) -> Result<(ExitStatus, Duration)> {
        let start = Instant::now();
        self.signal(signal)?;
        let what = format!("{} ends after {signal:?}", self.name);
        let status = eventually(&what, limit, || Ok(self.child.try_wait()?))?;
        Ok((status, start.elapsed()))
    }

    /// # Errors
    /// It could not be signalled.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// # Errors
    /// It could not be signalled.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Its exit status, once it has ended.
    ///
    /// # Errors
    /// The system cannot tell.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// # Errors
    /// It has ended, with its exit status and the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.exited()? {
            let text = self.log_text();
            let end: Vec<&str> = text.lines().rev().take(15).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            bail!("{} has ended by itself ({status}); its last words:\n{}", self.name, end.join("\n"));
        }
        Ok(())
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// It has not ended within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        eventually(&what, limit, || Ok(self.child.try_wait()?))
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.pid())
    }

    /// User and system time so far.
    ///
    /// # Errors
    /// The process is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time(self.pid())
    }
}

/// Resident memory of any process, in bytes.
///
/// # Errors
/// The process is gone.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number in VmRSS")?.parse()?;
    Ok(kib * 1024)
}

/// User and system time of any process so far.
///
/// # Errors
/// The process is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(')').context("an unknown form of /proc/pid/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| -> Result<u64> { Ok(fields.get(index).context("too short")?.parse()?) };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS_PER_SECOND))
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already; both calls then fail and there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
