//! What a development cluster consists of, decided before anything is started: ports, folders and the properties
//! file of each process. Pure, so that the layout can be tested without a cluster.

use std::path::{Path, PathBuf};

/// Controller ids start here, far from broker ids, so that log lines cannot be confused.
const CONTROLLER_ID: i32 = 1001;

/// Replicas that a topic gets when its creator does not say, if there are that many brokers.
const REPLICATION_FACTOR: usize = 3;

/// A session this short lets a killed leader be replaced within seconds; production keeps Kafka's 18 s.
const SESSION_TIMEOUT_MS: u32 = 4000;

/// The ports of one development cluster, all on 127.0.0.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ports {
    /// One per broker; broker ids count from 1.
    pub(crate) brokers: Vec<u16>,
    pub(crate) controller: u16,
}

/// One process of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// `broker-1`, `controller`: names its files and its lines in the terminal.
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) properties_file: PathBuf,
    pub(crate) properties: String,
    pub(crate) log_file: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Controller,
    Broker,
}

impl Role {
    /// The hidden subcommand of `zurau` that runs such a process.
    pub(crate) fn subcommand(self) -> &'static str {
        match self {
            Self::Controller => "run-controller",
            Self::Broker => "run-broker",
        }
    }
}

/// Every process of the cluster, the controller first.
pub(crate) fn members(data: &Path, ports: &Ports, zookeeper_connect: &str) -> Vec<Member> {
    let controller = Member {
        name: "controller".to_owned(),
        role: Role::Controller,
        properties_file: data.join("config/controller.properties"),
        properties: properties(&[
            ("controller.id", CONTROLLER_ID.to_string()),
            ("zookeeper.connect", zookeeper_connect.to_owned()),
            ("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS.to_string()),
            ("listeners", format!("PLAINTEXT://127.0.0.1:{}", ports.controller)),
        ]),
        log_file: data.join("logs/controller.log"),
    };
    let brokers = ports.brokers.iter().enumerate().map(|(index, port)| {
        let id = index + 1;
        let count = ports.brokers.len();
        let replication_factor = count.min(REPLICATION_FACTOR);
        let name = format!("broker-{id}");
        Member {
            role: Role::Broker,
            properties_file: data.join(format!("config/{name}.properties")),
            properties: properties(&[
                ("broker.id", id.to_string()),
                ("zookeeper.connect", zookeeper_connect.to_owned()),
                ("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS.to_string()),
                ("listeners", format!("PLAINTEXT://127.0.0.1:{port}")),
                ("log.dirs", data.join(&name).display().to_string()),
                ("default.replication.factor", replication_factor.to_string()),
                ("offsets.topic.replication.factor", replication_factor.to_string()),
                ("transaction.state.log.replication.factor", replication_factor.to_string()),
                // With three replicas a write survives one lost broker and goes on with two.
                ("min.insync.replicas", replication_factor.div_ceil(2).to_string()),
                ("transaction.state.log.min.isr", replication_factor.div_ceil(2).to_string()),
            ]),
            log_file: data.join(format!("logs/{name}.log")),
            name,
        }
    });
    std::iter::once(controller).chain(brokers).collect()
}

/// `127.0.0.1:9092,127.0.0.1:9093,…`
pub(crate) fn bootstrap_servers(ports: &Ports) -> String {
    let addresses: Vec<String> = ports.brokers.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    addresses.join(",")
}

fn properties(pairs: &[(&str, String)]) -> String {
    // A backslash starts an escape in a properties file; nothing else that can stand in a path is special there.
    pairs.iter().map(|(key, value)| format!("{key}={}\n", value.replace('\\', "\\\\"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_brokers_keep_three_copies_and_need_two() {
        let ports = Ports { brokers: vec![9092, 9093, 9094], controller: 9091 };
        let members = members(Path::new("/d"), &ports, "127.0.0.1:2181");
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["controller", "broker-1", "broker-2", "broker-3"]);
        let last = &members[3];
        assert_eq!(last.properties_file, Path::new("/d/config/broker-3.properties"));
        for line in [
            "broker.id=3",
            "listeners=PLAINTEXT://127.0.0.1:9094",
            "log.dirs=/d/broker-3",
            "default.replication.factor=3",
            "min.insync.replicas=2",
            "zookeeper.connect=127.0.0.1:2181",
        ] {
            assert!(last.properties.lines().any(|written| written == line), "{line} in {}", last.properties);
        }
        assert_eq!(bootstrap_servers(&ports), "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094");
    }

    #[test]
    fn a_single_broker_needs_no_other() {
        let ports = Ports { brokers: vec![9092], controller: 9091 };
        let members = members(Path::new("/d"), &ports, "h:1");
        let properties = &members[1].properties;
        assert!(
            properties.contains("\nmin.insync.replicas=1\n")
                && properties.contains("\ndefault.replication.factor=1\n")
        );
    }
}
