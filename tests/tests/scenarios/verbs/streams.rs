//! `zurau produce` and `zurau consume`, against each other and against kcat, alone and as members of a group.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::process::Process;
use zurau_tests::programs::binary;
use zurau_tests::{Cluster, eventually, scenario, skip};

use super::{json_of, refused, run, start};

/// Runs `zurau consume -e`; what it printed.
fn consumed(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let arguments = [&["consume", "-e"], arguments].concat();
    let output = run(cluster, &arguments, "")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?} ended with {}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn produced(cluster: &Cluster, arguments: &[&str], input: &str) -> Result<Vec<Value>> {
    let arguments = [&["produce", "--output", "json"], arguments].concat();
    let output = run(cluster, &arguments, input)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?} ended with {}: {errors}", output.status);
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| serde_json::from_str(line).context("a line of JSON")).collect()
}

#[test]
fn records_go_in_and_out() {
    if let Some(why) = kcat_missing() {
        return skip("records_go_in_and_out", &why);
    }
    scenario("records-go-in-and-out", |directory| {
        let mut cluster = start(directory)?;
        cluster.create_topic("t", &["[1,2]"])?;
        cluster.create_topic("keyed", &["[1]", "[2]", "[3]"])?;
        let bootstrap = cluster.bootstrap();
        for (codec, acks) in
            [("none", "all"), ("gzip", "1"), ("snappy", "0"), ("lz4", "all"), ("zstd", "all")]
        {
            let input = format!("{codec}-a\n{codec}-b\n");
            produced(&cluster, &["t", "--acks", acks, "--compression", codec], &input)?;
        }
        let expected: String =
            ["none", "gzip", "snappy", "lz4", "zstd"].map(|codec| format!("{codec}-a\n{codec}-b\n")).concat();
        ensure!(consumed(&cluster, &["t", "--from-beginning"])? == expected, "not what was written");
        let kcats = kcat(&["-b", &bootstrap, "-C", "-e", "-q", "-t", "t"], None)?;
        ensure!(String::from_utf8(kcats)? == expected, "kcat reads something else");
        ensure!(consumed(&cluster, &["t", "--offset", "8"])? == "zstd-a\nzstd-b\n", "from offset 8");
        ensure!(consumed(&cluster, &["t", "--offset", "-1"])? == "zstd-b\n", "the last one");
        ensure!(
            consumed(&cluster, &["t", "--offset", "beginning", "-n", "1"])? == "none-a\n",
            "the first one"
        );
        ensure!(consumed(&cluster, &["t"])?.is_empty(), "from the end there is nothing");
        refused(&cluster, &["consume", "t", "--offset", "99"], 1)?;

        keys_and_headers(&cluster, &bootstrap)?;
        let absent = refused(&cluster, &["produce", "absent"], 1)?;
        ensure!(absent.contains("topic absent"), "{absent}");
        cluster.check_running()
    });
}

fn keys_and_headers(cluster: &Cluster, bootstrap: &str) -> Result<()> {
    let lines: String = (0..30).map(|number| format!("k{}:v{number}\n", number % 5)).collect();
    let batches = produced(cluster, &["keyed", "-K", ":", "-H", "source=test"], &lines)?;
    let count: i64 = batches.iter().filter_map(|batch| batch["records"].as_i64()).sum();
    ensure!(count == 30 && batches.iter().all(|batch| batch["first_offset"].is_number()), "{batches:?}");
    let output = consumed(cluster, &["keyed", "--from-beginning", "--output", "json"])?;
    let records: Vec<Value> = output.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(records.len() == 30, "{} records", records.len());
    for record in &records {
        ensure!(record["headers"] == json!([{"name": "source", "value": "test"}]), "{record}");
        let same_key = records.iter().filter(|other| other["key"] == record["key"]);
        ensure!(same_key.clone().count() == 6, "{record}");
        ensure!(
            same_key.clone().all(|other| other["partition"] == record["partition"]),
            "{record} is elsewhere"
        );
    }
    // librdkafka puts keys where Kafka's Java client does with this partitioner.
    let by_kcat = "k0:x\nk1:x\nk2:x\nk3:x\nk4:x\n";
    let input = std::env::temp_dir().join(format!("zurau-keys-{}", std::process::id()));
    std::fs::write(&input, by_kcat)?;
    kcat(
        &["-b", bootstrap, "-P", "-t", "keyed", "-K", ":", "-X", "partitioner=murmur2_random"],
        Some(&input),
    )?;
    std::fs::remove_file(&input)?;
    let output = consumed(cluster, &["keyed", "--from-beginning", "--output", "json"])?;
    let all: Vec<Value> = output.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(all.len() == 35, "{} records", all.len());
    for record in all.iter().filter(|record| record["value"] == "x") {
        let own = records.iter().find(|own| own["key"] == record["key"]).context("an unknown key")?;
        ensure!(own["partition"] == record["partition"], "kcat puts {record} elsewhere than {own}");
    }
    let text = consumed(
        cluster,
        &["keyed", "--from-beginning", "--print-key", "--print-headers", "--print-partition", "-n", "1"],
    )?;
    ensure!(text.contains("\tsource=test\tk"), "{text}");
    Ok(())
}

/// A member of group g that runs until it is told to end.
fn member(cluster: &Cluster, name: &str, directory: &Path) -> Result<Process> {
    let log = directory.join(format!("{name}.log"));
    let mut command = Command::new(binary("zurau")?);
    command.args(["consume", "t", "--group", "g", "--from-beginning"]);
    command.env("ZURAU_BOOTSTRAP_SERVER", cluster.bootstrap()).stdin(Stdio::null());
    Process::spawn(name, &mut command, &log)
}

#[test]
fn members_share_the_partitions_of_a_group() {
    scenario("members-share-the-partitions-of-a-group", |directory| {
        let mut cluster =
            Cluster::builder().set_for_brokers("group.initial.rebalance.delay.ms", 0).start(directory)?;
        cluster.create_topic("t", &["[1,2]", "[2,3]"])?;
        let mut first = member(&cluster, "first", directory.path())?;
        stable_with(&cluster, 1)?;
        let mut second = member(&cluster, "second", directory.path())?;
        let described = stable_with(&cluster, 2)?;
        for member in described[0]["members"].as_array().context("a list")? {
            let partitions = member["assignment"][0]["partitions"].as_array().map_or(0, Vec::len);
            ensure!(partitions == 1 && member["client_id"] == "zurau-cli", "{member}");
        }
        let lines: String = (0..20).map(|number| format!("key-{number}\tv{number}\n")).collect();
        produced(&cluster, &["t", "--key-separator", "\t"], &lines)?;
        eventually("both together have read everything", START_LIMIT, || {
            let text = first.log_text() + &second.log_text();
            let read = (0..20).filter(|number| text.lines().any(|line| line == format!("v{number}"))).count();
            ensure!(read == 20, "{read} of 20 records");
            Ok(Some(()))
        })?;
        let busy = refused(
            &cluster,
            &["groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--execute"],
            1,
        );
        // Nothing may be committed yet; then only the coordinator can refuse.
        ensure!(busy.is_ok_and(|why| why.contains("group g")), "a group with members was reset");
        let (_, deleted) = super::answer(&cluster, &["groups", "delete", "g"])?;
        ensure!(deleted[0]["deleted"] == false, "a group with members was deleted");

        for process in [&mut first, &mut second] {
            let (status, _) = process.stop(Duration::from_secs(20))?;
            ensure!(status.success(), "{status}: {}", process.log_text());
        }
        let described = json_of(&cluster, &["groups", "describe", "g"])?;
        ensure!(described[0]["state"] == "Empty" && described[0]["total_lag"] == 0, "{described}");
        let again = run(&cluster, &["consume", "t", "-g", "g", "--from-beginning", "-e"], "")?;
        ensure!(
            again.status.success() && again.stdout.is_empty(),
            "the group reads everything again: {again:?}"
        );
        cluster.check_running()
    });
}

/// Waits until the group is stable with so many members; what it looks like then.
fn stable_with(cluster: &Cluster, members: usize) -> Result<Value> {
    eventually(&format!("{members} members are stable"), START_LIMIT, || {
        let described = json_of(cluster, &["groups", "describe", "g"])?;
        let group = &described[0];
        let found = group["members"].as_array().map_or(0, Vec::len);
        ensure!(group["state"] == "Stable" && found == members, "{described}");
        Ok(Some(described))
    })
}
