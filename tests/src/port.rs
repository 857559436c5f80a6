//! Free ports below the ephemeral range: a port that the kernel may hand to an outgoing connection could be taken
//! while its broker is down, even by a client that ends up connected to itself.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// # Panics
/// If none of 20,000 ports is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let candidate = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(candidate).expect("below 32,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// The first of `count` neighbouring free ports, none of which [`free_port`] will give out again in this process.
///
/// # Panics
/// If there is no such row.
pub fn free_port_row(count: u16) -> u16 {
    for _ in 0..COUNT {
        let first = free_port();
        let next = (1..count).map(|_| free_port());
        if next.zip(first + 1..).all(|(port, wanted)| port == wanted) {
            return first;
        }
    }
    panic!("no row of {count} free ports");
}
