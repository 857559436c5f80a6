//! `zurau-zookeeper`: the in-process ZooKeeper server as a process of its own, for tests and
//! development only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use zurau_zookeeper::{Server, ServerConfig};

/// A ZooKeeper-protocol server for development and tests only. It is not replicated.
#[derive(Debug, Parser)]
#[command(name = "zurau-zookeeper", version)]
struct Arguments {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:2181")]
    listen: SocketAddr,
    /// Directory for state that survives a restart; without it everything is in memory.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Unit of time told to monitoring, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    tick_time_ms: u64,
    /// Smallest session timeout that a client may ask for; default two ticks.
    #[arg(long)]
    min_session_timeout_ms: Option<u64>,
    /// Largest session timeout that a client may ask for; default twenty ticks.
    #[arg(long)]
    max_session_timeout_ms: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let ticks = |count: u64| arguments.tick_time_ms.saturating_mul(count);
    let server = Server::start(ServerConfig {
        listen: arguments.listen,
        data_dir: arguments.data,
        tick_time: Duration::from_millis(arguments.tick_time_ms),
        min_session_timeout: Duration::from_millis(arguments.min_session_timeout_ms.unwrap_or(ticks(2))),
        max_session_timeout: Duration::from_millis(arguments.max_session_timeout_ms.unwrap_or(ticks(20))),
    })
    .await?;
    println!("zookeeper.connect={}", server.connect_string());
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
        () = server.stopped() => {}
    }
    server.shutdown().await
}
