//! A TCP proxy whose connections can be cut and refused for a while, as a network does.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use crate::port::free_port;

#[derive(Default)]
struct Links {
    cut: bool,
    streams: Vec<TcpStream>,
}

/// Forwards `127.0.0.1:port` to a target until it is dropped.
pub struct Proxy {
    port: u16,
    links: Arc<Mutex<Links>>,
}

impl Proxy {
    /// # Errors
    /// No port could be bound.
    pub fn start(target: String) -> Result<Self> {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).context("binding the proxy")?;
        let links = Arc::new(Mutex::new(Links::default()));
        let shared = Arc::clone(&links);
        thread::spawn(move || {
            for inward in listener.incoming().flatten() {
                connect(&shared, inward, &target);
            }
        });
        Ok(Self { port, links })
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends every connection and refuses new ones until [`Self::heal`].
    pub fn cut(&self) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.cut = true;
        for stream in links.streams.drain(..) {
            // Already closed is as good as closed now.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn heal(&self) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).cut = false;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

fn connect(links: &Arc<Mutex<Links>>, inward: TcpStream, target: &str) {
    let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
    if links.cut {
        return;
    }
    let Ok(outward) = TcpStream::connect(target) else { return };
    let copies = [inward.try_clone(), inward.try_clone(), outward.try_clone(), outward.try_clone()];
    let [Ok(a), Ok(b), Ok(c), Ok(d)] = copies else { return };
    links.streams.push(inward);
    links.streams.push(outward);
    thread::spawn(move || forward(a, c));
    thread::spawn(move || forward(d, b));
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    // Either end may be gone already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
