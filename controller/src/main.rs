//! The `zurau-controller` process: configuration, logging, signals.

use std::process::ExitCode;

use clap::Parser;
use zurau_common::config::load_controller;
use zurau_common::process::{
    EXIT_CODE_CONFIGURATION, ServerArguments, StopSignals, log_warnings, start_logging,
};
use zurau_controller::Controller;

/// Elects leaders and drives creation, reassignment and deletion of partitions. Run one, and standbys beside it.
#[derive(Debug, Parser)]
#[command(name = "zurau-controller", version)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging();
    let config = match load_controller(arguments.server.config.as_deref(), &arguments.server.overrides) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(EXIT_CODE_CONFIGURATION);
        }
    };
    log_warnings(&config.settings);
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: zurau_common::config::ControllerConfig) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let controller = Controller::start(config).await?;
    tokio::select! {
        signal = signals.wait() => tracing::info!("{signal}: stopping"),
        ended = controller.wait() => return ended,
    }
    controller.shutdown().await;
    Ok(())
}
