//! A connection to a broker or controller: many calls in flight, answers matched in order.
//!
//! A Kafka server answers the requests of one connection in the order it got them, so the answers are matched by a
//! queue, and the correlation id only proves that the two sides agree. One task writes, one reads. A caller that goes
//! away leaves its place in the queue, and its answer is dropped when it comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use kafka_protocol::protocol::{Request, StrBytes};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::frame::{self, ApiVersion, FrameError};
use super::transport::FrameReader;

/// Calls that may wait for an answer on one connection; more wait for a free place.
pub const CALLS_IN_FLIGHT_MAX: usize = 256;

/// The largest answer in bytes. A fetch answer holds `replica.fetch.response.max.bytes`, and at least one batch.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Why a call has no answer. None of them says whether the peer acted on the request.
#[derive(Debug, Clone, Error)]
pub enum PeerError {
    #[error("connection to {address} is closed: {reason}")]
    Closed { address: Arc<str>, reason: Arc<str> },
    #[error("no answer to {api} from {address} within {timeout:?}")]
    TimedOut { address: Arc<str>, api: ApiVersion, timeout: Duration },
    #[error("the answer of {address} cannot be read: {error}")]
    BadAnswer { address: Arc<str>, error: FrameError },
    #[error("a request to {address} cannot be sent: {error}")]
    BadRequest { address: Arc<str>, error: FrameError },
}

struct Waiting {
    correlation_id: i32,
    answer: oneshot::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
}

struct Outgoing {
    frame: Bytes,
    /// `None` for a request that the peer does not answer.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Shared {
    address: Arc<str>,
    closed: CancellationToken,
    reason: Mutex<Option<Arc<str>>>,
}

impl Shared {
    fn close(&self, reason: String) {
        self.reason.lock().get_or_insert_with(|| reason.into());
        self.closed.cancel();
    }

    fn closed_error(&self) -> PeerError {
        let reason = self.reason.lock().clone().unwrap_or_else(|| "it was given up".into());
        PeerError::Closed { address: Arc::clone(&self.address), reason }
    }
}

/// Calls that were written and have no answer yet; `None` once the connection is closed.
type Queue = Arc<Mutex<Option<VecDeque<Waiting>>>>;

/// A connection. Dropping it closes the socket and fails the calls in flight.
#[derive(Debug)]
pub struct Peer {
    shared: Arc<Shared>,
    client_id: StrBytes,
    timeout: Duration,
    places: Arc<Semaphore>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    /// Orders the numbering of calls with their way into the channel.
    next_correlation_id: Mutex<i32>,
    tasks: [JoinHandle<()>; 2],
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = self.waiting.as_ref().map(|waiting| waiting.correlation_id);
        write!(f, "call {number:?} of {} bytes", self.frame.len())
    }
}

impl Peer {
    /// Connects to `address` (`host:port`). `timeout` bounds the connection attempt and, by default, every call.
    ///
    /// # Errors
    /// The address does not resolve, nobody listens, or the time is over.
    pub async fn connect(address: &str, client_id: &str, timeout: Duration) -> anyhow::Result<Self> {
        let stream = tokio::time::timeout(timeout, TcpStream::connect(address))
            .await
            .with_context(|| format!("no connection to {address} within {timeout:?}"))?
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true).with_context(|| format!("cannot set TCP_NODELAY on {address}"))?;
        let (reader, writer) = stream.into_split();
        let shared = Arc::new(Shared {
            address: address.into(),
            closed: CancellationToken::new(),
            reason: Mutex::new(None),
        });
        let queue: Queue = Arc::new(Mutex::new(Some(VecDeque::new())));
        let (outgoing, incoming) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(write_calls(writer, incoming, Arc::clone(&queue), Arc::clone(&shared))),
            tokio::spawn(read_answers(reader, queue, Arc::clone(&shared))),
        ];
        Ok(Self {
            shared,
            client_id: StrBytes::from_string(client_id.to_owned()),
            timeout,
            places: Arc::new(Semaphore::new(CALLS_IN_FLIGHT_MAX)),
            outgoing,
            next_correlation_id: Mutex::new(0),
            tasks,
        })
    }

    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Whether the connection is of no more use: closed by the peer, broken, or given up by [`Peer::close`].
    pub fn is_closed(&self) -> bool {
        self.shared.closed.is_cancelled()
    }

    /// Waits until [`Peer::is_closed`].
    pub async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }

    /// Closes the socket and fails the calls in flight with `reason`.
    pub fn close(&self, reason: &str) {
        self.shared.close(reason.to_owned());
    }

    /// Sends a request and waits for its answer. Cancel safe: the request may have been sent, its answer is dropped.
    ///
    /// # Errors
    /// See [`PeerError`]. A call that timed out leaves the connection open, and later calls behind it.
    pub async fn call<R: Request>(&self, version: i16, request: &R) -> Result<R::Response, PeerError> {
        self.call_within(self.timeout, version, request).await
    }

    /// As [`Peer::call`] with a timeout of its own, for requests that the peer may hold back on purpose.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn call_within<R: Request>(
        &self,
        timeout: Duration,
        version: i16,
        request: &R,
    ) -> Result<R::Response, PeerError> {
        let api = ApiVersion { api_key: R::KEY, api_version: version };
        let address = || Arc::clone(&self.shared.address);
        let exchange = async {
            let answer = self.send(version, request).await?;
            answer.await.map_err(|_| self.shared.closed_error())
        };
        let rest = tokio::time::timeout(timeout, exchange).await.map_err(|_| PeerError::TimedOut {
            address: address(),
            api,
            timeout,
        })??;
        frame::decode_response_body(rest, api)
            .map_err(|error| PeerError::BadAnswer { address: address(), error })
    }

    /// Sends a request that the peer does not answer: a Produce with acks=0. It has arrived when a later call is
    /// answered.
    ///
    /// # Errors
    /// The connection is closed, or the request cannot be encoded.
    pub fn tell<R: Request>(&self, version: i16, request: &R) -> Result<(), PeerError> {
        let mut next = self.next_correlation_id.lock();
        let frame = self.encode(version, &mut next, request)?.1;
        self.outgoing.send(Outgoing { frame, waiting: None }).map_err(|_| self.shared.closed_error())
    }

    /// Encodes a request under the next number, which it returns.
    fn encode<R: Request>(
        &self,
        version: i16,
        next: &mut i32,
        request: &R,
    ) -> Result<(i32, Bytes), PeerError> {
        let correlation_id = *next;
        *next = next.wrapping_add(1) & i32::MAX;
        let frame = frame::encode_request(version, correlation_id, &self.client_id, request)
            .map_err(|error| PeerError::BadRequest { address: Arc::clone(&self.shared.address), error })?;
        Ok((correlation_id, frame))
    }

    async fn send<R: Request>(
        &self,
        version: i16,
        request: &R,
    ) -> Result<oneshot::Receiver<Bytes>, PeerError> {
        let place = tokio::select! {
            place = Arc::clone(&self.places).acquire_owned() => place.map_err(|_| self.shared.closed_error())?,
            () = self.shared.closed.cancelled() => return Err(self.shared.closed_error()),
        };
        let (answer, receiver) = oneshot::channel();
        let mut next = self.next_correlation_id.lock();
        let (correlation_id, frame) = self.encode(version, &mut next, request)?;
        let waiting = Some(Waiting { correlation_id, answer, _place: place });
        self.outgoing.send(Outgoing { frame, waiting }).map_err(|_| self.shared.closed_error())?;
        Ok(receiver)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn write_calls(
    mut writer: OwnedWriteHalf,
    mut calls: mpsc::UnboundedReceiver<Outgoing>,
    queue: Queue,
    shared: Arc<Shared>,
) {
    let work = async {
        while let Some(call) = calls.recv().await {
            // In the queue before on the wire, so that no answer can come to an empty queue.
            match queue.lock().as_mut() {
                Some(waiting) => waiting.extend(call.waiting),
                None => return,
            }
            if let Err(error) = writer.write_all(&call.frame).await {
                shared.close(format!("writing failed: {error}"));
                return;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = shared.closed.cancelled() => {}
    }
}

async fn read_answers(reader: OwnedReadHalf, queue: Queue, shared: Arc<Shared>) {
    let mut frames = FrameReader::new(reader, ANSWER_BYTES_MAX);
    loop {
        let frame = tokio::select! {
            frame = frames.next() => frame,
            () = shared.closed.cancelled() => break,
        };
        let reason = match frame {
            Ok(Some(frame)) => match deliver(frame, &queue) {
                Ok(()) => continue,
                Err(reason) => reason,
            },
            Ok(None) => "the peer closed it".to_owned(),
            Err(error) => format!("reading failed: {error}"),
        };
        shared.close(reason);
        break;
    }
    queue.lock().take();
}

/// Hands an answer to the oldest call.
fn deliver(frame: Bytes, queue: &Queue) -> Result<(), String> {
    let (correlation_id, rest) = frame::split_correlation_id(frame).map_err(|error| error.to_string())?;
    let oldest = queue.lock().as_mut().and_then(VecDeque::pop_front);
    let waiting = oldest.ok_or_else(|| format!("answer {correlation_id} came without a call"))?;
    if waiting.correlation_id != correlation_id {
        return Err(format!("answer {correlation_id} came in place of answer {}", waiting.correlation_id));
    }
    // The caller may be gone; then nobody wants the answer.
    let _ = waiting.answer.send(rest);
    Ok(())
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
