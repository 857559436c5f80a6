//! One accepted connection: a reader that starts requests, a writer that sends the answers in the same order, and the
//! account of what is in flight between them.

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tracing::{debug, error, info};

use super::outbox::{LoadError, Outbox};
use super::sending::send_some;
use super::{Answer, Answered, Connection, Frame, Shared};
use crate::wire::frame::{RequestFrame, parse_request};
use crate::wire::transport::FrameReader;

/// Answers are gathered into one write up to this size; a larger one is written alone.
const COALESCED_BYTES_MAX: usize = 256 << 10;

/// Why a connection ends.
#[derive(Debug)]
enum Ending {
    /// The peer closed it, or we are stopping: not worth a line.
    Quiet,
    /// Something the operator may want to see once.
    Logged(String),
    /// Our own bug.
    Panicked(String),
}

/// Serves a connection until it ends.
pub(super) async fn serve(shared: &Arc<Shared>, connection: Connection, stream: TcpStream) {
    let (read_half, write_half) = stream.into_split();
    let account = Arc::new(Account::default());
    // The account bounds the queue; one place more is for the marker that closes it.
    let (answers, queue) = mpsc::channel(shared.limits.requests_in_flight_max.saturating_add(1).min(1 << 20));
    let writer = Writer {
        shared: Arc::clone(shared),
        ready: Vec::new(),
        socket: write_half,
        queue,
        account: Arc::clone(&account),
        outbox: Outbox::default(),
        stall_max: shared.limits.idle_max,
    };
    let writing = AbortOnDrop(tokio::spawn(writer.run()));
    let reader = Reader { shared, connection: &connection, account, answers };
    let ending = tokio::select! {
        () = connection.closer.cancelled() => Ending::Quiet,
        ending = run_both(reader, read_half, writing) => ending,
    };
    match ending {
        Ending::Quiet => debug!(connection = connection.id, peer = %connection.peer_address, "closed"),
        Ending::Logged(reason) => info!(
            connection = connection.id, peer = %connection.peer_address, listener = %connection.listener,
            "connection closed: {reason}"
        ),
        Ending::Panicked(reason) => error!(
            connection = connection.id, peer = %connection.peer_address, listener = %connection.listener,
            "connection closed: a request handler panicked (a bug): {reason}"
        ),
    }
}

async fn run_both(reader: Reader<'_>, read_half: OwnedReadHalf, mut writing: AbortOnDrop) -> Ending {
    let reading = reader.run(read_half);
    tokio::pin!(reading);
    tokio::select! {
        ending = &mut reading => match ending {
            // The peer is gone: nobody would read the answers.
            None => Ending::Quiet,
            Some(ending) => match writing.ended().await {
                Ending::Quiet => ending,
                other => other,
            },
        },
        ending = writing.ended() => ending,
    }
}

impl From<LoadError> for Ending {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::CutOff(reason) => Self::Logged(format!("an answer was cut off: {reason}")),
            LoadError::Panicked(payload) => Self::Panicked(panic_text(payload.as_ref())),
            LoadError::Stopping => Self::Quiet,
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<Ending>);

impl AbortOnDrop {
    async fn ended(&mut self) -> Ending {
        match (&mut self.0).await {
            Ok(ending) => ending,
            Err(error) if error.is_panic() => Ending::Panicked(panic_text(error.into_panic().as_ref())),
            Err(_) => Ending::Quiet,
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Requests and bytes of a connection that are in flight.
#[derive(Debug, Default)]
struct Account {
    held: Mutex<Held>,
    released: Notify,
}

#[derive(Debug, Default, Clone, Copy)]
struct Held {
    requests: usize,
    bytes: usize,
}

impl Account {
    async fn wait_for_room(&self, requests_max: usize, bytes_max: usize) {
        loop {
            let held = *self.held.lock();
            // A single request may be larger than the limit: it passes when nothing else is held.
            if held.requests == 0 || (held.requests < requests_max && held.bytes < bytes_max) {
                return;
            }
            self.released.notified().await;
        }
    }

    fn take(&self, requests: usize, bytes: usize) {
        let mut held = self.held.lock();
        held.requests += requests;
        held.bytes += bytes;
    }

    fn release(&self, requests: usize, bytes: usize) {
        let mut held = self.held.lock();
        held.requests -= requests;
        held.bytes -= bytes;
        drop(held);
        self.released.notify_one();
    }

    fn is_idle(&self) -> bool {
        self.held.lock().requests == 0
    }
}

/// A place in the queue of answers.
struct Queued {
    answer: Pending,
    /// What the account holds for it.
    bytes: usize,
    /// `None` for the end.
    began: Option<Began>,
}

/// A request that was started.
#[derive(Debug, Clone, Copy)]
struct Began {
    api_key: i16,
    api_version: i16,
    request_bytes: usize,
    started: Duration,
    /// When it was started.
    at: Instant,
    /// The answer was there then.
    at_once: bool,
}

impl Began {
    fn answered(self, ready: Instant, sent: Instant) -> Answered {
        let between = ready.saturating_duration_since(self.at);
        let (waited, queued) = if self.at_once { (Duration::ZERO, Some(between)) } else { (between, None) };
        Answered {
            api_key: self.api_key,
            api_version: self.api_version,
            request_bytes: self.request_bytes,
            started: self.started,
            waited,
            queued,
            sent: sent.saturating_duration_since(ready),
        }
    }
}

enum Pending {
    Ready(Frame),
    Later(BoxFuture<'static, Option<Frame>>),
    /// Everything before it is written, then the connection ends.
    End,
}

struct Reader<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
    account: Arc<Account>,
    answers: mpsc::Sender<Queued>,
}

impl Reader<'_> {
    /// Reads and starts requests. `None` when the peer hung up; else the answers in flight still go out.
    async fn run(self, read_half: OwnedReadHalf) -> Option<Ending> {
        let limits = &self.shared.limits;
        let mut frames = FrameReader::new(read_half, limits.request_bytes_max);
        let ending = loop {
            self.account.wait_for_room(limits.requests_in_flight_max, limits.bytes_in_flight_max).await;
            let read = tokio::select! {
                () = self.shared.draining.cancelled() => break Ending::Quiet,
                read = timeout(limits.idle_max, frames.next()) => read,
            };
            let frame = match read {
                Ok(Ok(Some(frame))) => frame,
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => break reading_failed(&error),
                Err(_) if !self.account.is_idle() => continue,
                Err(_) => {
                    let idle = limits.idle_max;
                    break Ending::Logged(format!(
                        "no complete request for {idle:?} (connections.max.idle.ms)"
                    ));
                }
            };
            if let Err(ending) = self.start(frame).await {
                break ending;
            }
        };
        self.account.take(1, 0);
        // The writer is gone only when the connection ends anyway.
        let _ = self.answers.send(Queued { answer: Pending::End, bytes: 0, began: None }).await;
        Some(ending)
    }

    async fn start(&self, frame: Bytes) -> Result<(), Ending> {
        let size = frame.len();
        let arrived = Instant::now();
        let request = parse_request(frame).map_err(|error| Ending::Logged(error.to_string()))?;
        let (api_key, api_version) = (request.api_key, request.api_version);
        let answer = self.start_caught(request).await.map_err(Ending::Panicked)?;
        let at = Instant::now();
        let at_once = matches!(answer, Answer::Now(_));
        let began = Began { api_key, api_version, request_bytes: size, started: at - arrived, at, at_once };
        let (answer, bytes) = match answer {
            Answer::Now(frame) => {
                let bytes = frame.size();
                (Pending::Ready(frame), bytes)
            }
            Answer::Later(later) => (Pending::Later(later), size),
            Answer::Nothing => {
                self.shared.handler.answered(&began.answered(at, at));
                return Ok(());
            }
            Answer::Close(reason) => return Err(Ending::Logged(reason)),
        };
        self.account.take(1, bytes);
        // The writer is gone only when the connection ends anyway.
        let _ = self.answers.send(Queued { answer, bytes, began: Some(began) }).await;
        Ok(())
    }

    async fn start_caught(&self, request: RequestFrame) -> Result<Answer, String> {
        let api = request.api();
        let starting = AssertUnwindSafe(async { self.shared.handler.start(self.connection, request).await });
        starting.catch_unwind().await.map_err(|payload| format!("{api}: {}", panic_text(payload.as_ref())))
    }
}

fn reading_failed(error: &crate::wire::transport::ReadFrameError) -> Ending {
    use crate::wire::transport::ReadFrameError;
    match error {
        ReadFrameError::Io(error) if is_disconnect(error) => Ending::Quiet,
        other => Ending::Logged(other.to_string()),
    }
}

/// The peer went away without a goodbye: usual, not worth a line.
fn is_disconnect(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe
    )
}

struct Writer {
    shared: Arc<Shared>,
    /// Answers in the outbox, and since when they were ready.
    ready: Vec<(Began, Instant)>,
    socket: OwnedWriteHalf,
    queue: mpsc::Receiver<Queued>,
    account: Arc<Account>,
    outbox: Outbox,
    /// A peer that takes no byte for so long is given up.
    stall_max: Duration,
}

impl Writer {
    async fn run(mut self) -> Ending {
        let mut head = None;
        loop {
            let next = match head.take() {
                Some(next) => next,
                None => match self.queue.recv().await {
                    Some(next) => next,
                    None => return Ending::Quiet,
                },
            };
            let mut held = Held { requests: 1, bytes: next.bytes };
            let mut ended = false;
            match next.answer {
                Pending::Ready(frame) => self.outbox.push(frame),
                Pending::Later(later) => self.outbox.push(later.await.unwrap_or_default()),
                Pending::End => ended = true,
            }
            self.ready.extend(next.began.map(|began| (began, Instant::now())));
            if !ended {
                (head, ended) = self.gather(&mut held);
            }
            if let Err(ending) = self.flush().await {
                return ending;
            }
            self.tell_answered();
            self.account.release(held.requests, held.bytes);
            if ended {
                let _ = self.socket.shutdown().await;
                return Ending::Quiet;
            }
        }
    }

    fn tell_answered(&mut self) {
        let sent = Instant::now();
        for (began, ready) in self.ready.drain(..) {
            self.shared.handler.answered(&began.answered(ready, sent));
        }
    }

    /// Adds the following answers as long as they are ready. Returns the first that is not, and whether the end of the
    /// connection was met.
    fn gather(&mut self, held: &mut Held) -> (Option<Queued>, bool) {
        while self.outbox.remaining() < COALESCED_BYTES_MAX {
            let Ok(mut next) = self.queue.try_recv() else { return (None, false) };
            match &mut next.answer {
                Pending::Ready(frame) => self.outbox.push(std::mem::take(frame)),
                Pending::Later(later) => match later.now_or_never() {
                    Some(frame) => self.outbox.push(frame.unwrap_or_default()),
                    None => return (Some(next), false),
                },
                Pending::End => {
                    held.requests += 1;
                    return (None, true);
                }
            }
            self.ready.extend(next.began.map(|began| (began, Instant::now())));
            held.requests += 1;
            held.bytes += next.bytes;
        }
        (None, false)
    }

    async fn flush(&mut self) -> Result<(), Ending> {
        while self.outbox.has_remaining() {
            self.outbox.load().await?;
            match timeout(self.stall_max, send_some(&mut self.socket, &mut self.outbox)).await {
                Ok(Ok(0)) => return Err(Ending::Quiet),
                Ok(Ok(_)) => {}
                Ok(Err(error)) if is_disconnect(&error) => return Err(Ending::Quiet),
                Ok(Err(error)) => return Err(Ending::Logged(format!("writing failed: {error}"))),
                Err(_) => {
                    let stall = self.stall_max;
                    return Err(Ending::Logged(format!(
                        "the peer took no answer for {stall:?} (connections.max.idle.ms)"
                    )));
                }
            }
        }
        Ok(())
    }
}
