use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// What the test handler does is chosen by the API key.
const ECHO: i16 = 3;
const WAIT_FOR_PERMIT: i16 = 1;
const SILENT: i16 = 0;
const PANIC: i16 = 2;
const PANIC_LATER: i16 = 9;
const CLOSE: i16 = 10;
const PIECES: i16 = 11;
const STREAM: i16 = 12;
const STREAM_THAT_FAILS: i16 = 13;
const STREAM_THAT_ENDS: i16 = 14;
const STREAM_THAT_PANICS: i16 = 15;

struct TestHandler {
    permits: Arc<Semaphore>,
    started: mpsc::UnboundedSender<i32>,
    answered: mpsc::UnboundedSender<Answered>,
}

impl RequestHandler for TestHandler {
    fn answered(&self, answered: &Answered) {
        let _ = self.answered.send(*answered);
    }

    fn start<'a>(&'a self, _: &'a Connection, request: RequestFrame) -> BoxFuture<'a, Answer> {
        let _ = self.started.send(request.correlation_id);
        let answer = answer_to(request.correlation_id);
        Box::pin(async move {
            match request.api_key {
                ECHO => Answer::Now(answer.into()),
                WAIT_FOR_PERMIT => {
                    let permits = Arc::clone(&self.permits);
                    Answer::Later(Box::pin(async move {
                        permits.acquire().await.expect("never closed").forget();
                        Some(answer.into())
                    }))
                }
                SILENT => Answer::Nothing,
                PANIC => panic!("the handler was told to panic"),
                PANIC_LATER => Answer::Later(Box::pin(async { panic!("the answer was told to panic") })),
                PIECES => Answer::Now(Frame(pieces_of(&answer, 1))),
                STREAM..=STREAM_THAT_PANICS => Answer::Now(streamed(request.api_key, answer)),
                _ => Answer::Close("told to".to_owned()),
            }
        })
    }
}

fn pieces_of(answer: &Bytes, size: usize) -> Vec<Piece> {
    answer.chunks(size).map(|piece| Piece::Bytes(Bytes::copy_from_slice(piece))).collect()
}

/// The answer's first byte, a stream of the rest but the last one, and that.
fn streamed(api_key: i16, mut answer: Bytes) -> Frame {
    let first = answer.split_to(1);
    let last = answer.split_off(answer.len() - 1);
    let steps = TestStream { rest: answer, at_once: false, kind: api_key };
    Frame(vec![Piece::Bytes(first), Piece::Stream(Box::new(steps)), Piece::Bytes(last)])
}

/// Gives a byte at a time, every other one only to who waits.
struct TestStream {
    rest: Bytes,
    at_once: bool,
    kind: i16,
}

impl Stream for TestStream {
    fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn next_at_once(&mut self) -> Result<Option<Bytes>, String> {
        self.at_once = !self.at_once;
        if !self.at_once { Ok(None) } else { self.next_blocking().map(Some) }
    }

    fn next_blocking(&mut self) -> Result<Bytes, String> {
        match (self.kind, self.rest.len()) {
            (STREAM_THAT_FAILS, 3) => Err("the disk is gone".to_owned()),
            (STREAM_THAT_ENDS, 3) => Ok(Bytes::new()),
            (STREAM_THAT_PANICS, 3) => panic!("the stream was told to panic"),
            _ => Ok(self.rest.split_to(1)),
        }
    }
}

fn answer_to(correlation_id: i32) -> Bytes {
    let mut answer = BytesMut::new();
    answer.put_i32(4);
    answer.put_i32(correlation_id);
    answer.freeze()
}

fn request(api_key: i16, correlation_id: i32) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(10);
    frame.put_i16(api_key);
    frame.put_i16(1);
    frame.put_i32(correlation_id);
    frame.put_i16(-1);
    frame.to_vec()
}

struct Fixture {
    server: Server,
    permits: Arc<Semaphore>,
    started: mpsc::UnboundedReceiver<i32>,
    answered: mpsc::UnboundedReceiver<Answered>,
}

impl Fixture {
    async fn new(limits: ServerLimits) -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let (for_started, started) = mpsc::unbounded_channel();
        let (for_answered, answered) = mpsc::unbounded_channel();
        let handler = Arc::new(TestHandler {
            permits: Arc::clone(&permits),
            started: for_started,
            answered: for_answered,
        });
        let listener = ListenerAddress { name: "PLAINTEXT".into(), host: "127.0.0.1".into(), port: 0 };
        let server = Server::bind(&[listener], limits, handler).await.unwrap();
        Self { server, permits, started, answered }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.local_addresses()[0].1).await.unwrap()
    }

    async fn next_started(&mut self) -> i32 {
        timely(self.started.recv()).await.unwrap()
    }
}

async fn timely<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

async fn read_answer(stream: &mut TcpStream) -> i32 {
    let mut answer = [0; 8];
    timely(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer[..4], [0, 0, 0, 4]);
    i32::from_be_bytes(answer[4..].try_into().unwrap())
}

async fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is a close too: the server may have left bytes unread.
    let _ = timely(stream.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"", "nothing follows before the close");
}

#[tokio::test]
async fn answers_leave_in_the_order_of_their_requests() {
    let mut fixture = Fixture::new(ServerLimits::default()).await;
    let mut stream = fixture.connect().await;
    let requests =
        [request(WAIT_FOR_PERMIT, 1), request(ECHO, 2), request(SILENT, 3), request(WAIT_FOR_PERMIT, 4)];
    stream.write_all(&requests.concat()).await.unwrap();
    stream.write_all(&request(PIECES, 5)).await.unwrap();
    for id in 1..=5 {
        assert_eq!(fixture.next_started().await, id, "a waiting answer does not hold up the next request");
    }
    fixture.permits.add_permits(2);
    for id in [1, 2, 4, 5] {
        assert_eq!(read_answer(&mut stream).await, id);
    }
}

#[tokio::test]
async fn an_answer_that_was_there_at_once_tells_its_wait_for_earlier_ones() {
    const WAIT: Duration = Duration::from_millis(50);
    let mut fixture = Fixture::new(ServerLimits::default()).await;
    let mut stream = fixture.connect().await;
    let requests = [request(WAIT_FOR_PERMIT, 1), request(ECHO, 2), request(SILENT, 3)];
    stream.write_all(&requests.concat()).await.unwrap();
    for id in 1..=3 {
        assert_eq!(fixture.next_started().await, id);
    }
    tokio::time::sleep(WAIT).await;
    fixture.permits.add_permits(1);
    for id in 1..=2 {
        assert_eq!(read_answer(&mut stream).await, id);
    }
    for _ in 0..3 {
        let answered = timely(fixture.answered.recv()).await.unwrap();
        let told = (answered.waited, answered.queued);
        match answered.api_key {
            SILENT => assert_eq!(told, (Duration::ZERO, None)),
            WAIT_FOR_PERMIT => assert!(WAIT <= told.0 && told.1.is_none(), "{told:?}"),
            _ => assert!(told.0.is_zero() && told.1.is_some_and(|queued| WAIT <= queued), "{told:?}"),
        }
    }
}

#[tokio::test]
async fn a_connection_is_not_read_beyond_its_requests_in_flight() {
    let limits = ServerLimits { requests_in_flight_max: 2, ..ServerLimits::default() };
    let mut fixture = Fixture::new(limits).await;
    let mut stream = fixture.connect().await;
    let requests: Vec<u8> = (1..=5).flat_map(|id| request(WAIT_FOR_PERMIT, id)).collect();
    stream.write_all(&requests).await.unwrap();
    let mut other = fixture.connect().await;
    for id in 1..=5 {
        assert_eq!(fixture.next_started().await, id);
        if 2 <= id {
            // Another connection is served meanwhile, and the third request is not.
            other.write_all(&request(ECHO, 100)).await.unwrap();
            assert_eq!(read_answer(&mut other).await, 100);
            assert_eq!(fixture.next_started().await, 100);
            assert!(fixture.started.try_recv().is_err());
            fixture.permits.add_permits(1);
            assert_eq!(read_answer(&mut stream).await, id - 1);
        }
    }
}

#[tokio::test]
async fn a_connection_is_not_read_beyond_its_bytes_in_flight() {
    let limits = ServerLimits { bytes_in_flight_max: 15, ..ServerLimits::default() };
    let mut fixture = Fixture::new(limits).await;
    let mut stream = fixture.connect().await;
    let requests: Vec<u8> = (1..=3).flat_map(|id| request(WAIT_FOR_PERMIT, id)).collect();
    stream.write_all(&requests).await.unwrap();
    assert_eq!((fixture.next_started().await, fixture.next_started().await), (1, 2));
    let mut other = fixture.connect().await;
    other.write_all(&request(ECHO, 100)).await.unwrap();
    assert_eq!(read_answer(&mut other).await, 100);
    assert_eq!(fixture.next_started().await, 100);
    assert!(fixture.started.try_recv().is_err());
    fixture.permits.add_permits(3);
    assert_eq!(fixture.next_started().await, 3);
}

/// CLI-01.
#[tokio::test]
async fn bad_frames_and_panics_end_their_connection_only() {
    let limits = ServerLimits { request_bytes_max: 1000, ..ServerLimits::default() };
    let fixture = Fixture::new(limits).await;
    let mut witness = fixture.connect().await;
    let oversized = 1001_i32.to_be_bytes().to_vec();
    let rows: [(&str, Vec<u8>); 8] = [
        ("garbage", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("negative size", vec![0xff; 64]),
        ("oversized", oversized),
        ("no header", [0, 0, 0, 2, 0, 3].to_vec()),
        ("malformed header", [&[0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1], &[0x7f, 0xff][..]].concat()),
        ("panic", request(PANIC, 1)),
        ("panic in a later answer", request(PANIC_LATER, 1)),
        ("close", request(CLOSE, 1)),
    ];
    for (name, bytes) in rows {
        let mut stream = fixture.connect().await;
        stream.write_all(&bytes).await.unwrap();
        println!("{name}");
        assert_closed(&mut stream).await;
        witness.write_all(&request(ECHO, 7)).await.unwrap();
        assert_eq!(read_answer(&mut witness).await, 7, "after {name}");
    }
    let mut truncated = fixture.connect().await;
    truncated.write_all(&request(ECHO, 1)[..9]).await.unwrap();
    truncated.shutdown().await.unwrap();
    assert_closed(&mut truncated).await;
}

#[tokio::test]
async fn answers_before_a_close_still_go_out() {
    let fixture = Fixture::new(ServerLimits::default()).await;
    let mut stream = fixture.connect().await;
    let requests = [request(WAIT_FOR_PERMIT, 1), request(ECHO, 2), request(CLOSE, 3), request(ECHO, 4)];
    stream.write_all(&requests.concat()).await.unwrap();
    fixture.permits.add_permits(1);
    assert_eq!(read_answer(&mut stream).await, 1);
    assert_eq!(read_answer(&mut stream).await, 2);
    assert_closed(&mut stream).await;
}

#[tokio::test]
async fn idle_connections_are_closed_and_waiting_ones_are_not() {
    let limits = ServerLimits { idle_max: Duration::from_millis(50), ..ServerLimits::default() };
    let fixture = Fixture::new(limits).await;
    let mut waiting = fixture.connect().await;
    waiting.write_all(&request(WAIT_FOR_PERMIT, 1)).await.unwrap();
    let mut idle = fixture.connect().await;
    assert_closed(&mut idle).await;
    fixture.permits.add_permits(1);
    assert_eq!(read_answer(&mut waiting).await, 1);
    assert_closed(&mut waiting).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused_until_one_leaves() {
    let limits = ServerLimits { connections_per_address_max: 1, ..ServerLimits::default() };
    let fixture = Fixture::new(limits).await;
    let mut first = fixture.connect().await;
    first.write_all(&request(ECHO, 1)).await.unwrap();
    assert_eq!(read_answer(&mut first).await, 1);
    let mut second = fixture.connect().await;
    assert_closed(&mut second).await;
    drop(first);
    timely(async {
        while fixture.server.connections() != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut third = fixture.connect().await;
    third.write_all(&request(ECHO, 3)).await.unwrap();
    assert_eq!(read_answer(&mut third).await, 3);
}

#[tokio::test]
async fn shutdown_lets_answers_out_and_ends_what_waits() {
    let mut fixture = Fixture::new(ServerLimits::default()).await;
    let mut answered = fixture.connect().await;
    let mut stuck = fixture.connect().await;
    answered.write_all(&request(WAIT_FOR_PERMIT, 1)).await.unwrap();
    assert_eq!(fixture.next_started().await, 1);
    fixture.permits.add_permits(1);
    assert_eq!(read_answer(&mut answered).await, 1);
    stuck.write_all(&request(WAIT_FOR_PERMIT, 2)).await.unwrap();
    assert_eq!(fixture.next_started().await, 2);
    timely(fixture.server.shutdown()).await;
    assert_closed(&mut answered).await;
    assert_closed(&mut stuck).await;
    assert_eq!(fixture.server.connections(), 0);
    let address = fixture.server.local_addresses()[0].1;
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_names_the_listener() {
    let fixture = Fixture::new(ServerLimits::default()).await;
    let port = fixture.server.local_addresses()[0].1.port();
    let listener = ListenerAddress { name: "PLAINTEXT".into(), host: "127.0.0.1".into(), port };
    let (started, _keep) = mpsc::unbounded_channel();
    let (answered, _) = mpsc::unbounded_channel();
    let handler = Arc::new(TestHandler { permits: Arc::new(Semaphore::new(0)), started, answered });
    let error = Server::bind(&[listener], ServerLimits::default(), handler).await.err().unwrap();
    assert!(format!("{error:#}").contains(&format!("PLAINTEXT://127.0.0.1:{port}")), "{error:#}");
}

#[tokio::test]
async fn streams_are_fetched_while_they_are_written() {
    let fixture = Fixture::new(ServerLimits::default()).await;
    let mut stream = fixture.connect().await;
    let requests = [(ECHO, 1), (STREAM, 2), (STREAM, 3), (PIECES, 4), (STREAM, 5)];
    stream.write_all(&requests.map(|(api_key, id)| request(api_key, id)).concat()).await.unwrap();
    for (_, id) in requests {
        assert_eq!(read_answer(&mut stream).await, id);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_its_connection() {
    let fixture = Fixture::new(ServerLimits::default()).await;
    for broken in [STREAM_THAT_FAILS, STREAM_THAT_ENDS, STREAM_THAT_PANICS] {
        let mut stream = fixture.connect().await;
        stream.write_all(&[request(broken, 7), request(ECHO, 8)].concat()).await.unwrap();
        let mut answer = Vec::new();
        let _ = timely(stream.read_to_end(&mut answer)).await;
        let whole = [&[0, 0, 0, 4], &7_i32.to_be_bytes()[..]].concat();
        assert!(answer.len() < whole.len() && whole.starts_with(&answer), "{answer:?}");
    }
    let mut other = fixture.connect().await;
    other.write_all(&request(STREAM, 9)).await.unwrap();
    assert_eq!(read_answer(&mut other).await, 9);
}
