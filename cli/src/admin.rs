//! What the admin's verbs share: where the cluster is, how the answer is printed, and what the exit code says: 0 done,
//! 1 failed or "no", 2 the command line is wrong.

use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use thiserror::Error;

use crate::table::Table;

/// How to reach the cluster, and how to print.
#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Brokers to ask first, as HOST:PORT[,HOST:PORT…]; without it $ZURAU_BOOTSTRAP_SERVER, else 127.0.0.1:9092.
    #[arg(long, short = 'b', global = true, value_name = "HOST:PORT")]
    bootstrap_server: Option<String>,
    /// Seconds that the whole operation may take before it counts as failed.
    #[arg(
        long,
        global = true,
        default_value_t = 30,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    pub(crate) timeout: u32,
    /// A table for people, or JSON with stable field names.
    #[arg(long, short = 'o', global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

const BOOTSTRAP_VARIABLE: &str = "ZURAU_BOOTSTRAP_SERVER";
const BOOTSTRAP_DEFAULT: &str = "127.0.0.1:9092";

impl Common {
    /// The bootstrap servers, each `host:port`.
    pub(crate) fn bootstrap(&self) -> Vec<String> {
        let given = self.bootstrap_server.clone().or_else(|| std::env::var(BOOTSTRAP_VARIABLE).ok());
        let given = given.unwrap_or_else(|| BOOTSTRAP_DEFAULT.to_owned());
        given.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// The timeout as requests carry it.
    pub(crate) fn timeout_ms(&self) -> i32 {
        i32::try_from(self.timeout().as_millis()).unwrap_or(i32::MAX)
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    #[value(alias = "text")]
    Table,
    Json,
}

impl Output {
    /// Prints one document: as it is in JSON, or as a table.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn print<T: Serialize + ?Sized>(
        self,
        document: &T,
        table: impl FnOnce(&T) -> Table,
    ) -> io::Result<()> {
        match self {
            Self::Json => self.print_json(document),
            Self::Table => print_text(&table(document)),
        }
    }

    fn print_json<T: Serialize + ?Sized>(self, document: &T) -> io::Result<()> {
        let mut output = io::stdout().lock();
        serde_json::to_writer(&mut output, document)?;
        output.write_all(b"\n")?;
        output.flush()
    }
}

/// Prints text for people.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn print_text(text: &impl fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    write!(output, "{text}")?;
    output.flush()
}

/// What the user asked for makes no sense; the exit code is 2, as for a flag that does not exist.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A usage error with its text.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Runs one verb to its end and says how it went.
pub(crate) fn run(verb: &str, work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(work));
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("zurau {verb}: {error:#}");
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whoever reads the output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        kind == Some(io::ErrorKind::BrokenPipe)
    };
    error.chain().any(io)
}

/// Parses `KEY=VALUE`.
///
/// # Errors
/// There is no `=`, or nothing before it.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// Success if all went well: a verb that did only a part of its work has failed.
pub(crate) fn exit_code(all_well: bool) -> ExitCode {
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
