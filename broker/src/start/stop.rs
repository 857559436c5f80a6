//! Controlled shutdown: leaderships go to others first, then the session ends, then the logs are closed and marked. Ten
//! seconds at most, whatever does not answer.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::ControlledShutdownRequest;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::CONTROLLED_SHUTDOWN_VERSION;

use super::Parts;
use crate::Broker;
use crate::context::BrokerContext;
use crate::isr_proposer::connect_to_controller;
use crate::resignations::resign;

/// For the controller to move leaderships away.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(3_500);
const RESIGN_LIMIT: Duration = Duration::from_secs(1);
const SESSION_LIMIT: Duration = Duration::from_secs(1);
const CLOSE_LIMIT: Duration = Duration::from_millis(2_500);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn shutdown(broker: Broker) {
    let Broker { parts, runtimes, .. } = broker;
    let stopping = runtimes.control().spawn(stop(parts));
    if stopping.await.is_err() {
        error!("stopping the broker panicked");
    }
    drop(runtimes);
}

async fn stop(parts: Parts) {
    // Bound to the end, so that the HTTP server goes on answering that the broker is stopping.
    let Parts { context, server, health, http: _http, registrar, stopping } = parts;
    health.stop();
    info!(broker = %context.shared.own, "stopping");
    if context.config.controlled_shutdown_enable {
        match timeout(HAND_OVER_LIMIT, hand_over(&context)).await {
            Ok(remaining) => info!(remaining, "leaderships are handed over"),
            Err(_) => warn!("the controller did not take the leaderships over in time"),
        }
    }
    stopping.cancel();
    if timeout(RESIGN_LIMIT, context.control.close()).await.is_err() {
        warn!("an order is still being carried out; stopping all the same");
    }
    let partitions = context.partitions.all();
    for partition in &partitions {
        partition.stop();
    }
    if let Some(zookeeper) = context.zookeeper.current() {
        let resignations = partitions.iter().filter_map(|partition| partition.resignation()).collect();
        let resigned = timeout(RESIGN_LIMIT, resign(&zookeeper, resignations)).await;
        context.shared.end_lease();
        context.zookeeper.set(None);
        let closed = timeout(SESSION_LIMIT, zookeeper.close()).await;
        if resigned.is_err() || closed.is_err() {
            warn!("ZooKeeper did not answer in time; the session ends by its timeout");
        }
    }
    server.shutdown().await;
    let for_logs = Arc::clone(&context);
    let closing = tokio::task::spawn_blocking(move || for_logs.partitions.close());
    match timeout(CLOSE_LIMIT, closing).await {
        Ok(Ok(Ok(()))) => {
            if let Err(reason) = registrar.lock().await.mark_clean().await {
                warn!("the clean stop is not marked: {reason:#}");
            }
            info!(broker = %context.shared.own, "stopped");
        }
        Ok(Ok(Err(reason))) => error!("stopped, but not cleanly: {reason:#}"),
        Ok(Err(_)) | Err(_) => {
            error!("stopped before every log was closed; they are recovered at the next start")
        }
    }
}

/// Asks the controller until it has moved all it can. Returns how many partitions only this broker can lead.
async fn hand_over(context: &Arc<BrokerContext>) -> usize {
    loop {
        match ask(context).await {
            Ok(remaining) => return remaining,
            Err(reason) => info!("the controller cannot be asked to take over: {reason:#}"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

async fn ask(context: &Arc<BrokerContext>) -> anyhow::Result<usize> {
    let peer = connect_to_controller(context).await?;
    let request = ControlledShutdownRequest::default()
        .with_broker_id(context.shared.own.0.into())
        .with_broker_epoch(context.broker_epoch().0);
    let answer = peer.call(CONTROLLED_SHUTDOWN_VERSION, &request).await?;
    match Rejection::from_code(answer.error_code) {
        None => Ok(answer.remaining_partitions.len()),
        Some(rejection) => Err(rejection.into()),
    }
}
