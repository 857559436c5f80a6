//! A controller's configuration, typed and checked as a whole.

use std::time::Duration;

use super::broker::zookeeper_connection_timeout;
use super::listener::{
    HttpListener, Listener, ZookeeperConnect, read_http_listener, read_listeners, read_zookeeper_connect,
};
use super::settings::{ConfigError, Problems, Settings, duration_of_millis};

/// A controller without `listeners` takes this, so that it fits beside a broker on one machine.
const DEFAULT_LISTENERS: &str = "PLAINTEXT://:9093";

/// What `zurau-controller` runs with.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerConfig {
    pub controller_id: i32,
    pub zookeeper_connect: ZookeeperConnect,
    pub zookeeper_session_timeout: Duration,
    pub zookeeper_connection_timeout: Duration,
    /// At least one; brokers use the first.
    pub listeners: Vec<Listener>,
    /// An empty host stands for this machine's name.
    pub advertised_listeners: Vec<Listener>,
    /// `None`: nothing is answered over HTTP.
    pub http_listener: Option<HttpListener>,
    pub socket_request_max_bytes: usize,
    /// Time a broker has to take office before another replica is asked (LeaderElectionWaitTime).
    pub leader_election_wait_time: Duration,
    /// Time to wait for a broker's answer.
    pub controller_socket_timeout: Duration,
    pub unclean_leader_election_enable: bool,
    pub delete_topic_enable: bool,
    pub auto_leader_rebalance_enable: bool,
    pub leader_imbalance_check_interval: Duration,
    pub leader_imbalance_per_broker_percentage: u32,
    /// Every key with its layers.
    pub settings: Settings,
}

impl ControllerConfig {
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_settings(settings: Settings) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let controller_id = settings.get("controller.id").and_then(|(id, _)| id.parse().ok());
        if controller_id.is_none() {
            let origin = settings.origin("controller.id");
            problems.add("controller.id", "", origin, "a number from 0 on, unique among the controllers");
        }
        let (listeners, advertised_listeners) =
            read_listeners(&settings, Some(DEFAULT_LISTENERS), &mut problems);
        let http_listener = read_http_listener(&settings, &mut problems);
        let zookeeper_connect = read_zookeeper_connect(&settings, &mut problems);
        problems.into_result(())?;
        let s = &settings;
        Ok(Self {
            controller_id: controller_id.unwrap_or_default(),
            zookeeper_connect,
            zookeeper_session_timeout: s.millis("zookeeper.session.timeout.ms"),
            zookeeper_connection_timeout: zookeeper_connection_timeout(s),
            listeners,
            advertised_listeners,
            http_listener,
            socket_request_max_bytes: s.number("socket.request.max.bytes"),
            leader_election_wait_time: s.millis("leader.election.wait.time.ms"),
            controller_socket_timeout: s.millis("controller.socket.timeout.ms"),
            unclean_leader_election_enable: s.boolean("unclean.leader.election.enable"),
            delete_topic_enable: s.boolean("delete.topic.enable"),
            auto_leader_rebalance_enable: s.boolean("auto.leader.rebalance.enable"),
            leader_imbalance_check_interval: duration_of_millis(
                s.number::<u64>("leader.imbalance.check.interval.seconds").saturating_mul(1000),
            ),
            leader_imbalance_per_broker_percentage: s.number("leader.imbalance.per.broker.percentage"),
            settings,
        })
    }

    /// From pairs of key and value, for tests and for a cluster that is made in one process.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        Self::from_settings(Settings::from_pairs(pairs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_needs_only_its_id() {
        let config = ControllerConfig::from_pairs([("controller.id", "101")]).unwrap();
        assert_eq!(config.controller_id, 101);
        assert_eq!(config.listeners[0].to_string(), "PLAINTEXT://:9093");
        assert_eq!(config.leader_election_wait_time, Duration::from_secs(30));
        assert_eq!(config.leader_imbalance_check_interval, Duration::from_secs(300));
        let error = ControllerConfig::from_pairs([("broker.id", "1")]).unwrap_err();
        assert!(error.to_string().starts_with("controller.id= (default): allowed is a number from 0 on"));
    }

    #[test]
    fn listeners_can_be_set() {
        let pairs = [("controller.id", "1"), ("listeners", "PLAINTEXT://127.0.0.1:0")];
        assert_eq!(ControllerConfig::from_pairs(pairs).unwrap().listeners[0].address(), "127.0.0.1:0");
    }
}
