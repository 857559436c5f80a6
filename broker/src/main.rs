//! The broker's process.

use std::process::ExitCode;

use clap::Parser;
use zurau_common::process::ServerArguments;

/// Serves Kafka clients, stores and replicates partitions.
#[derive(Parser)]
#[command(name = "zurau-broker", version, about)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments,
}

fn main() -> ExitCode {
    zurau_broker::run(&Arguments::parse().server)
}
