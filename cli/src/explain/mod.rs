//! `zurau explain`: everything about one partition on one page, and what is wrong with it.
//!
//! Of its history there is what is kept: the last change of each of its znodes with time and cause, and the last ten
//! leader epochs in the leader's log. The brokers' and the controller's logs tell the rest.

mod diagnosis;
mod facts;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use zurau_common::id::TopicPartition;

use self::diagnosis::diagnose;
use self::facts::{Facts, ask_brokers, ask_zookeeper};
use crate::admin::{self, Common, exit_code};
use crate::client::Client;
use crate::table::{Table, ids, known};
use crate::tree::Tree;

/// Arguments of `zurau explain`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    tree: Tree,
    topic: String,
    partition: i32,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    facts: Facts,
    /// What is wrong, the worst first.
    findings: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("explain", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, tree, topic, partition } = arguments;
    let id = TopicPartition::new(topic.as_str(), partition);
    let mut client = Client::new(&common);
    let mut facts = ask_brokers(&mut client, &id).await?;
    if let Some(zookeeper) = tree.open(&common).await? {
        let asked = ask_zookeeper(&zookeeper, &id, &mut facts).await;
        zookeeper.close().await;
        asked?;
    }
    facts.conclude();
    let document = Document { findings: diagnose(&facts), facts };
    common.output.print(&document, page)?;
    Ok(exit_code(true))
}

fn page(document: &Document) -> Table {
    let facts = &document.facts;
    let mut table = Table::new(&[
        "REPLICA",
        "ALIVE",
        "IN",
        "BROKER EPOCH",
        "START",
        "HIGH WATERMARK",
        "END",
        "LAG",
        "NOTE",
    ]);
    for replica in &facts.replicas {
        let broker = replica.broker;
        let set = |name: &'static str, ids: &[i32]| ids.contains(&broker).then_some(name);
        let leads = (facts.leader == Some(broker)).then_some("leader");
        let sets = [
            leads,
            set("AR", &facts.ar),
            set("ISR", &facts.isr),
            set("CUR", &facts.cur),
            set("RAR", facts.rar.as_deref().unwrap_or_default()),
            set("ELR", facts.elr.as_deref().unwrap_or_default()),
        ];
        table.row([
            broker.to_string(),
            if replica.alive { "yes" } else { "no" }.to_owned(),
            sets.into_iter().flatten().collect::<Vec<_>>().join(","),
            known(replica.broker_epoch),
            known(replica.log_start_offset),
            known(replica.high_watermark),
            known(replica.log_end_offset),
            known(replica.lag),
            replica.error.clone().unwrap_or_default(),
        ]);
    }
    notes(document, &mut table);
    table
}

/// What stands below the table of replicas.
fn notes(document: &Document, table: &mut Table) {
    let facts = &document.facts;
    table.note(format!(
        "leader {}, leader epoch {}, partition epoch {}, controller epoch {} (elected by {})",
        known(facts.leader),
        known(facts.leader_epoch),
        known(facts.partition_epoch),
        known(facts.controller_epoch),
        known(facts.elected_by_controller_epoch)
    ));
    let set = |ids_of: &Option<Vec<i32>>| ids_of.as_deref().map_or_else(|| "-".to_owned(), ids);
    table.note(format!(
        "AR {}, ISR {}, CUR {}, RAR {}, ELR {}, min ISR {}",
        ids(&facts.ar),
        ids(&facts.isr),
        ids(&facts.cur),
        set(&facts.rar),
        set(&facts.elr),
        facts.min_insync_replicas
    ));
    for change in &facts.last_changes {
        let at = Timestamp::from_millisecond(change.at)
            .map_or_else(|_| change.at.to_string(), |at| at.to_string());
        table.note(format!("{at} {}", change.change));
    }
    for epoch in &facts.epochs {
        table.note(format!("leader epoch {} ends at offset {}", epoch.leader_epoch, epoch.end_offset));
    }
    if facts.elr.is_none() {
        table.note("--zookeeper tells epochs, RAR, ELR, errors and the last changes too");
    }
    for finding in &document.findings {
        table.note(format!("! {finding}"));
    }
    if document.findings.is_empty() {
        table.note("nothing is wrong");
    }
}
