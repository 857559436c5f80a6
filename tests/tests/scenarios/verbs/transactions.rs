//! `zurau transactions`: a transaction whose producer went away is found and aborted.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use zurau_tests::clients::{python_missing, python_script};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, eventually, scenario, skip};

use super::{fill, json_of, refused, run, start};

fn committed(cluster: &Cluster) -> Result<usize> {
    let arguments = ["consume", "t", "--from-beginning", "-e", "--isolation", "read-committed"];
    let output = run(cluster, &arguments, "")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout.iter().filter(|byte| **byte == b'\n').count())
}

#[test]
fn a_hanging_transaction_is_aborted() {
    if let Some(why) = python_missing() {
        return skip("a_hanging_transaction_is_aborted", &why);
    }
    scenario("a-hanging-transaction-is-aborted", |directory| {
        let mut cluster = start(directory)?;
        cluster.create_topic("t", &["[1,2]"])?;
        fill(&cluster, "t", 0, 2)?;
        python_script("open_transaction.py", &[&cluster.bootstrap(), "t", "hanging"])?;
        fill(&cluster, "t", 0, 3)?;
        ensure!(committed(&cluster)? == 2, "what follows an open transaction is shown");

        let listed = json_of(&cluster, &["transactions", "list", "--state", "Ongoing"])?;
        ensure!(listed[0]["transactional_id"] == "hanging", "{listed}");
        let described = json_of(&cluster, &["transactions", "describe", "hanging"])?;
        ensure!(described[0]["topics"] == json!([{"topic": "t", "partitions": [0]}]), "{described}");
        let producers =
            json_of(&cluster, &["transactions", "producers", "--topic", "t", "--partition", "0"])?;
        let open = producers.as_array().context("a list")?.iter();
        let open: Vec<_> = open.filter(|one| one["transaction_start_offset"] == 2).collect();
        ensure!(open.len() == 1 && open[0]["producer_id"] == described[0]["producer_id"], "{producers}");

        let at = ["transactions", "abort", "--topic", "t", "--partition", "0", "--start-offset"];
        let wrong = refused(&cluster, &[&at[..], &["0"]].concat(), 1)?;
        ensure!(wrong.contains("open are 2"), "{wrong}");
        let aborted = json_of(&cluster, &[&at[..], &["2"]].concat())?;
        ensure!(aborted["producer_id"] == described[0]["producer_id"], "{aborted}");
        eventually("what follows can be read", START_LIMIT, || {
            let found = committed(&cluster)?;
            ensure!(found == 5, "{found} records");
            Ok(Some(()))
        })?;
        cluster.check_running()
    });
}
