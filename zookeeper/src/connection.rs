//! One client connection: frames in, frames out, four-letter words. It knows lengths, not contents.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::core::four_letter::FourLetterWord;
use crate::core::{ConnectionId, Hello, Input};
use crate::protocol::request::ConnectRequest;
use crate::server::Command;

/// Largest frame, as ZooKeeper's default `jute.maxbuffer`. A longer one closes the connection.
const FRAME_BYTES_MAX: usize = 0xf_ffff;
/// What may wait for a client that does not read; more closes the connection.
const UNSENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Many small requests arrive in one read.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// How long a connection may take to introduce itself.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last bytes of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type Incoming = BufReader<OwnedReadHalf>;

/// Where the owner puts what a connection shall send.
#[derive(Debug)]
pub(crate) struct Outbox {
    frames: mpsc::UnboundedSender<Bytes>,
    unsent_bytes: Arc<AtomicUsize>,
    /// Tells the connection that nothing more will come.
    _closing: DropGuard,
}

impl Outbox {
    /// False when too much waits already; the connection is to be dropped then.
    pub(crate) fn send(&self, frame: Bytes) -> bool {
        let unsent = self.unsent_bytes.fetch_add(frame.len(), Ordering::Relaxed) + frame.len();
        // A connection that has just ended is no reason to complain.
        let _ = self.frames.send(frame);
        unsent <= UNSENT_BYTES_MAX
    }
}

/// Serves the connection until either side ends it.
pub(crate) async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    id: ConnectionId,
    commands: mpsc::Sender<Command>,
) {
    // Small replies must not wait for each other; a socket that cannot do it still works.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    let hello = tokio::time::timeout(HELLO_TIMEOUT, read_hello(&mut reader)).await;
    let request = match hello {
        Ok(Some(Opening::Hello(request))) => request,
        Ok(Some(Opening::Word(word))) => return answer_word(word, writer, &commands).await,
        Ok(None) | Err(_) => return,
    };
    let (frames, outbound) = mpsc::unbounded_channel();
    let unsent_bytes = Arc::new(AtomicUsize::new(0));
    let closing = CancellationToken::new();
    let outbox =
        Outbox { frames, unsent_bytes: Arc::clone(&unsent_bytes), _closing: closing.clone().drop_guard() };
    let entropy = *uuid::Uuid::new_v4().as_bytes();
    let hello = Hello { request, address: address.ip().to_string(), entropy };
    let introduced = async {
        commands.send(Command::Opened(id, outbox)).await.ok()?;
        commands.send(Command::Input(Input::Connect(id, hello), Instant::now())).await.ok()
    };
    if introduced.await.is_none() {
        return;
    }
    tokio::select! {
        () = receive(reader, id, &commands) => {}
        () = transmit(writer, outbound, &unsent_bytes) => {}
        // Whoever does not read must not keep a closed connection open.
        () = async { closing.cancelled().await; tokio::time::sleep(CLOSE_TIMEOUT).await } => {}
    }
    // When this fails the owner is gone, and with it everything there is to tell.
    let _ = commands.send(Command::Input(Input::Disconnected(id), Instant::now())).await;
}

enum Opening {
    Hello(ConnectRequest),
    Word(FourLetterWord),
}

async fn read_hello(reader: &mut Incoming) -> Option<Opening> {
    let mut prefix = [0; 4];
    reader.read_exact(&mut prefix).await.ok()?;
    if let Some(word) = FourLetterWord::parse(prefix) {
        return Some(Opening::Word(word));
    }
    let frame = read_body(reader, prefix).await?;
    ConnectRequest::decode(frame).ok().map(Opening::Hello)
}

/// The frame of the announced length; `None` for an illegal length or a connection that ends.
async fn read_body(reader: &mut Incoming, prefix: [u8; 4]) -> Option<Bytes> {
    let length =
        usize::try_from(i32::from_be_bytes(prefix)).ok().filter(|length| *length <= FRAME_BYTES_MAX)?;
    let mut body = BytesMut::new();
    // Memory follows what has arrived, not what was announced.
    while body.len() < length {
        let missing = (length - body.len()) as u64;
        if reader.take(missing).read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(body.freeze())
}

async fn receive(mut reader: Incoming, id: ConnectionId, commands: &mpsc::Sender<Command>) {
    loop {
        let mut prefix = [0; 4];
        if reader.read_exact(&mut prefix).await.is_err() {
            return;
        }
        let Some(frame) = read_body(&mut reader, prefix).await else { return };
        if commands.send(Command::Input(Input::Frame(id, frame), Instant::now())).await.is_err() {
            return;
        }
    }
}

/// Writes until the owner drops the outbox and everything in it is written.
async fn transmit(
    mut writer: OwnedWriteHalf,
    mut outbound: mpsc::UnboundedReceiver<Bytes>,
    unsent_bytes: &AtomicUsize,
) {
    let mut buffer = BytesMut::new();
    while let Some(frame) = outbound.recv().await {
        buffer.extend_from_slice(&frame);
        while buffer.len() < 64 * 1024
            && let Ok(frame) = outbound.try_recv()
        {
            buffer.extend_from_slice(&frame);
        }
        if writer.write_all(&buffer).await.is_err() {
            return;
        }
        unsent_bytes.fetch_sub(buffer.len(), Ordering::Relaxed);
        buffer.clear();
    }
    // The client may be gone already.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, writer.shutdown()).await;
}

async fn answer_word(word: FourLetterWord, mut writer: OwnedWriteHalf, commands: &mpsc::Sender<Command>) {
    let (answer, answered) = oneshot::channel();
    if commands.send(Command::Ask(word, answer)).await.is_err() {
        return;
    }
    let Ok(text) = answered.await else { return };
    // The asker may be gone already.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, async {
        writer.write_all(text.as_bytes()).await?;
        writer.shutdown().await
    })
    .await;
}
