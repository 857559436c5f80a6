//! The controller's process.

use std::process::ExitCode;

use clap::Parser;
use zurau_common::process::ServerArguments;

/// Elects leaders and drives creation, reassignment and deletion of partitions. Run one, and standbys beside it.
#[derive(Parser)]
#[command(name = "zurau-controller", version, about)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments,
}

fn main() -> ExitCode {
    zurau_controller::run(&Arguments::parse().server)
}
