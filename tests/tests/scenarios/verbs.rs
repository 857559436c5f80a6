//! The admin's verbs of `zurau`, each run as a user runs it against three brokers. What they print as JSON is compared
//! with what the tree in ZooKeeper and other clients say.

mod log_dirs;
mod streams;
mod throttle;
mod transactions;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use serde_json::{Value, json};
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::programs::binary;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, scenario, skip};

/// Runs `zurau` with the cluster as bootstrap; `input` is its standard input.
fn run(cluster: &Cluster, arguments: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new(binary("zurau")?);
    command.args(arguments).env("ZURAU_BOOTSTRAP_SERVER", cluster.bootstrap());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting zurau")?;
    let mut stdin = child.stdin.take().context("zurau has a standard input")?;
    stdin.write_all(input.as_bytes()).context("writing to zurau")?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}

/// Runs a verb that must succeed; its JSON.
pub(crate) fn json_of(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let (code, value) = answer(cluster, arguments)?;
    ensure!(code == 0, "{arguments:?} ended with {code}: {value}");
    Ok(value)
}

/// Runs a verb that may say no; its exit code and JSON.
fn answer(cluster: &Cluster, arguments: &[&str]) -> Result<(i32, Value)> {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--output", "json"]).collect();
    let output = run(cluster, &arguments, "")?;
    let code = output.status.code().context("zurau was killed")?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{arguments:?} ended with {code} and printed no JSON: {errors}"))?;
    Ok((code, value))
}

/// Runs a verb that must fail with an exit code; its complaint.
pub(crate) fn refused(cluster: &Cluster, arguments: &[&str], code: i32) -> Result<String> {
    let output = run(cluster, arguments, "")?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(code), "{arguments:?} ended with {}: {errors}", output.status);
    Ok(errors)
}

fn fill(cluster: &Cluster, topic: &str, partition: i32, count: usize) -> Result<()> {
    for number in 0..count {
        let batch = encode_batch(&[format!("{number}").as_bytes()], now_ms(), Compression::None)?;
        let (error, _) = cluster.client().produce(topic, partition, batch, -1)?;
        ensure!(error == 0, "produce: error {error}");
    }
    Ok(())
}

#[test]
fn topics_and_their_configurations() {
    scenario("topics-and-their-configurations", |directory| {
        let mut cluster = start(directory)?;
        topics(&cluster)?;
        configurations(&cluster)?;
        filters_and_stops(&mut cluster)
    });
}

fn start(directory: &TestDirectory) -> Result<Cluster> {
    Cluster::builder().zookeeper(ZooKeeperKind::InProcess).start(directory)
}

fn topics(cluster: &Cluster) -> Result<()> {
    let created = json_of(
        cluster,
        &[
            "topics",
            "create",
            "a",
            "--partitions",
            "2",
            "--replication-factor",
            "3",
            "--config",
            "retention.ms=1000",
        ],
    )?;
    ensure!(created[0]["topic"] == "a" && created[0]["error"].is_null(), "{created}");
    json_of(cluster, &["topics", "create", "--topic", "b", "--replica-assignment", "1:2,2:3"])?;
    cluster.wait_for_full_isr("a", 2, START_LIMIT)?;
    cluster.wait_for_full_isr("b", 2, START_LIMIT)?;
    let (code, again) = answer(cluster, &["topics", "create", "a"])?;
    ensure!(
        code == 1 && again[0]["error"].as_str().is_some_and(|why| why.contains("--if-not-exists")),
        "{again}"
    );
    json_of(cluster, &["topics", "create", "a", "--if-not-exists"])?;
    let (code, _) = answer(cluster, &["topics", "create", "c", "--replication-factor", "4"])?;
    ensure!(code == 1, "four replicas on three brokers");

    let listed = json_of(cluster, &["topics", "list"])?;
    let names: Vec<&Value> =
        listed.as_array().context("a list")?.iter().map(|topic| &topic["topic"]).collect();
    ensure!(names == ["a", "b"], "{listed}");
    let described = json_of(cluster, &["topics", "describe", "b"])?;
    let partition = &described[0]["partitions"][1];
    let stored = cluster.znodes.text("/brokers/topics/b/1/replicas")?.context("no replicas")?;
    let shown = partition["replicas"].to_string();
    ensure!(shown == stored, "{described}, the tree says {stored}");
    ensure!(partition["leader"] == 2 && partition["isr"] == json!([2, 3]), "{described}");
    let described = json_of(cluster, &["topics", "describe", "a"])?;
    ensure!(described[0]["configs"] == json!({"retention.ms": "1000"}), "{described}");
    let text = String::from_utf8(run(cluster, &["topics", "describe", "a"], "")?.stdout)?;
    ensure!(text.contains("TOPIC") && text.contains("retention.ms=1000"), "{text}");

    json_of(cluster, &["topics", "alter", "b", "--partitions", "3", "--config", "segment.ms=5000"])?;
    cluster.wait_for_full_isr("b", 3, START_LIMIT)?;
    let (code, shrunk) = answer(cluster, &["topics", "alter", "b", "--partitions", "1"])?;
    ensure!(code == 1 && shrunk[0]["result"] == "failed", "{shrunk}");
    let deleted = json_of(cluster, &["topics", "delete", "b"])?;
    ensure!(deleted[0]["error"].is_null(), "{deleted}");
    eventually("topic b is gone", START_LIMIT, || {
        Ok(cluster.znodes.get("/brokers/topics/b")?.is_none().then_some(()))
    })?;
    let (code, _) = answer(cluster, &["topics", "delete", "b"])?;
    ensure!(code == 1, "b was deleted twice");
    json_of(cluster, &["topics", "delete", "b", "--if-exists"])?;

    ensure!(refused(cluster, &["topics", "describe", "absent"], 1)?.contains("topics list"), "no advice");
    ensure!(refused(cluster, &["topics", "create"], 2)?.contains("at least one topic"), "no topic");
    refused(cluster, &["topics", "vanish"], 2)?;
    let nobody = refused(cluster, &["topics", "list", "-b", "127.0.0.1:1"], 1)?;
    ensure!(nobody.contains("127.0.0.1:1") && nobody.contains("--bootstrap-server"), "{nobody}");
    Ok(())
}

fn configurations(cluster: &Cluster) -> Result<()> {
    json_of(cluster, &["configs", "set", "--topic", "a", "min.insync.replicas=2", "retention.ms=7"])?;
    let stored = cluster.znodes.text("/config/topics/a")?.context("nothing is stored")?;
    let stored: Value = serde_json::from_str(&stored)?;
    ensure!(stored["config"] == json!({"min.insync.replicas": "2", "retention.ms": "7"}), "{stored}");
    let shown = json_of(cluster, &["configs", "describe", "--entity-type", "topics", "--entity-name", "a"])?;
    let min =
        shown.as_array().and_then(|all| all.iter().find(|entry| entry["name"] == "min.insync.replicas"));
    let min = min.with_context(|| format!("min.insync.replicas is not in {shown}"))?;
    ensure!(min["value"] == "2" && min["source"] == "DYNAMIC_TOPIC_CONFIG", "{min}");
    ensure!(min["synonyms"].as_array().is_some_and(|weaker| 2 <= weaker.len()), "{min}");
    json_of(cluster, &["configs", "delete", "--topic", "a", "retention.ms"])?;
    let shown = json_of(cluster, &["configs", "describe", "--topic", "a", "--key", "retention.ms"])?;
    ensure!(shown[0]["source"] == "DEFAULT_CONFIG", "{shown}");
    let all = json_of(cluster, &["configs", "describe", "--broker", "2", "--all"])?;
    ensure!(all.as_array().is_some_and(|all| 50 < all.len()), "{all}");
    json_of(cluster, &["configs", "set", "--broker-default", "log.cleaner.threads=2"])?;
    let shown = json_of(cluster, &["configs", "describe", "--broker-default"])?;
    ensure!(shown[0]["name"] == "log.cleaner.threads" && shown[0]["value"] == "2", "{shown}");
    json_of(cluster, &["configs", "delete", "--broker-default", "log.cleaner.threads"])?;
    group_configurations(cluster)?;
    let wrong = refused(cluster, &["configs", "set", "--topic", "a", "retention.ms=soon"], 1)?;
    ensure!(wrong.contains("topic a") && wrong.contains("retention.ms"), "{wrong}");
    refused(cluster, &["configs", "describe"], 2)?;
    Ok(())
}

/// A group need not exist to be configured.
fn group_configurations(cluster: &Cluster) -> Result<()> {
    const SESSION: &str = "consumer.session.timeout.ms";
    json_of(cluster, &["configs", "set", "--group", "a/b", &format!("{SESSION}=50000")])?;
    let stored = cluster.znodes.text("/config/groups/a%2Fb")?.context("nothing is stored")?;
    let stored: Value = serde_json::from_str(&stored)?;
    ensure!(stored["config"] == json!({SESSION: "50000"}), "{stored}");
    let shown = json_of(cluster, &["configs", "describe", "--group", "a/b"])?;
    ensure!(shown[0]["value"] == "50000" && shown[0]["source"] == "DYNAMIC_GROUP_CONFIG", "{shown}");
    let weaker = &shown[0]["synonyms"][1];
    ensure!(weaker["name"] == "group.consumer.session.timeout.ms" && weaker["value"] == "45000", "{shown}");
    ensure!(shown.as_array().is_some_and(|all| all.len() == 1), "only what is set: {shown}");
    let wrong = refused(cluster, &["configs", "set", "--group", "a/b", &format!("{SESSION}=1")], 1)?;
    ensure!(
        wrong.contains("group a/b") && wrong.contains("group.consumer.min.session.timeout.ms"),
        "{wrong}"
    );
    json_of(cluster, &["configs", "delete", "--group", "a/b", SESSION])?;
    let shown = json_of(cluster, &["configs", "describe", "--group", "a/b", "--key", SESSION])?;
    ensure!(shown[0]["source"] == "DEFAULT_CONFIG", "{shown}");
    Ok(())
}

/// Topic a has three replicas and min.insync.replicas=2.
fn filters_and_stops(cluster: &mut Cluster) -> Result<()> {
    let brokers = json_of(cluster, &["brokers", "--zookeeper", &cluster.zookeeper_connect()])?;
    let all = brokers["brokers"].as_array().context("a list")?;
    ensure!(all.len() == 3 && brokers["controller"]["controller"] == 1, "{brokers}");
    let replicas: i64 = all.iter().filter_map(|broker| broker["replicas"].as_i64()).sum();
    ensure!(replicas == 6, "{brokers}");
    for (broker, node) in all.iter().zip(&cluster.brokers) {
        ensure!(
            node.address().ends_with(&format!(":{}", broker["port"])) && broker["broker_epoch"].is_number(),
            "{broker}"
        );
        ensure!(broker["log_dirs"][0]["log_dir"] == node.data().display().to_string(), "{broker}");
    }
    let (code, yes) = answer(cluster, &["can-stop", "3"])?;
    ensure!(code == 0 && yes["can_stop"] == true && yes["replicas"] == 2, "{yes}");
    let none =
        json_of(cluster, &["topics", "describe", "--under-replicated", "--unavailable", "--under-min-isr"])?;
    ensure!(none == json!([]), "{none}");

    cluster.broker(3)?.stop(Duration::from_secs(15))?;
    eventually("broker 3 has left the ISR of a", START_LIMIT, || {
        let lagging = json_of(cluster, &["topics", "describe", "--under-replicated-partitions"])?;
        let partitions = lagging[0]["partitions"].as_array().map_or(0, Vec::len);
        ensure!(
            partitions == 2 && lagging[0]["partitions"][0]["isr"].as_array().map_or(0, Vec::len) == 2,
            "{lagging}"
        );
        Ok(Some(()))
    })?;
    let at = json_of(cluster, &["topics", "describe", "--at-min-isr"])?;
    ensure!(at[0]["topic"] == "a", "{at}");
    let (code, no) = answer(cluster, &["can-stop", "2"])?;
    ensure!(code == 1 && no["blocking"][0]["reason"] == "under_min_isr", "{no}");
    ensure!(refused(cluster, &["can-stop", "3"], 1)?.contains("not alive"), "3 is down");
    cluster.check_running()
}

#[test]
fn replicas_and_leaders_move() {
    scenario("replicas-and-leaders-move", |directory| {
        let builder = Cluster::builder().set("auto.leader.rebalance.enable", false);
        let mut cluster = builder.start(directory)?;
        cluster.create_topic("t", &["[1,2]", "[1,2]", "[1,2]"])?;
        fill(&cluster, "t", 0, 5)?;
        let file = directory.join("plan.json");
        let plan = |brokers: &str| {
            json_of(&cluster, &["reassign", "plan", "--topic", "t", "--broker-list", brokers])
        };
        let proposal = plan("1,2,3")?;
        let moved = proposal["partitions"].as_array().context("a list")?.len();
        ensure!((1..=3).contains(&moved), "{proposal}");
        std::fs::write(&file, proposal.to_string())?;
        let file = file.display().to_string();
        let started = json_of(&cluster, &["reassign", "start", &file])?;
        ensure!(started["previous"]["partitions"][0]["replicas"] == json!([1, 2]), "{started}");
        eventually("the moves are complete", START_LIMIT, || {
            let (code, status) =
                answer(&cluster, &["reassign", "status", "--reassignment-json-file", &file])?;
            ensure!(code == 0, "{status}");
            Ok(Some(()))
        })?;
        for wanted in proposal["partitions"].as_array().context("a list")? {
            let path = format!("/brokers/topics/t/{}/replicas", wanted["partition"]);
            let stored = cluster.znodes.text(&path)?.context("no replicas")?;
            let planned = wanted["replicas"].to_string();
            ensure!(stored == planned, "{path} is {stored}, {wanted} was planned");
        }
        ensure!(plan("1,2,3")?["partitions"] == json!([]), "a second plan moves something");

        // A move to a broker that does nothing can be seen and cancelled.
        cluster.broker(3)?.process()?.pause()?;
        let wish = json!({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [3]}]});
        let output = run(&cluster, &["reassign", "start", "-"], &wish.to_string())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let under_way = json_of(&cluster, &["reassign", "status", "-b", &cluster.brokers[0].address()])?;
        ensure!(under_way[0]["status"] == "in_progress", "{under_way}");
        let cancelled = json_of(&cluster, &["reassign", "cancel", "--all"])?;
        ensure!(cancelled[0]["result"] == "cancelled", "{cancelled}");
        cluster.broker(3)?.process()?.resume()?;
        cluster.wait_until_complete(START_LIMIT)?;
        cluster.wait_for_full_isr("t", 3, START_LIMIT)?;
        ensure!(refused(&cluster, &["reassign", "start", "/absent"], 1)?.contains("/absent"), "no file");

        elections(&cluster)?;
        let deleted = json_of(
            &cluster,
            &["records", "delete", "--topic", "t", "--partition", "0", "--before-offset", "3"],
        )?;
        ensure!(deleted[0]["low_watermark"] == 3, "{deleted}");
        ensure!(
            cluster.client().offset("t", 0, zurau_tests::kafka::EARLIEST)? == 3,
            "records are still there"
        );
        let (code, beyond) = answer(
            &cluster,
            &["records", "delete", "--topic", "t", "--partition", "0", "--before-offset", "9"],
        )?;
        ensure!(code == 1 && beyond[0]["error"].is_string(), "{beyond}");
        cluster.check_running()
    });
}

fn elections(cluster: &Cluster) -> Result<()> {
    json_of(cluster, &["elect", "preferred", "--all"])?;
    let (code, not_needed) = answer(cluster, &["elect", "preferred", "--topic", "t", "--partition", "1"])?;
    ensure!(code == 0 && not_needed[0]["result"] == "not needed", "{not_needed}");
    let described = json_of(cluster, &["topics", "describe", "t"])?;
    for partition in described[0]["partitions"].as_array().context("a list")? {
        ensure!(partition["leader"] == partition["replicas"][0], "{partition}");
    }
    refused(cluster, &["elect", "preferred"], 2)?;
    Ok(())
}

#[test]
fn a_group_is_described_reset_and_deleted() {
    if let Some(why) = kcat_missing() {
        return skip("a_group_is_described_reset_and_deleted", &why);
    }
    scenario("a-group-is-described-reset-and-deleted", |directory| {
        let mut cluster = start(directory)?;
        cluster.create_topic("t", &["[1,2]", "[2,3]"])?;
        let before = now_ms();
        fill(&cluster, "t", 0, 6)?;
        fill(&cluster, "t", 1, 4)?;
        let bootstrap = cluster.bootstrap();
        let read = ["-b", &bootstrap, "-q", "-G", "g", "-c", "10", "-X", "auto.offset.reset=earliest", "t"];
        let lines = kcat(&read, None)?;
        ensure!(lines.iter().filter(|byte| **byte == b'\n').count() == 10, "kcat read {} bytes", lines.len());
        fill(&cluster, "t", 1, 2)?;

        let listed = json_of(&cluster, &["groups", "list"])?;
        ensure!(listed[0]["group"] == "g" && listed[0]["state"] == "Empty", "{listed}");
        ensure!(
            json_of(&cluster, &["groups", "list", "--state", "Stable"])? == json!([]),
            "no group is stable"
        );
        let described = json_of(&cluster, &["groups", "describe", "g"])?;
        ensure!(described[0]["total_lag"] == 2 && described[0]["members"] == json!([]), "{described}");
        ensure!(described[0]["offsets"][0]["committed_offset"] == 6, "{described}");
        ensure!(described[0]["offsets"][1]["lag"] == 2, "{described}");
        let absent = refused(&cluster, &["groups", "describe", "absent"], 1)?;
        ensure!(absent.contains("absent does not exist"), "{absent}");

        let moved = |goal: &[&str]| -> Result<Value> {
            let arguments = [&["groups", "reset-offsets", "g", "--topic", "t"], goal].concat();
            let document = json_of(&cluster, &arguments)?;
            let offsets = document["offsets"].as_array().context("a list")?;
            Ok(offsets.iter().map(|one| one["new_offset"].clone()).collect())
        };
        for (goal, expected) in [
            (&["--to-earliest"][..], json!([0, 0])),
            (&["--to-latest"], json!([6, 6])),
            (&["--to-offset", "5"], json!([5, 5])),
            (&["--shift-by", "-3"], json!([3, 1])),
            (&["--to-current"], json!([6, 4])),
            (&["--by-duration", "PT1H"], json!([0, 0])),
            (&["--to-datetime", "2038-01-01T00:00:00.000"], json!([6, 6])),
        ] {
            let offsets = moved(goal)?;
            ensure!(offsets == expected, "{goal:?} since {before}: {offsets}");
        }
        let described = json_of(&cluster, &["groups", "describe", "--all-groups"])?;
        ensure!(described[0]["offsets"][0]["committed_offset"] == 6, "a dry run changed {described}");
        json_of(&cluster, &["groups", "reset-offsets", "g", "--topic", "t:1", "--to-earliest", "--execute"])?;
        let described = json_of(&cluster, &["groups", "describe", "g"])?;
        ensure!(described[0]["total_lag"] == 6, "{described}");
        let lines = kcat(&["-b", &bootstrap, "-q", "-G", "g", "-c", "6", "t"], None)?;
        ensure!(lines.iter().filter(|byte| **byte == b'\n').count() == 6, "kcat read {} bytes", lines.len());
        refused(&cluster, &["groups", "reset-offsets", "g", "--topic", "t"], 2)?;

        let deleted = json_of(&cluster, &["groups", "delete", "g"])?;
        ensure!(deleted[0]["deleted"] == true, "{deleted}");
        ensure!(json_of(&cluster, &["groups", "list"])? == json!([]), "the group is still there");
        cluster.check_running()
    });
}

#[test]
fn a_partition_is_explained() {
    scenario("a-partition-is-explained", |directory| {
        let mut cluster = start(directory)?;
        cluster.create_topic("t", &["[1,2,3]"])?;
        fill(&cluster, "t", 0, 3)?;
        let zookeeper = cluster.zookeeper_connect();
        let explain = |cluster: &Cluster| json_of(cluster, &["explain", "t", "0", "--zookeeper", &zookeeper]);
        let well = eventually("every replica has all three records", START_LIMIT, || {
            let facts = explain(&cluster)?;
            for replica in facts["replicas"].as_array().context("a list")? {
                ensure!(replica["log_end_offset"] == 3 && replica["high_watermark"] == 3, "{facts}");
                ensure!(replica["broker_epoch"].is_number() && replica["lag"] == 0, "{facts}");
            }
            Ok(Some(facts))
        })?;
        ensure!(
            well["ar"] == json!([1, 2, 3]) && well["cur"] == json!([]) && well["findings"] == json!([]),
            "{well}"
        );
        ensure!(well["leader"] == 1 && well["elected"] == 1 && well["leader_epoch"] == 0, "{well}");
        let version = cluster.znodes.get("/brokers/topics/t/0/ISR")?.context("no ISR")?.version;
        ensure!(well["partition_epoch"] == version, "{well}, the version of ISR is {version}");
        ensure!(well["epochs"] == json!([{"leader_epoch": 0, "end_offset": 3}]), "{well}");
        ensure!(well["last_changes"].to_string().contains("the partition is new"), "{well}");

        cluster.broker(1)?.kill()?;
        let (mut seen, mut gone) = (Value::Null, String::new());
        eventually("broker 2 or 3 has taken over", START_LIMIT, || {
            seen = json_of(
                &cluster,
                &["explain", "t", "0", "--zookeeper", &zookeeper, "-b", &cluster.brokers[1].address()],
            )?;
            gone = seen["last_changes"].to_string();
            ensure!(
                seen["leader_epoch"] == 1 && seen["leader"] != 1 && seen["isr"] == json!([2, 3]),
                "{seen}"
            );
            Ok(Some(()))
        })?;
        ensure!(gone.contains("the leader's broker was gone") && seen["cur"] == json!([1]), "{seen}");
        ensure!(
            seen["findings"].to_string().contains("replica 1 is not in sync: the broker is not alive"),
            "{seen}"
        );

        // What an admin types wrong is told, with where it stands.
        cluster.znodes.put("/brokers/topics/t/0/replicas", "{2,2")?;
        eventually("the mistake is explained", START_LIMIT, || {
            let facts = json_of(&cluster, &["explain", "t", "0", "--zookeeper", &zookeeper])?;
            ensure!(facts["errors"][0]["input"] == "the assignment", "{facts}");
            Ok(Some(()))
        })?;
        cluster.znodes.put("/brokers/topics/t/0/replicas", "[1,2,3]")?;
        cluster.broker(1)?.start()?;
        cluster.wait_for_full_isr("t", 1, START_LIMIT)?;
        let output = run(&cluster, &["explain", "t", "0"], "")?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(
            output.status.success() && text.contains("HIGH WATERMARK") && text.contains("--zookeeper"),
            "{text}"
        );
        refused(&cluster, &["explain", "t", "7"], 1)?;
        cluster.check_running()
    });
}
