//! Runs real Kafka clients: kcat from Debian's package and Python scripts of `tests/clients` with the pinned
//! packages of `tests/clients/requirements.txt`.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::Process;
use crate::programs::project_root;

/// Why kcat cannot run here.
pub fn kcat_missing() -> Option<String> {
    let found = Command::new("kcat").arg("-V").output();
    found.is_err().then(|| "kcat is absent; install Debian's package kcat".to_owned())
}

/// Why Python clients cannot run here.
pub fn python_missing() -> Option<String> {
    let script = "import confluent_kafka, kafka, lz4, pytest, snappy, zstandard";
    match Command::new(python()).args(["-c", script]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "{} lacks the packages of tests/clients/requirements.txt ({}); run tests/run, or set ZURAU_PYTHON",
            python().display(),
            String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default()
        )),
        Err(error) => Some(format!("{} cannot be run: {error}", python().display())),
    }
}

/// The Python that has the packages of `tests/clients/requirements.txt`.
pub fn python() -> PathBuf {
    std::env::var_os("ZURAU_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

/// Runs kcat to its end; `input` becomes its standard input.
///
/// # Errors
/// It cannot be run or ends with an error, which is quoted.
pub fn kcat<S: AsRef<OsStr>>(arguments: &[S], input: Option<&Path>) -> Result<Vec<u8>> {
    let mut command = Command::new("timeout");
    command.args(["120", "kcat"]).args(arguments);
    match input {
        Some(path) => command.stdin(File::open(path).context("opening kcat's input")?),
        None => command.stdin(Stdio::null()),
    };
    let output = command.output().context("running kcat")?;
    succeeded("kcat", output)
}

/// Runs a script of `tests/clients` to its end and returns what it printed.
///
/// # Errors
/// It cannot be run or ends with an error, which is quoted.
pub fn python_script<S: AsRef<OsStr>>(script: &str, arguments: &[S]) -> Result<Vec<u8>> {
    let mut command = Command::new("timeout");
    command.arg("150").arg(python()).arg(script_path(script)).args(arguments).stdin(Stdio::null());
    let output = command.output().context("running python")?;
    succeeded(script, output)
}

fn succeeded(what: &str, output: Output) -> Result<Vec<u8>> {
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let end: Vec<&str> = errors.lines().rev().take(20).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        bail!("{what} ended with {}:\n{}", output.status, end.join("\n"));
    }
    Ok(output.stdout)
}

fn script_path(script: &str) -> PathBuf {
    project_root().join("tests/clients").join(script)
}

/// A script that runs until it is told to end with SIGTERM; it then ends by itself, without an error.
pub struct RunningScript {
    process: Process,
    script: String,
}

impl RunningScript {
    /// # Errors
    /// It cannot be started.
    pub fn start<S: AsRef<OsStr>>(script: &str, arguments: &[S], log: &Path) -> Result<Self> {
        let mut command = Command::new(python());
        command.arg(script_path(script)).args(arguments).env("PYTHONUNBUFFERED", "1");
        let process = Process::spawn(script, &mut command, log)?;
        Ok(Self { process, script: script.to_owned() })
    }

    /// # Errors
    /// It has ended by itself.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }

    /// Ends it at once, as a crash does.
    ///
    /// # Errors
    /// It has ended by itself.
    pub fn kill(mut self) -> Result<()> {
        self.process.check_running()?;
        self.process.kill()
    }

    /// # Errors
    /// It does not end within `limit`, or ends with an error, which is quoted.
    pub fn finish(mut self, limit: Duration) -> Result<()> {
        self.process.check_running()?;
        let (status, _) = self.process.stop(limit)?;
        ensure!(status.success(), "{} ended with {status}:\n{}", self.script, self.process.log_text());
        Ok(())
    }
}
