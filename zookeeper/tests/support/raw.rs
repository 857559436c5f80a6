//! A client that sends exactly the bytes it is told to.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::PATIENCE;

/// Builds a frame's body.
#[derive(Default, Clone)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub fn buffer(self, value: &[u8]) -> Self {
        let mut body = self.int(value.len() as i32);
        body.0.extend(value);
        body
    }

    pub fn string(self, value: &str) -> Self {
        self.buffer(value.as_bytes())
    }

    pub fn strings(self, values: &[&str]) -> Self {
        values.iter().fold(self.int(values.len() as i32), |body, value| body.string(value))
    }

    /// The arguments of a create: open to all.
    pub fn create(self, path: &str, data: &[u8], mode: i32) -> Self {
        self.string(path).buffer(data).int(1).int(31).string("world").string("anyone").int(mode)
    }

    /// The header of one operation in a multi.
    pub fn operation(self, code: i32) -> Self {
        self.int(code).bool(false).int(-1)
    }

    pub fn end_of_multi(self) -> Self {
        self.int(-1).bool(true).int(-1)
    }
}

/// A frame's body being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Vec<u8>);

impl Frame {
    fn take(&mut self, length: usize) -> Vec<u8> {
        assert!(length <= self.0.len(), "the frame is {length} bytes too short: {:?}", self.0);
        self.0.drain(..length).collect()
    }

    pub fn skip(&mut self, length: usize) {
        self.take(length);
    }

    pub fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn bool(&mut self) -> bool {
        self.take(1)[0] != 0
    }

    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = self.int();
        (length >= 0).then(|| self.take(length as usize))
    }

    pub fn string(&mut self) -> String {
        String::from_utf8(self.buffer().unwrap()).unwrap()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A reply: header and body.
#[derive(Clone, Debug)]
pub struct Reply {
    pub xid: i32,
    pub zxid: i64,
    pub error: i32,
    pub body: Frame,
}

/// An event: (type, path).
pub type Event = (i32, String);

/// What the server said to the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub timeout_ms: i32,
    pub id: i64,
    pub password: Vec<u8>,
}

pub struct RawClient {
    stream: TcpStream,
    /// Events that came before the last reply, in order.
    pub events: Vec<Event>,
    next_xid: i32,
}

impl RawClient {
    pub fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, events: Vec::new(), next_xid: 1 }
    }

    /// A connection with a new session.
    pub fn connect(address: &str, timeout_ms: i32) -> (Self, Session) {
        let mut client = Self::open(address);
        let session = client.introduce(0, timeout_ms, 0, &[0; 16]).expect("the server opens a session");
        (client, session)
    }

    /// A connection that claims a session; `None` when the server closes instead of answering.
    pub fn reattach(address: &str, session: &Session, last_zxid: i64) -> (Self, Option<Session>) {
        let mut client = Self::open(address);
        let answer = client.introduce(last_zxid, 10_000, session.id, &session.password);
        (client, answer)
    }

    pub fn introduce(
        &mut self,
        last_zxid: i64,
        timeout_ms: i32,
        id: i64,
        password: &[u8],
    ) -> Option<Session> {
        let hello = Body::new().int(0).long(last_zxid).int(timeout_ms).long(id).buffer(password).bool(false);
        self.send(&hello);
        let mut answer = self.frame()?;
        assert_eq!(answer.int(), 0, "protocol version");
        let session =
            Session { timeout_ms: answer.int(), id: answer.long(), password: answer.buffer().unwrap() };
        assert!(!answer.bool(), "read-only");
        assert!(answer.is_empty());
        Some(session)
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // The server may have closed already, which reading will show.
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, body: &Body) {
        let mut bytes = (body.0.len() as i32).to_be_bytes().to_vec();
        bytes.extend(&body.0);
        self.send_bytes(&bytes);
    }

    /// The next frame, or `None` when the server has closed.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no frame within {PATIENCE:?}"),
            Err(_) => return None,
        }
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut body).ok()?;
        Some(Frame(body))
    }

    pub fn assert_closed(&mut self) {
        assert_eq!(self.frame(), None, "the server should have closed the connection");
    }

    /// Sends without waiting; the number of the request.
    pub fn ask(&mut self, operation: i32, body: Body) -> i32 {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.ask_as(xid, operation, body);
        xid
    }

    pub fn ask_as(&mut self, xid: i32, operation: i32, body: Body) {
        let mut request = Body::new().int(xid).int(operation);
        request.0.extend(body.0);
        self.send(&request);
    }

    /// The next reply; events before it are kept in `events`.
    pub fn reply(&mut self) -> Reply {
        loop {
            let mut frame = self.frame().expect("a reply and not the end of the connection");
            let (xid, zxid, error) = (frame.int(), frame.long(), frame.int());
            if xid != -1 {
                return Reply { xid, zxid, error, body: frame };
            }
            let event = frame.int();
            assert_eq!((zxid, error, frame.int()), (-1, 0, 3), "header and state of an event");
            self.events.push((event, frame.string()));
            assert!(frame.is_empty());
        }
    }

    /// Sends, waits, and checks that the answer is to this request.
    pub fn call(&mut self, operation: i32, body: Body) -> Reply {
        let xid = self.ask(operation, body);
        let reply = self.reply();
        assert_eq!(reply.xid, xid);
        reply
    }

    /// A call that must succeed.
    pub fn done(&mut self, operation: i32, body: Body) -> Reply {
        let reply = self.call(operation, body);
        assert_eq!(reply.error, 0, "operation {operation}");
        reply
    }

    pub fn create(&mut self, path: &str, mode: i32) -> Reply {
        self.done(1, Body::new().create(path, b"", mode))
    }

    /// Whether the node exists; sets no watch.
    pub fn exists(&mut self, path: &str) -> bool {
        match self.call(3, Body::new().string(path).bool(false)).error {
            0 => true,
            -101 => false,
            other => panic!("exists of {path}: error {other}"),
        }
    }

    pub fn ping(&mut self) -> Reply {
        self.ask_as(-2, 11, Body::new());
        let reply = self.reply();
        assert_eq!((reply.xid, reply.error), (-2, 0));
        reply
    }

    /// The events so far, after making sure that all sent before now have arrived.
    pub fn settled_events(&mut self) -> Vec<Event> {
        self.ping();
        std::mem::take(&mut self.events)
    }
}

/// The answer to a four-letter word.
pub fn four_letter_word(address: &str, word: &str) -> String {
    let mut client = RawClient::open(address);
    client.send_bytes(word.as_bytes());
    let mut text = String::new();
    client.stream.read_to_string(&mut text).expect("an answer and the end of the connection");
    text
}
