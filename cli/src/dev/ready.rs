//! When is the cluster ready? When every broker answers and says that it sees every broker. That needs ZooKeeper, an
//! active controller and a finished registration of each, so nothing else has to be asked.

use std::time::Duration;

use anyhow::{Result, ensure};
use kafka_protocol::messages::MetadataRequest;
use tokio::time::{Instant, sleep, timeout_at};
use zurau_common::wire::peer::Peer;

/// How often a broker that does not answer yet is asked again.
const RETRY_EVERY: Duration = Duration::from_millis(20);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Metadata with every field that matters here; all brokers serve it.
const METADATA_VERSION: i16 = 9;

/// Waits until the broker at `address` sees `brokers` live brokers.
///
/// # Errors
/// The deadline passed.
pub(crate) async fn wait_for_broker(address: &str, brokers: usize, deadline: Instant) -> Result<()> {
    let attempt = async {
        loop {
            if live_brokers(address).await.is_ok_and(|live| live >= brokers) {
                return;
            }
            sleep(RETRY_EVERY).await;
        }
    };
    let waited = timeout_at(deadline, attempt).await;
    ensure!(
        waited.is_ok(),
        "the broker at {address} did not report {brokers} live brokers in time; its log in the logs folder says why"
    );
    Ok(())
}

async fn live_brokers(address: &str) -> Result<usize> {
    let peer = Peer::connect(address, "zurau-dev", CALL_TIMEOUT).await?;
    // An empty list of topics asks for the brokers alone.
    let request = MetadataRequest::default().with_topics(Some(vec![]));
    let response = peer.call(METADATA_VERSION, &request).await?;
    Ok(response.brokers.len())
}
