//! What every process does at its start and its end: logging to stderr, naming its machine, and waiting for the signal
//! to stop.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, Settings};

/// Exit code of a process whose configuration is wrong; nothing was touched then.
pub const EXIT_CODE_CONFIGURATION: u8 = 2;

/// What every server takes on its command line. Order of precedence: default < file < environment < `--override`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArguments {
    /// The properties file; Kafka's keys where Kafka has them.
    #[arg(long, value_name = "server.properties")]
    pub config: Option<PathBuf>,
    /// One more setting, stronger than file and environment; may be given several times.
    #[arg(long = "override", value_name = "key=value")]
    pub overrides: Vec<String>,
}

/// A server process from its configuration to its exit code: logging, a runtime for its main task, and the signals
/// that stop it. `serve` returns when it has stopped because of a signal, or with the reason why it cannot go on.
pub fn run_server<C>(
    name: &str,
    config: Result<C, ConfigError>,
    settings: impl FnOnce(&C) -> &Settings,
    serve: impl AsyncFnOnce(C, &mut StopSignals) -> anyhow::Result<()>,
) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{name}: the configuration is wrong; nothing was started\n{error}");
            return ExitCode::from(EXIT_CODE_CONFIGURATION);
        }
    };
    start_logging();
    log_warnings(settings(&config));
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            runtime.block_on(async {
                let mut signals = StopSignals::listen()?;
                serve(config, &mut signals).await
            })
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{name} ends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// This machine's name, which an advertised listener without a host stands for; `localhost` if it has none.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    if name.is_empty() { "localhost".to_owned() } else { name.into_owned() }
}

/// What is logged when nobody asks for more. The library of the ZooKeeper session warns of every attempt to connect; the
/// session itself says every ten seconds how it stands.
const DEFAULT_FILTER: &str = "info,zookeeper_client=error";

/// Logs to stderr what `ZURAU_LOG`, else `RUST_LOG`, asks for; without either, [`DEFAULT_FILTER`]. A second call changes
/// nothing, so that several servers may run in one process.
pub fn start_logging() {
    let wanted = ["ZURAU_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().map(|text| (name, text)));
    let parsed = wanted.as_ref().map(|(name, text)| (name, EnvFilter::try_new(text)));
    let filter = match &parsed {
        Some((_, Ok(filter))) => filter.clone(),
        _ => EnvFilter::new(DEFAULT_FILTER),
    };
    // Colours are for people: a log file gets none.
    let colours = std::io::stderr().is_terminal();
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .try_init();
    if let (Ok(()), Some((name, Err(error)))) = (started, parsed) {
        tracing::warn!("{name} is no log filter ({error}); logging at level info");
    }
}

/// Logs what was odd about the configuration.
pub fn log_warnings(settings: &Settings) {
    for warning in &settings.warnings {
        tracing::warn!("configuration: {warning}");
    }
}

/// The signals that ask a process to stop.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From here on SIGTERM and SIGINT no longer kill the process.
    ///
    /// # Errors
    /// The system refuses a handler, or no tokio runtime is running.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them and names it. Cancel safe.
    pub async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn signals_are_named() {
        let mut signals = StopSignals::listen().unwrap();
        for (sent, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
            kill_process(getpid(), sent).unwrap();
            assert_eq!(signals.wait().await, name);
        }
        start_logging();
        start_logging();
    }
}
