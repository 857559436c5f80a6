//! `zurau recover-metadata`: rebuilds the tree of a ZooKeeper that has lost it from the log directories of the brokers.
//!
//! Without `--execute` it only says what it would write. Brokers and controllers must be stopped: the directories stay
//! locked until it is done, every write checks that no controller is there, and the cluster id, without which no broker
//! starts, is written last. A run that was interrupted is simply run again.

mod copies;
#[cfg(test)]
mod copies_tests;
mod plan;
#[cfg(test)]
mod plan_tests;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use zurau_broker::log::{SurveyedDirectory, survey_directory};
use zurau_common::id::BrokerId;

use plan::{Directory, Plan, plan};

/// Arguments of `zurau recover-metadata`.
#[derive(Args, Debug)]
pub(crate) struct RecoverMetadataArguments {
    /// The new ZooKeeper, as in zookeeper.connect.
    #[arg(long, value_name = "host:port,…[/chroot]")]
    zookeeper: String,
    /// Write the tree; without it nothing is changed.
    #[arg(long)]
    execute: bool,
    /// Write it even if committed records are in none of the directories; they are lost then.
    #[arg(long)]
    accept_loss: bool,
    /// Every log directory of every broker of the cluster.
    #[arg(required = true, value_name = "log directory")]
    directories: Vec<PathBuf>,
}

/// Runs the command; the exit code is 1 when the tree cannot be rebuilt.
pub(crate) fn run(arguments: &RecoverMetadataArguments) -> ExitCode {
    match recover(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zurau recover-metadata: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn recover(arguments: &RecoverMetadataArguments) -> anyhow::Result<()> {
    let surveyed = arguments.directories.iter().map(|path| {
        survey_directory(path)
            .with_context(|| format!("looking at {} (its broker must be stopped)", path.display()))
    });
    // They stay locked until the end.
    let surveyed: Vec<SurveyedDirectory> = surveyed.collect::<Result<_, _>>()?;
    let directories: Vec<Directory> = surveyed.iter().map(directory).collect::<Result<_, _>>()?;
    let plan = plan(&directories).map_err(anyhow::Error::msg)?;
    tell(&plan, &surveyed);
    ensure!(
        plan.losses.is_empty() || !arguments.execute || arguments.accept_loss,
        "committed records are in none of these directories (see LOSS above), nothing was written: give those of all brokers, \
         or add --accept-loss"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tree::write(&arguments.zookeeper, &plan, arguments.execute))
}

fn directory(surveyed: &SurveyedDirectory) -> anyhow::Result<Directory> {
    let SurveyedDirectory { path, broker_id, cluster_id, incarnation, logs, highest_epochs, .. } = surveyed;
    let (Some(broker_id), Some(cluster_id)) = (broker_id, cluster_id) else {
        bail!(
            "{} has no meta.properties that names a broker and a cluster; is it a log directory?",
            path.display()
        );
    };
    Ok(Directory {
        path: path.clone(),
        broker: BrokerId(*broker_id),
        cluster_id: cluster_id.clone(),
        incarnation: incarnation.clone(),
        logs: logs.clone(),
        highest_epochs: highest_epochs.clone(),
    })
}

fn tell(plan: &Plan, surveyed: &[SurveyedDirectory]) {
    println!("cluster {}, brokers {:?}", plan.cluster_id, plan.brokers.keys().collect::<Vec<_>>());
    for (name, topic) in &plan.topics {
        println!("topic {name} ({}), {} partitions", topic.id, topic.partitions.len());
        for (number, partition) in &topic.partitions {
            println!(
                "  {name}-{number}: replicas {:?}, in sync {:?}, log end {}, leader epoch {}",
                partition.hosts, partition.isr, partition.log_end_offset, partition.leader_epoch
            );
            for reason in &partition.reasons {
                println!("    {reason}");
            }
        }
    }
    for path in surveyed.iter().flat_map(|directory| &directory.set_aside) {
        println!("left as it is: {}", path.display());
    }
    for warning in &plan.warnings {
        println!("WARNING: {warning}");
    }
    for loss in &plan.losses {
        println!("LOSS: {loss}");
    }
    for (broker, registration) in &plan.brokers {
        if *registration < 0 {
            println!(
                "WARNING: broker {broker} cannot show that its directories are complete; it will leave every ISR in which \
                 it is not the last"
            );
        }
    }
    println!(
        "What only ZooKeeper knew is lost: configurations of topics and brokers, the order of replicas, reassignments under \
         way. Until you set a topic's configuration again nothing of it is deleted (retention.ms=-1), or it is compacted if \
         it was."
    );
}
