//! A small asynchronous Kafka client for the admin's verbs: one connection per broker, versions as each broker offers
//! them, routing to leaders and coordinators, and patience with what passes by itself.

mod connection;
mod log_dirs;
mod metadata;
mod offsets;
mod refusal;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kafka_protocol::messages::{FindCoordinatorRequest, MetadataRequest, metadata_request};
use kafka_protocol::protocol::StrBytes;
use tokio::time::{Instant, sleep};
use zurau_common::wire::control::to_wire_topic;

pub(crate) use self::connection::Connection;
pub(crate) use self::log_dirs::LogDir;
#[cfg(test)]
pub(crate) use self::log_dirs::Replica;
pub(crate) use self::metadata::{Broker, Cluster, Partition, Topic};
pub(crate) use self::offsets::{EARLIEST, LATEST};
pub(crate) use self::refusal::Refused;
use crate::admin::Common;

/// Pause before something that passes by itself is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What a coordinator is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CoordinatorOf {
    Group = 0,
    Transaction = 1,
}

/// A client of one cluster.
pub(crate) struct Client {
    bootstrap: Vec<String>,
    timeout: Duration,
    /// By address.
    connections: HashMap<String, Arc<Connection>>,
    /// By broker id, as the last metadata said.
    addresses: BTreeMap<i32, String>,
}

impl Client {
    pub(crate) fn new(common: &Common) -> Self {
        Self {
            bootstrap: common.bootstrap(),
            timeout: common.timeout(),
            connections: HashMap::new(),
            addresses: BTreeMap::new(),
        }
    }

    /// A connection to any broker: the bootstrap servers in their order, then those heard of.
    ///
    /// # Errors
    /// None can be reached.
    pub(crate) async fn any(&mut self) -> Result<Arc<Connection>> {
        let candidates: Vec<String> = self.bootstrap.iter().chain(self.addresses.values()).cloned().collect();
        let mut failures = Vec::new();
        for address in candidates {
            match self.at(&address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        failures.dedup();
        bail!(
            "no broker can be reached ({}); is the cluster running, and does --bootstrap-server name it?",
            failures.join("; ")
        )
    }

    /// The connection to one broker.
    ///
    /// # Errors
    /// Nobody knows the broker, or it cannot be reached.
    pub(crate) async fn broker(&mut self, id: i32) -> Result<Arc<Connection>> {
        if !self.addresses.contains_key(&id) {
            self.cluster(Some(&[])).await?;
        }
        let Some(address) = self.addresses.get(&id).cloned() else {
            let known: Vec<String> = self.addresses.keys().map(ToString::to_string).collect();
            bail!("broker {id} is not alive or does not exist; live brokers: {}", known.join(", "));
        };
        self.at(&address).await.with_context(|| format!("broker {id}"))
    }

    async fn at(&mut self, address: &str) -> Result<Arc<Connection>> {
        if let Some(connection) = self.connections.get(address)
            && !connection.is_closed()
        {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(Connection::open(address, self.timeout).await?);
        self.connections.insert(address.to_owned(), Arc::clone(&connection));
        Ok(connection)
    }

    /// Brokers, and the named topics or all. A topic that does not exist is an error; none is created.
    ///
    /// # Errors
    /// No broker answers, or a named topic is refused.
    pub(crate) async fn cluster(&mut self, topics: Option<&[String]>) -> Result<Cluster> {
        let wanted = topics.map(|names| {
            let topic = |name: &String| {
                metadata_request::MetadataRequestTopic::default().with_name(Some(to_wire_topic(name)))
            };
            names.iter().map(topic).collect()
        });
        let request = MetadataRequest::default().with_topics(wanted).with_allow_auto_topic_creation(false);
        let answer = self.any().await?.call(12, &request).await?;
        let cluster = Cluster::from_wire(answer)?;
        let address = |broker: &Broker| (broker.broker, format!("{}:{}", broker.host, broker.port));
        self.addresses = cluster.brokers.iter().map(address).collect();
        Ok(cluster)
    }

    /// The coordinator of a group, waited for while it is being elected or loads.
    ///
    /// # Errors
    /// It is not there in time.
    pub(crate) async fn coordinator(&mut self, of: CoordinatorOf, key: &str) -> Result<Arc<Connection>> {
        let request = FindCoordinatorRequest::default()
            .with_key_type(of as i8)
            .with_coordinator_keys(vec![StrBytes::from_string(key.to_owned())]);
        self.retry(async |client| {
            let answer = client.any().await?.call(4, &request).await?;
            let found = answer.coordinators.first().context("the answer names no coordinator")?;
            Refused::check(found.error_code, found.error_message.as_deref(), || {
                format!("the coordinator of {key}")
            })?;
            let address = format!("{}:{}", found.host, found.port);
            client.addresses.insert(found.node_id.0, address.clone());
            client.at(&address).await
        })
        .await
    }

    /// Waits until every connection has handled what it was told.
    ///
    /// # Errors
    /// One broke: what it was told last may not have arrived.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        for connection in self.connections.values() {
            let request = MetadataRequest::default().with_topics(Some(vec![]));
            connection.call(12, &request).await.context("what was written last may be lost")?;
        }
        Ok(())
    }

    /// Does something again while it fails for a reason that passes by itself, for the timeout at most.
    ///
    /// # Errors
    /// The last failure.
    pub(crate) async fn retry<T>(
        &mut self,
        mut attempt: impl AsyncFnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match attempt(self).await {
                Err(error) if refusal::passes(&error) && Instant::now() + RETRY_PAUSE < deadline => {
                    sleep(RETRY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }
}
