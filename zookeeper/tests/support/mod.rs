//! Two servers behind one face: ours, and the real ZooKeeper when the machine has one.

// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

pub mod ours;
pub mod raw;
pub mod real_zookeeper;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ours::Ours;
use real_zookeeper::RealZookeeper;

/// Smallest session timeout that both servers grant.
pub const MIN_SESSION_TIMEOUT: Duration = Duration::from_millis(400);
/// Largest session timeout that both servers grant.
pub const MAX_SESSION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server that a scenario may stop and start again; its data stays.
pub enum Restartable {
    Ours(Ours),
    Real(RealZookeeper),
}

impl Restartable {
    pub fn address(&self) -> String {
        match self {
            Self::Ours(server) => server.address(),
            Self::Real(server) => server.connect_string(),
        }
    }

    pub fn restart(&mut self) {
        match self {
            Self::Ours(server) => server.restart(),
            Self::Real(server) => {
                server.stop();
                server.start().expect("the real ZooKeeper starts again");
            }
        }
    }
}

/// The real server that scenarios share; `None`, said loudly, where there is none.
pub fn shared_real() -> Option<String> {
    static SHARED: OnceLock<Option<RealZookeeper>> = OnceLock::new();
    SHARED.get_or_init(real).as_ref().map(RealZookeeper::connect_string)
}

/// A real server of the scenario's own.
pub fn real() -> Option<RealZookeeper> {
    if let Some(missing) = real_zookeeper::missing() {
        println!("SKIP: no real ZooKeeper on this machine ({missing}); install Debian's `zookeeper` package");
        return None;
    }
    Some(RealZookeeper::launch(MIN_SESSION_TIMEOUT, MAX_SESSION_TIMEOUT).expect("the real ZooKeeper starts"))
}

/// Waits until the condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Runs a scenario that uses an async client.
pub fn block_on<T>(scenario: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, scenario).await.expect("the scenario ends in time")
    })
}
