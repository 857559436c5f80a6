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

struct TestHandler {
    permits: Arc<Semaphore>,
    started: mpsc::UnboundedSender<i32>,
}

impl RequestHandler for TestHandler {
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
                PIECES => Answer::Now(Frame(answer.chunks(1).map(Bytes::copy_from_slice).collect())),
                _ => Answer::Close("told to".to_owned()),
            }
        })
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
}

impl Fixture {
    async fn new(limits: ServerLimits) -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let (sender, started) = mpsc::unbounded_channel();
        let handler = Arc::new(TestHandler { permits: Arc::clone(&permits), started: sender });
        let listener = ListenerAddress { name: "PLAINTEXT".into(), host: "127.0.0.1".into(), port: 0 };
        let server = Server::bind(&[listener], limits, handler).await.unwrap();
        Self { server, permits, started }
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
    let handler = Arc::new(TestHandler { permits: Arc::new(Semaphore::new(0)), started });
    let error = Server::bind(&[listener], ServerLimits::default(), handler).await.err().unwrap();
    assert!(format!("{error:#}").contains(&format!("PLAINTEXT://127.0.0.1:{port}")), "{error:#}");
}
