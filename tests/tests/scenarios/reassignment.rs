//! Partitions with data move between brokers: by znodes alone, while real clients write and read, and through the API.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, ElectLeadersRequest, ListPartitionReassignmentsRequest,
};
use kafka_protocol::records::Compression;
use serde_json::Value;
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::history::check_replicas_equal;
use zurau_tests::kafka::topic_name;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, skip};

use crate::traffic::Traffic;
use crate::tree::ids;

on_both_zookeepers!(partitions_move_by_znodes, and_leaders_store_isr);
on_both_zookeepers!(partitions_move_through_the_api, and_leaders_store_isr);

const TOPIC: &str = "t";
const PARTITIONS: i32 = 2;
const MOVE_LIMIT: Duration = Duration::from_secs(45);

/// Waits until a partition is where it shall be and nothing is left of where it was: not in ZooKeeper, not on disk.
pub(crate) fn wait_until_moved(
    cluster: &Cluster,
    topic: &str,
    partition: i32,
    replicas: &[i64],
) -> Result<()> {
    eventually(&format!("{topic}-{partition} is on {replicas:?} only"), MOVE_LIMIT, || {
        check_moved(cluster, topic, partition, replicas).map(Some)
    })
    .with_context(|| format!("the tree: {:?}", cluster.znodes.tree(&format!("/brokers/topics/{topic}"))))
}

fn check_moved(cluster: &Cluster, topic: &str, partition: i32, replicas: &[i64]) -> Result<()> {
    let znodes = &cluster.znodes;
    let root = format!("/brokers/topics/{topic}/{partition}");
    let text = |leaf: &str| -> Result<String> {
        znodes.text(&format!("{root}/{leaf}"))?.with_context(|| format!("{leaf} is missing"))
    };
    let wish = znodes.text(&format!("/brokers/partitions_reassigned/{topic}/{partition}"))?;
    ensure!(wish.is_none(), "the wish {wish:?} is still there");
    let assigned: Vec<i64> = serde_json::from_str(&text("replicas")?)?;
    ensure!(assigned == replicas, "replicas is {assigned:?}");
    let state: Value = serde_json::from_str(&text("state")?)?;
    let wanted: BTreeSet<i64> = replicas.iter().copied().collect();
    ensure!(ids(&state["replicas"].to_string())? == wanted, "the hosts are {}", state["replicas"]);
    let isr = ids(&text("ISR")?)?;
    ensure!(isr == wanted, "the ISR is {isr:?}");
    let leader: i64 = text("leader")?.trim().parse()?;
    ensure!(wanted.contains(&leader), "broker {leader} leads");
    let leaving = znodes.text(&format!("{root}/leaving"))?.unwrap_or_default();
    ensure!(leaving.is_empty() || ids(&leaving)?.is_empty(), "{leaving} are still leaving");
    for broker in &cluster.brokers {
        let copy = broker.data().join(format!("{topic}-{partition}"));
        let belongs = wanted.contains(&i64::from(broker.id));
        ensure!(copy.exists() == belongs, "broker {}: a copy is there: {}", broker.id, copy.exists());
    }
    Ok(())
}

pub(crate) fn wish(cluster: &Cluster, partition: i32, replicas: &str) -> Result<()> {
    let parent = format!("/brokers/partitions_reassigned/{TOPIC}");
    cluster.znodes.put(&parent, "")?;
    cluster.znodes.put(&format!("{parent}/{partition}"), replicas)
}

fn partitions_move_by_znodes(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("partitions_move_by_znodes", &why);
        return Ok(());
    }
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2]", "[2,1]"])?;
    let mut traffic = Traffic::start(&cluster, directory, TOPIC, PARTITIONS)?;

    // RSN-08, RSN-10: the leader leaves; a follower leaves; both at once. librdkafka checks the epochs of the metadata.
    wish(&cluster, 0, "[3,2]")?;
    wish(&cluster, 1, "[2,3]")?;
    wait_until_moved(&cluster, TOPIC, 0, &[3, 2])?;
    wait_until_moved(&cluster, TOPIC, 1, &[2, 3])?;
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(20))?;

    // Direct edits: all copies elsewhere, and back onto a broker that has deleted its copy before.
    cluster.znodes.put("/brokers/topics/t/0/replicas", "[1]")?;
    wait_until_moved(&cluster, TOPIC, 0, &[1])?;
    cluster.znodes.put("/brokers/topics/t/1/replicas", "{1, 2, 3}")?;
    eventually("three copies of t-1", MOVE_LIMIT, || {
        let isr = cluster.znodes.text("/brokers/topics/t/1/ISR")?.context("no ISR")?;
        ensure!(ids(&isr)?.len() == 3, "the ISR is {isr}");
        Ok(Some(()))
    })?;
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(20))?;

    cancelled(&mut cluster)?;
    traffic.wait_for_more("traffic goes on", 200, Duration::from_secs(30))?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// A move to a broker that is down waits; without its wish all is as before, also for the broker that returns.
fn cancelled(cluster: &mut Cluster) -> Result<()> {
    cluster.broker(3)?.stop(Duration::from_secs(15))?;
    wish(cluster, 0, "[3]")?;
    cluster.znodes.wait_for("/brokers/topics/t/0/state", MOVE_LIMIT, |state| {
        state.is_some_and(|state| {
            let value: Value = serde_json::from_str(state).unwrap_or_default();
            value["target"] == serde_json::json!([3])
        })
    })?;
    cluster.znodes.delete("/brokers/partitions_reassigned/t/0")?;
    cluster.broker(3)?.start()?;
    wait_until_moved(cluster, TOPIC, 0, &[1])?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)
}

/// A partition and its wanted replicas; `None` cancels.
type Wanted<'a> = (i32, Option<&'a [i32]>);

/// Asks broker 1; returns the partitions' errors.
fn alter(cluster: &Cluster, topic: &str, wanted: &[Wanted<'_>]) -> Result<Vec<i16>> {
    let partitions = wanted.iter().map(|(number, replicas)| {
        let replicas = replicas.map(|ids| ids.iter().copied().map(BrokerId).collect());
        ReassignablePartition::default().with_partition_index(*number).with_replicas(replicas)
    });
    let topic =
        ReassignableTopic::default().with_name(topic_name(topic)).with_partitions(partitions.collect());
    let request =
        AlterPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(vec![topic]);
    let answer = cluster.client().call(&cluster.brokers[0].address(), 0, &request)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    let topics = answer.responses.iter();
    Ok(topics.flat_map(|topic| topic.partitions.iter().map(|found| found.error_code)).collect())
}

/// Partition, hosts, who comes and who goes, as broker 1 lists all moves.
type Listed = (i32, Vec<i32>, Vec<i32>, Vec<i32>);

fn list(cluster: &Cluster) -> Result<Vec<Listed>> {
    let request = ListPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(None);
    let answer = cluster.client().call(&cluster.brokers[0].address(), 0, &request)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    let plain = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<i32>>();
    let moves = answer.topics.iter().flat_map(|topic| &topic.partitions).map(|found| {
        let adding = plain(&found.adding_replicas);
        (found.partition_index, plain(&found.replicas), adding, plain(&found.removing_replicas))
    });
    Ok(moves.collect())
}

/// Asks broker 1 for leaders of a kind (0 preferred, 1 unclean); returns partitions and errors, in order.
fn elect(cluster: &Cluster, kind: i8, partitions: Option<&[i32]>) -> Result<Vec<(i32, i16)>> {
    let topics = partitions.map(|partitions| {
        vec![TopicPartitions::default().with_topic(topic_name(TOPIC)).with_partitions(partitions.to_vec())]
    });
    let request = ElectLeadersRequest::default()
        .with_election_type(kind)
        .with_topic_partitions(topics)
        .with_timeout_ms(15_000);
    let answer = cluster.client().call(&cluster.brokers[0].address(), 2, &request)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
    Ok(results.map(|found| (found.partition_id, found.error_code)).collect())
}

fn partitions_move_through_the_api(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let builder = Cluster::builder().zookeeper(kind).set("auto.leader.rebalance.enable", false);
    let mut cluster = builder.start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2]", "[2,1]"])?;
    for number in 0..50 {
        let batch = encode_batch(&[format!("{number}").as_bytes()], now_ms(), Compression::None)?;
        let (error, offset) = cluster.client().produce(TOPIC, 0, batch, -1)?;
        ensure!((error, offset) == (0, number), "error {error}, offset {offset}");
    }
    let before = cluster.client().read_partition(TOPIC, 0)?;

    let refused: [(&str, Wanted<'_>, i16); 7] = [
        ("absent", (0, Some(&[1])), 3),
        (TOPIC, (7, Some(&[1])), 3),
        (TOPIC, (0, Some(&[])), 39),
        (TOPIC, (0, Some(&[2, 2])), 39),
        (TOPIC, (0, Some(&[-1])), 39),
        (TOPIC, (0, Some(&[1, 9])), 39),
        (TOPIC, (0, None), 85),
    ];
    for (topic, wanted, expected) in refused {
        let errors = alter(&cluster, topic, &[wanted])?;
        ensure!(errors == [expected], "{topic} {wanted:?}: {errors:?}");
    }
    ensure!(
        cluster.znodes.children("/brokers/partitions_reassigned")?.is_empty(),
        "a refusal left something"
    );

    // A broker that is alive but does nothing holds the move up: it is listed, and can be cancelled.
    cluster.broker(3)?.process()?.pause()?;
    let errors = alter(&cluster, TOPIC, &[(0, Some(&[3, 2])), (1, Some(&[3]))])?;
    ensure!(errors == [0, 0], "{errors:?}");
    let listed = list(&cluster)?;
    let expected = [(0, vec![3, 2, 1], vec![3], vec![1]), (1, vec![3, 2, 1], vec![3], vec![2, 1])];
    ensure!(listed == expected, "{listed:?} are listed");
    let errors = alter(&cluster, TOPIC, &[(1, None)])?;
    ensure!(errors == [0], "{errors:?}");
    cluster.broker(3)?.process()?.resume()?;
    wait_until_moved(&cluster, TOPIC, 0, &[3, 2])?;
    wait_until_moved(&cluster, TOPIC, 1, &[2, 1])?;
    ensure!(list(&cluster)?.is_empty(), "something is still listed");
    let after = cluster.client().read_partition(TOPIC, 0)?;
    ensure!(after == before, "the records changed: {after:?}");
    check_replicas_equal(&cluster, TOPIC, 0, Duration::from_secs(20))?;
    leaders_are_elected(&cluster)?;
    cluster.check_running()
}

fn leaders_are_elected(cluster: &Cluster) -> Result<()> {
    // Partition 1 is led by its first replica, which is no longer the first of the list.
    let (leader, _) = cluster.client().leader(TOPIC, 1)?;
    let preferred = if leader.0 == 1 { 2 } else { 1 };
    cluster.znodes.put("/brokers/topics/t/1/replicas", &format!("[{preferred},{}]", leader.0))?;
    eventually("every broker knows the new preference", Duration::from_secs(20), || {
        let mut client = cluster.client();
        let answer = client.metadata_from(&cluster.brokers[0].address(), Some(&[TOPIC]))?;
        let found = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let found = found.into_iter().find(|found| found.partition_index == 1).context("no t-1")?;
        ensure!(found.replica_nodes.first() == Some(&BrokerId(preferred)), "{found:?}");
        Ok(Some(()))
    })?;
    for (kind, asked, expected) in [
        (1, Some(&[0, 1, 5][..]), &[(0, 84), (1, 84), (5, 3)][..]),
        (0, Some(&[1, 5]), &[(1, 0), (5, 3)]),
        (0, Some(&[1]), &[(1, 84)]),
        (0, None, &[]),
    ] {
        let results = elect(cluster, kind, asked)?;
        ensure!(results == expected, "kind {kind}, {asked:?}: {results:?}");
    }
    let (leader, _) = cluster.client().leader(TOPIC, 1)?;
    ensure!(leader.0 == preferred, "broker {} leads, not {preferred}", leader.0);
    Ok(())
}
