use super::*;
use crate::metadata::tests::{id, image, topic};

const SEED: Seed = Seed { first_broker: 0, follower_shift: 0 };

fn config() -> BrokerConfig {
    let pairs = [("broker.id", "1"), ("num.partitions", "2"), ("default.replication.factor", "2")];
    BrokerConfig::from_pairs(pairs).unwrap()
}

/// Brokers 1 and 2 live; topics `a.b` and `c` exist.
fn cluster() -> MetadataImage {
    image(vec![topic("a.b", id(1), &[1, 2]), topic("c", id(2), &[1])])
}

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

fn wanted(name: &str, partitions: i32, replication_factor: i16) -> WantedTopic {
    WantedTopic { partitions, replication_factor, ..WantedTopic::with_defaults(name) }
}

fn assigned(assignments: &[(i32, &[i32])]) -> WantedTopic {
    let assignments = assignments.iter().map(|(partition, replicas)| (*partition, ids(replicas))).collect();
    WantedTopic { assignments, ..WantedTopic::with_defaults("t") }
}

fn configured(key: &str, value: Option<&str>) -> WantedTopic {
    let configs = vec![(key.to_owned(), value.map(ToOwned::to_owned))];
    WantedTopic { configs, ..WantedTopic::with_defaults("t") }
}

fn plan(wanted: &WantedTopic) -> Result<TopicPlan, Refusal> {
    plan_topic(wanted, &config(), &cluster(), SEED)
}

#[test]
fn bad_topics_get_kafkas_errors() {
    let rows: Vec<(WantedTopic, i16)> = vec![
        (wanted("", 1, 1), 17),
        (wanted("..", 1, 1), 17),
        (wanted("a b", 1, 1), 17),
        (wanted(&"x".repeat(250), 1, 1), 17),
        (wanted("c", 1, 1), 36),
        (wanted("a_b", 1, 1), 17),
        (wanted("t", 0, 1), 37),
        (wanted("t", -2, 1), 37),
        (wanted("t", i32::MAX, 1), 37),
        (wanted("t", 1, 0), 38),
        (wanted("t", 1, -2), 38),
        (wanted("t", 1, 3), 38),
        (assigned(&[(1, &[1])]), 39),
        (assigned(&[(0, &[1]), (0, &[2])]), 39),
        (assigned(&[(0, &[1]), (2, &[2])]), 39),
        (assigned(&[(0, &[1, 1])]), 39),
        (assigned(&[(0, &[1]), (1, &[1, 2])]), 39),
        (assigned(&[(0, &[])]), 39),
        (assigned(&[(0, &[-1])]), 39),
        (WantedTopic { partitions: 1, ..assigned(&[(0, &[1])]) }, 42),
        (configured("retention.ms", None), 42),
        (configured("retention.ms", Some("soon")), 40),
        (configured("no.such.key", Some("1")), 40),
    ];
    for (wanted, code) in rows {
        let refusal = plan(&wanted).expect_err(&format!("{wanted:?}"));
        assert_eq!(refusal.rejection.code(), code, "{wanted:?}: {}", refusal.message);
        assert!(!refusal.message.is_empty());
    }
}

#[test]
fn good_topics_get_replicas_and_configs() {
    let plain = plan(&WantedTopic::with_defaults("t")).unwrap();
    assert_eq!(plain.assignments, [ids(&[1, 2]), ids(&[2, 1])], "the broker's defaults");
    let manual = plan(&assigned(&[(1, &[7]), (0, &[2])])).unwrap();
    assert_eq!(manual.assignments, [ids(&[2]), ids(&[7])], "in the order of partitions, alive or not");
    let with_config = plan(&configured("retention.ms", Some("1000"))).unwrap();
    assert_eq!(with_config.configs["retention.ms"], "1000");
    assert!(plan(&wanted("a-b", 1, 1)).is_ok(), "a dash collides with nothing");
}

#[test]
fn partitions_are_only_added() {
    let add = |count: i32, assignments: Option<&[&[i32]]>| {
        let assignments = assignments.map(|all| all.iter().map(|replicas| ids(replicas)).collect());
        let wanted = WantedPartitions { name: "c".into(), count, assignments };
        plan_partitions(&wanted, 2, 2, &cluster(), SEED).map_err(|refusal| refusal.rejection.code())
    };
    assert_eq!(add(4, None).unwrap().len(), 2);
    assert_eq!(add(3, Some(&[&[2, 1]])).unwrap(), [ids(&[2, 1])]);
    for (count, code) in [(2, 37), (1, 37), (0, 37), (-1, 37), (i32::MAX, 37)] {
        assert_eq!(add(count, None), Err(code), "{count}");
    }
    let bad: [&[&[i32]]; 5] = [&[], &[&[1, 2], &[1, 2]], &[&[1]], &[&[1, 1]], &[&[1, 9]]];
    for assignments in bad {
        assert_eq!(add(3, Some(assignments)), Err(39), "{assignments:?}");
    }
}

#[test]
fn the_first_multi_decides_and_partitions_ascend() {
    let plan = TopicPlan {
        name: "t".into(),
        assignments: vec![ids(&[1, 2]); 450],
        configs: BTreeMap::from([("retention.ms".to_owned(), "1".to_owned())]),
    };
    let writes = topic_writes(&plan, false);
    let paths: Vec<&str> = writes.iter().flatten().map(Op::path).collect();
    assert_eq!(
        paths[..6],
        [
            "/admin/delete_topics/t",
            "/config/topics/t",
            "/brokers/topics/t",
            "/brokers/topics/t/0",
            "/brokers/topics/t/0/replicas",
            "/brokers/topics/t/1"
        ]
    );
    assert_eq!(paths.last(), Some(&"/brokers/topics/t/449/replicas"));
    assert_eq!(writes.iter().map(Vec::len).collect::<Vec<_>>(), [403, 400, 100]);
    assert!(matches!(&topic_writes(&plan, true)[0][1], Op::SetData { .. }));
    let added = partition_writes(&"t".into(), 3, &[ids(&[2])]);
    assert_eq!(added[0][1].path(), "/brokers/topics/t/3/replicas");
}
