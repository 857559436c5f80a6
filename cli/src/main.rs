//! `zurau`: the development cluster and the admin's commands.

mod admin;
mod brokers;
mod can_stop;
mod client;
mod configs;
mod consume;
mod dev;
mod elect;
mod explain;
mod groups;
mod health;
mod log_dirs;
mod log_dump;
mod log_verify;
mod produce;
mod reassign;
mod records;
mod recover_metadata;
mod table;
mod topics;
mod transactions;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rustix::process::{Signal, set_parent_process_death_signal};
use zurau_common::process::ServerArguments;

/// Kafka's protocol on Apache ZooKeeper.
#[derive(Parser)]
#[command(name = "zurau", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster on this machine.
    Dev(dev::DevArguments),
    /// Write the lines of standard input as records.
    Produce(produce::Arguments),
    /// Read records to standard output.
    Consume(consume::Arguments),
    /// List, describe, create, delete and alter topics.
    Topics(topics::Arguments),
    /// Describe, set and delete configurations of topics, brokers and groups.
    Configs(configs::Arguments),
    /// List, describe, reset and delete consumer groups.
    Groups(groups::Arguments),
    /// Delete records.
    Records(records::Arguments),
    /// List, describe and abort transactions.
    Transactions(transactions::Arguments),
    /// Who is alive, where, with how much work and space.
    Brokers(brokers::Arguments),
    /// Move replicas between brokers: plan, start, status, cancel.
    Reassign(reassign::Arguments),
    /// Log directories of brokers: describe, move.
    LogDirs(log_dirs::Arguments),
    /// Elect leaders.
    Elect(elect::Arguments),
    /// Everything about one partition, and what is wrong with it.
    Explain(explain::Arguments),
    /// Whether a broker may be stopped now (exit code 0) or not (1).
    CanStop(can_stop::Arguments),
    /// Look into the files of a log.
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Ask a broker or a controller over HTTP whether it is ready; exit code 0 for yes, 1 for no.
    Health(health::HealthArguments),
    /// Rebuild the tree of a ZooKeeper that has lost it from the brokers' log directories.
    RecoverMetadata(recover_metadata::RecoverMetadataArguments),
    /// A broker of `zurau dev`.
    #[command(hide = true)]
    RunBroker(ServerArguments),
    /// The controller of `zurau dev`.
    #[command(hide = true)]
    RunController(ServerArguments),
}

#[derive(Subcommand)]
enum LogCommand {
    /// Show what stands in log, index, snapshot and checkpoint files; exits with 1 when anything is wrong.
    Dump(log_dump::LogDumpArguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Dev(arguments) => develop(arguments),
        Command::Produce(arguments) => produce::run(arguments),
        Command::Consume(arguments) => consume::run(arguments),
        Command::Topics(arguments) => topics::run(arguments),
        Command::Configs(arguments) => configs::run(arguments),
        Command::Groups(arguments) => groups::run(arguments),
        Command::Records(arguments) => records::run(arguments),
        Command::Transactions(arguments) => transactions::run(arguments),
        Command::Brokers(arguments) => brokers::run(arguments),
        Command::Reassign(arguments) => reassign::run(arguments),
        Command::LogDirs(arguments) => log_dirs::run(arguments),
        Command::Elect(arguments) => elect::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::CanStop(arguments) => can_stop::run(arguments),
        Command::Log { command: LogCommand::Dump(arguments) } => log_dump::run(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::RecoverMetadata(arguments) => recover_metadata::run(&arguments),
        Command::RunBroker(arguments) => as_child(|| zurau_broker::run(&arguments)),
        Command::RunController(arguments) => as_child(|| zurau_controller::run(&arguments)),
    }
}

fn develop(arguments: dev::DevArguments) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(dev::run(arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zurau dev: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a server that must not outlive the `zurau dev` that started it, even if that one is killed.
fn as_child(run: impl FnOnce() -> ExitCode) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        eprintln!("cannot tie this process to its parent: {error}");
    }
    run()
}
