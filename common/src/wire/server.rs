//! Accepts connections and hands their requests to a handler; used by the broker and the controller.
//!
//! A connection is two tasks: one reads requests and starts them in their order, the other writes the answers in the
//! same order. A request that waits (acks=all, a long poll) leaves its place in the queue of answers, and the next one
//! is started meanwhile. Whatever a peer does wrong, or a handler panics about, ends that connection and nothing else.

mod connection;
mod outbox;
mod sending;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::frame::RequestFrame;
use super::places::Places;
use crate::page_cache::FilePart;

/// Pause after the operating system refused to hand over a connection, for instance for want of file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long answers in flight may still be written after [`Server::shutdown`].
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Name of a listener, as in `listeners`: `PLAINTEXT`, `INTERNAL`, …
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListenerName(pub Arc<str>);

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ListenerName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

/// Where to listen. An empty host means every interface; port 0 lets the operating system choose one.
#[derive(Debug, Clone)]
pub struct ListenerAddress {
    pub name: ListenerName,
    pub host: String,
    pub port: u16,
}

/// What one peer may ask of this process.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Largest request in bytes, its length not counted: `socket.request.max.bytes`.
    pub request_bytes_max: usize,
    /// Connections over all listeners: `max.connections`. One more is closed at once.
    pub connections_max: usize,
    /// Connections from one address: `max.connections.per.ip`.
    pub connections_per_address_max: usize,
    /// Requests of one connection that were started and have no written answer; at this number its socket is not read.
    pub requests_in_flight_max: usize,
    /// Bytes of requests and ready answers that one connection may hold; beyond them its socket is not read.
    pub bytes_in_flight_max: usize,
    /// A connection that sends no request, or reads no answer, for so long is closed: `connections.max.idle.ms`.
    pub idle_max: Duration,
    /// Connections that wait for being accepted: `socket.listen.backlog.size`.
    pub backlog: u32,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            request_bytes_max: 100 << 20,
            connections_max: usize::MAX,
            connections_per_address_max: usize::MAX,
            requests_in_flight_max: 128,
            bytes_in_flight_max: 64 << 20,
            idle_max: Duration::from_secs(600),
            backlog: 50,
        }
    }
}

/// A whole answer, the length in front included, as pieces that are written one after the other: records go from the
/// log to the socket without being copied into one buffer.
#[derive(Debug, Default)]
pub struct Frame(pub Vec<Piece>);

impl Frame {
    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(Piece::size).sum()
    }
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        Self(vec![Piece::Bytes(bytes)])
    }
}

/// A part of an answer.
pub enum Piece {
    Bytes(Bytes),
    /// Sent by the kernel.
    File(FilePart),
    /// Fetched while the answer is written.
    Stream(Box<dyn Stream>),
}

impl Piece {
    /// Size in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File(part) => part.length,
            Self::Stream(stream) => stream.remaining(),
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(part) => write!(f, "{} bytes of a file", part.length),
            Self::Stream(stream) => write!(f, "{} bytes to come", stream.remaining()),
        }
    }
}

/// Bytes of an answer that are fetched as the peer takes them: however slow it is, it holds memory for a part of the
/// answer only. Their number was announced before, so an error can only end the connection.
pub trait Stream: Send {
    /// Bytes to come.
    fn remaining(&self) -> usize;

    /// The next bytes, at least one and at most [`Stream::remaining`], which is not 0. `None`: not without waiting for
    /// a disk.
    ///
    /// # Errors
    /// Why the connection has to end.
    fn next_at_once(&mut self) -> Result<Option<Bytes>, String>;

    /// The next bytes as a part of a file that is in the page cache. `None`: they have to be read.
    ///
    /// # Errors
    /// Why the connection has to end.
    fn next_of_file(&mut self) -> Result<Option<FilePart>, String> {
        Ok(None)
    }

    /// As [`Stream::next_at_once`], but it may wait.
    ///
    /// # Errors
    /// Why the connection has to end.
    fn next_blocking(&mut self) -> Result<Bytes, String>;
}

/// What becomes of a request.
pub enum Answer {
    /// The answer is ready.
    Now(Frame),
    /// The request has no answer (acks=0).
    Nothing,
    /// The answer comes later; the next request is started meanwhile. The future is first polled when the answers
    /// before it are written, so it must not contain what later requests rely on. `None`: there is no answer.
    Later(BoxFuture<'static, Option<Frame>>),
    /// The answers before this one are written, then the connection is closed and the reason is logged.
    Close(String),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(frame) => write!(f, "Now({} bytes)", frame.size()),
            Self::Nothing => f.write_str("Nothing"),
            Self::Later(_) => f.write_str("Later"),
            Self::Close(reason) => write!(f, "Close({reason})"),
        }
    }
}

/// One connection as its requests see it.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Unique in this process; later connections have larger ids.
    pub id: u64,
    pub peer_address: SocketAddr,
    pub listener: ListenerName,
    /// Closes the connection when cancelled; requests not yet read are never started.
    pub closer: CancellationToken,
}

/// How long a request took, and in what part. Answers leave in order, so `waited` holds the wait for earlier ones too,
/// except for answers that were there at once: their wait for earlier ones is `queued`.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    pub api_key: i16,
    pub api_version: i16,
    /// Bytes of the request, its length not counted.
    pub request_bytes: usize,
    /// From the last byte of the request until the handler had started it, or had answered.
    pub started: Duration,
    /// From there until the answer was there.
    pub waited: Duration,
    /// From there until all earlier answers of the connection were there. `None` where that cannot be told from `waited`.
    pub queued: Option<Duration>,
    /// From there until the answer was written.
    pub sent: Duration,
}

/// Starts requests.
pub trait RequestHandler: Send + Sync + 'static {
    /// Starts one request. It is awaited before the next request of the connection is read, so effects that must keep
    /// the order of requests happen here; whatever takes long belongs into [`Answer::Later`].
    fn start<'a>(&'a self, connection: &'a Connection, request: RequestFrame) -> BoxFuture<'a, Answer>;

    /// A request is done with: its answer is written, or it has none. For measurements; must be quick.
    fn answered(&self, _answered: &Answered) {}
}

/// What all connections share.
struct Shared {
    handler: Arc<dyn RequestHandler>,
    limits: ServerLimits,
    places: Arc<Places>,
    next_connection_id: AtomicU64,
    /// No more requests are read.
    draining: CancellationToken,
    /// Connections end, whatever they were doing.
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// A running server. Dropping it ends its connections at once; [`Server::shutdown`] lets answers in flight go out.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<(ListenerName, SocketAddr)>,
}

impl Server {
    /// Binds every listener and begins to accept.
    ///
    /// # Errors
    /// A host that does not resolve, an address in use, a port that needs privileges; the text names the listener.
    pub async fn bind(
        listeners: &[ListenerAddress],
        limits: ServerLimits,
        handler: Arc<dyn RequestHandler>,
    ) -> anyhow::Result<Self> {
        let mut bound = Vec::new();
        for listener in listeners {
            let socket = listen(&listener.host, listener.port, limits.backlog).await.with_context(|| {
                format!(
                    "cannot listen on {}://{}:{} (listeners)",
                    listener.name, listener.host, listener.port
                )
            })?;
            bound.push((listener.name.clone(), socket));
        }
        let shared = Arc::new(Shared {
            handler,
            places: Places::new(limits.connections_max, limits.connections_per_address_max),
            limits,
            next_connection_id: AtomicU64::new(1),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let mut addresses = Vec::new();
        for (name, socket) in bound {
            let address = socket.local_addr().context("a bound socket has no address")?;
            info!(listener = %name, %address, "listening");
            addresses.push((name.clone(), address));
            shared.tasks.spawn(accept_loop(Arc::clone(&shared), name, socket));
        }
        Ok(Self { shared, addresses })
    }

    /// The bound addresses, in the order of the listeners.
    pub fn local_addresses(&self) -> &[(ListenerName, SocketAddr)] {
        &self.addresses
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.places.taken()
    }

    /// Accepts and reads no more, lets answers in flight go out for up to a second, then closes everything.
    pub async fn shutdown(&self) {
        self.shared.draining.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(SHUTDOWN_GRACE, self.shared.tasks.wait()).await.is_err() {
            self.shared.stopping.cancel();
            self.shared.tasks.wait().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.draining.cancel();
        self.shared.stopping.cancel();
    }
}

/// Listens on a host's first address that can be had. An empty host means every interface.
pub(crate) async fn listen(host: &str, port: u16, backlog: u32) -> anyhow::Result<TcpListener> {
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = lookup_host((host, port)).await.context("the host does not resolve")?;
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match listen_on(address, backlog) {
            Ok(socket) => return Ok(socket),
            Err(error) => last_error = error,
        }
    }
    Err(last_error.into())
}

fn listen_on(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

async fn accept_loop(shared: Arc<Shared>, listener: ListenerName, socket: TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = shared.draining.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer_address)) => admit(&shared, &listener, stream, peer_address),
            Err(error) => {
                warn!(%listener, %error, "cannot accept a connection; trying again (look at the limit on open files)");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Starts serving an accepted connection, unless a limit is reached.
fn admit(shared: &Arc<Shared>, listener: &ListenerName, stream: TcpStream, peer_address: SocketAddr) {
    let Some(place) = shared.places.take(peer_address.ip()) else {
        warn!(%listener, %peer_address, "connection refused: max.connections or max.connections.per.ip is reached");
        return;
    };
    if let Err(error) = stream.set_nodelay(true) {
        info!(%listener, %peer_address, %error, "connection closed before it began");
        return;
    }
    let connection = Connection {
        id: shared.next_connection_id.fetch_add(1, Ordering::Relaxed),
        peer_address,
        listener: listener.clone(),
        closer: shared.stopping.child_token(),
    };
    let for_task = Arc::clone(shared);
    shared.tasks.spawn(async move {
        connection::serve(&for_task, connection, stream).await;
        drop(place);
    });
}

#[cfg(test)]
#[path = "server/tests.rs"]
mod tests;
