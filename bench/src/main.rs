//! `zurau-bench`: starts a fresh cluster of real processes, loads it as librdkafka would, and reports the result beside
//! what this machine can do at best. Numbers without the floors of the same run mean nothing.

mod batch;
mod cold_start;
mod control;
mod full_rate;
mod paced;
mod produce;
mod report;
mod verify;

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
    /// Produce with acks=all at full rate and at a fixed rate; memory, CPU and start-up.
    Produce(produce::ProduceArguments),
    /// Failover, controlled shutdown, takeover and creation over numbers of partitions.
    Control(control::ControlArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().workload {
        Workload::Produce(arguments) => produce::run(&arguments),
        Workload::Control(arguments) => control::run(&arguments),
    };
    if let Err(error) = outcome {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
