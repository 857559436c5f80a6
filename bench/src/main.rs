//! `zurau-bench`: starts fresh clusters of real processes, loads them as librdkafka would, and reports the result beside
//! what this machine can do at best. Numbers without the floors of the same run mean nothing.

mod batch;
mod cold_start;
mod control;
mod fetch;
mod floors;
mod histogram;
mod load;
mod plot;
mod probe;
mod report;
mod suite;
mod summary;
mod system;
mod verify;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Load generator and measurements.
#[derive(Parser)]
#[command(name = "zurau-bench", version, about)]
struct Arguments {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// All workloads, beside the floors of the machine; with --against, in turns with another cluster.
    Suite(suite::SuiteArguments),
    /// Failover, controlled shutdown, takeover and creation over numbers of partitions.
    Control(control::ControlArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().workload {
        Workload::Suite(arguments) => suite::run(&arguments),
        Workload::Control(arguments) => control::run(&arguments),
    };
    if let Err(error) = outcome {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
