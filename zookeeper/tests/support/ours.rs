//! Our server in a thread of its own, so that scenarios may block.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use zurau_zookeeper::{Server, ServerConfig};

use super::{MAX_SESSION_TIMEOUT, MIN_SESSION_TIMEOUT};

pub struct Ours {
    address: SocketAddr,
    data: Option<tempfile::TempDir>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Ours {
    pub fn in_memory() -> Self {
        Self::launch(None)
    }

    pub fn durable() -> Self {
        Self::launch(Some(tempfile::tempdir().expect("a temporary directory")))
    }

    fn launch(data: Option<tempfile::TempDir>) -> Self {
        let mut server = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), data, running: None };
        server.start();
        server
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn start(&mut self) {
        let config = ServerConfig {
            listen: self.address,
            data_dir: self.data.as_ref().map(|data| PathBuf::from(data.path())),
            min_session_timeout: MIN_SESSION_TIMEOUT,
            max_session_timeout: MAX_SESSION_TIMEOUT,
            ..ServerConfig::default()
        };
        let (ready, started) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::start(config).await.unwrap();
                ready.send(server.local_addr()).unwrap();
                // Ends also when the sender is dropped.
                let _ = stopped.await;
                server.shutdown().await.unwrap();
            });
        });
        self.address = started.recv().expect("our server starts");
        self.running = Some((stop, thread));
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            thread.join().expect("our server stops cleanly");
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}
