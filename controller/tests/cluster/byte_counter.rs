//! A forwarder in front of ZooKeeper that counts what its client receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct ByteCounter {
    address: SocketAddr,
    received: Arc<AtomicU64>,
}

impl ByteCounter {
    /// `connect`: a server's address, with or without a chroot.
    pub(crate) async fn start(connect: &str) -> (Self, String) {
        let (server, chroot) = match connect.find('/') {
            Some(at) => connect.split_at(at),
            None => (connect, ""),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let counter = Self { address: listener.local_addr().unwrap(), received: Arc::default() };
        let (server, received) = (server.to_owned(), Arc::clone(&counter.received));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), Arc::clone(&received)));
            }
        });
        let through = format!("{}{chroot}", counter.address);
        (counter, through)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

async fn forward(client: TcpStream, server: String, received: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (mut from_server, mut to_server) = server.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let up = async {
        let _ = copy(&mut from_client, &mut to_server).await;
    };
    let down = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            received.fetch_add(count as u64, Ordering::Relaxed);
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
