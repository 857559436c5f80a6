//! A TCP proxy that can lose answers and cut connections.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    /// Requests reach the server, answers do not come back.
    LoseAnswers,
    /// Connections stand, and carry nothing.
    Hang,
    /// Connections are accepted and closed at once.
    Down,
}

#[derive(Debug, Clone, Copy)]
struct Control {
    mode: Mode,
    /// Connections of an earlier number are cut.
    cuts: u64,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    control: Arc<watch::Sender<Control>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let control = Arc::new(watch::Sender::new(Control { mode: Mode::Pass, cuts: 0 }));
        let shared = Arc::clone(&control);
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                let control = shared.subscribe();
                if control.borrow().mode != Mode::Down {
                    tokio::spawn(relay(client, port, control));
                }
            }
        });
        Self { port: own_port, control, task }
    }

    pub(crate) fn lose_answers(&self) {
        self.control.send_modify(|control| control.mode = Mode::LoseAnswers);
    }

    pub(crate) fn hang(&self) {
        self.control.send_modify(|control| control.mode = Mode::Hang);
    }

    /// Cuts what is connected, and lets nobody in.
    pub(crate) fn take_down(&self) {
        self.control.send_modify(|control| {
            control.mode = Mode::Down;
            control.cuts += 1;
        });
    }

    /// Cuts what is connected; new connections pass.
    pub(crate) fn cut(&self) {
        self.control.send_modify(|control| {
            control.mode = Mode::Pass;
            control.cuts += 1;
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(client: TcpStream, port: u16, mut control: watch::Receiver<Control>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let cuts = control.borrow().cuts;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (requests, answers) = (control.clone(), control.clone());
    tokio::select! {
        () = copy(from_client, to_server, requests, &[Mode::Hang]) => {}
        () = copy(from_server, to_client, answers, &[Mode::Hang, Mode::LoseAnswers]) => {}
        _ = control.wait_for(|now| now.cuts != cuts) => {}
    }
}

/// Copies one direction, except in the modes that lose it.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: watch::Receiver<Control>,
    lost_in: &[Mode],
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if read == 0 {
            return;
        }
        let lost = lost_in.contains(&control.borrow().mode);
        if !lost && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
