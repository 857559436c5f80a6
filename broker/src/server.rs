//! The broker's listeners: what the configuration says about them, and the handlers behind them.

use std::sync::Arc;
use std::time::Duration;

use zurau_common::config::BrokerConfig;
use zurau_common::wire::server::{ListenerAddress, Server, ServerLimits};

use crate::context::BrokerContext;
use crate::handlers::Handlers;

/// Stands in for "never": a year.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Requests of one connection that wait for their answers; clients have far fewer in flight.
const REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: usize = 128;

/// Bytes of requests and ready answers that one connection may hold.
const BYTES_IN_FLIGHT_PER_CONNECTION_MAX: usize = 64 << 20;

/// Opens the listeners. Requests are answered from now on, first with empty metadata. Runs on the runtime that calls
/// it: the data plane's.
///
/// # Errors
/// An address that cannot be listened on.
pub(crate) async fn serve(context: Arc<BrokerContext>) -> anyhow::Result<Server> {
    let listeners = addresses(&context.config);
    let limits = limits(&context.config);
    Server::bind(&listeners, limits, Arc::new(Handlers::new(context))).await
}

fn addresses(config: &BrokerConfig) -> Vec<ListenerAddress> {
    let listeners = config.listeners.iter().map(|listener| ListenerAddress {
        name: listener.name.as_str().into(),
        host: listener.host.clone(),
        port: listener.port,
    });
    listeners.collect()
}

fn limits(config: &BrokerConfig) -> ServerLimits {
    ServerLimits {
        request_bytes_max: config.socket_request_max_bytes,
        connections_max: config.max_connections,
        connections_per_address_max: config.max_connections_per_ip,
        requests_in_flight_max: REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX.min(config.queued_max_requests.max(1)),
        bytes_in_flight_max: BYTES_IN_FLIGHT_PER_CONNECTION_MAX,
        idle_max: config.connections_max_idle.unwrap_or(NEVER),
        backlog: config.socket_listen_backlog_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_and_limits_are_the_configured_ones() {
        let config = BrokerConfig::from_pairs([
            ("broker.id", "1"),
            ("listeners", "PLAINTEXT://127.0.0.1:9092"),
            ("max.connections.per.ip", "7"),
            ("connections.max.idle.ms", "-1"),
        ])
        .unwrap();
        let listeners = addresses(&config);
        assert_eq!((listeners[0].host.as_str(), listeners[0].port), ("127.0.0.1", 9092));
        let limits = limits(&config);
        assert_eq!((limits.connections_per_address_max, limits.backlog), (7, 50));
        assert_eq!(limits.idle_max, NEVER);
    }
}
