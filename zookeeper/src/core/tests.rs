//! Stories against the core alone: virtual time, no sockets.

use proptest::prelude::*;

use super::*;
use crate::protocol::code::op;
use crate::protocol::jute::{Reader, Writer};
use crate::protocol::request::ConnectRequest;

const LIMITS: Limits = Limits { min_session_timeout_ms: 100, max_session_timeout_ms: 10_000 };

fn at(milliseconds: u64) -> Now {
    Now { monotonic_ms: milliseconds, unix_ms: 1_700_000_000_000 + milliseconds as i64 }
}

/// A core with its effects so far.
struct World {
    core: Core,
    effects: Effects,
    now: Now,
}

impl World {
    fn new() -> Self {
        Self { core: Core::new(LIMITS, at(0)), effects: Effects::default(), now: at(0) }
    }

    fn step(&mut self, input: Input) {
        self.core.step(input, self.now, &mut self.effects);
    }

    fn connect(&mut self, connection: u64, session_id: i64, password: &[u8], timeout_ms: i32) -> (i32, i64) {
        let request = ConnectRequest {
            last_zxid_seen: 0,
            timeout_ms,
            session_id,
            password: Bytes::copy_from_slice(password),
            knows_read_only: true,
        };
        let hello = Hello { request, address: "127.0.0.1".to_owned(), entropy: [connection as u8; 16] };
        self.step(Input::Connect(ConnectionId(connection), hello));
        let mut reply = Reader::new(self.last_frame(connection));
        reply.i32().unwrap();
        (reply.i32().unwrap(), reply.i64().unwrap())
    }

    fn frames(&self, connection: u64) -> Vec<Bytes> {
        let own = |output: &Output| match output {
            Output::Send(to, frame) if *to == ConnectionId(connection) => Some(frame.slice(4..)),
            _ => None,
        };
        self.effects.outputs.iter().filter_map(own).collect()
    }

    fn last_frame(&self, connection: u64) -> Bytes {
        self.frames(connection).pop().expect("something was sent")
    }

    fn closed(&self, connection: u64) -> bool {
        self.effects.outputs.contains(&Output::Close(ConnectionId(connection)))
    }

    /// Sends a request; the error number of its reply.
    fn request(&mut self, connection: u64, operation: i32, body: impl FnOnce(&mut Writer)) -> i32 {
        let mut writer = Writer::new();
        writer.i32(1);
        writer.i32(operation);
        body(&mut writer);
        self.step(Input::Frame(ConnectionId(connection), writer.into_payload()));
        let mut reply = Reader::new(self.last_frame(connection));
        (reply.i32().unwrap(), reply.i64().unwrap(), reply.i32().unwrap()).2
    }

    fn create(&mut self, connection: u64, path: &str, mode: i32) -> i32 {
        self.request(connection, op::CREATE, |writer| write_create(writer, path, mode))
    }

    fn tick_at(&mut self, milliseconds: u64) {
        self.now = at(milliseconds);
        self.core.tick(self.now, &mut self.effects);
    }
}

fn write_create(writer: &mut Writer, path: &str, mode: i32) {
    writer.string(path);
    writer.buffer(Some(b"data"));
    crate::protocol::types::write_acls(writer, &access::open_to_all());
    writer.i32(mode);
}

/// Everything that must survive a restart, in a comparable form.
fn image(core: &Core) -> Vec<Bytes> {
    let mut records = core.to_snapshot();
    records.sort();
    records
}

#[test]
fn timeouts_are_negotiated() {
    let mut world = World::new();
    assert_eq!(world.connect(1, 0, &[], 5).0, 100);
    assert_eq!(world.connect(2, 0, &[], 5_000).0, 5_000);
    assert_eq!(world.connect(3, 0, &[], 50_000).0, 10_000);
}

#[test]
fn a_session_outlives_its_connection_until_its_deadline() {
    let mut world = World::new();
    let (_, session) = world.connect(1, 0, &[], 1_000);
    assert_eq!(world.create(1, "/e", 1), 0);
    world.step(Input::Disconnected(ConnectionId(1)));
    world.tick_at(999);
    assert_eq!(world.connect(2, session, &[9; 16], 1_000), (0, 0), "wrong password");
    assert_eq!(world.connect(3, session, &[1; 16], 1_000), (1_000, session));
    world.tick_at(1_998);
    assert!(world.core.tree.node("/e").is_some());
    world.tick_at(1_999);
    assert!(world.core.tree.node("/e").is_none() && world.closed(3));
    assert_eq!(world.connect(4, session, &[1; 16], 1_000), (0, 0), "expired");
}

#[test]
fn the_newest_connection_of_a_session_replaces_the_older() {
    let mut world = World::new();
    let (_, session) = world.connect(1, 0, &[], 1_000);
    world.connect(2, session, &[1; 16], 1_000);
    assert!(world.closed(1));
    // The loser's end arrives late and must not detach the winner.
    world.step(Input::Disconnected(ConnectionId(1)));
    assert_eq!(world.core.sessions.get(session).unwrap().connection, Some(ConnectionId(2)));
}

#[test]
fn an_event_comes_before_the_reply_that_could_show_the_change() {
    let mut world = World::new();
    world.connect(1, 0, &[], 1_000);
    world.connect(2, 0, &[], 1_000);
    let exists = |writer: &mut Writer| {
        writer.string("/a");
        writer.bool(true);
    };
    assert_eq!(world.request(1, op::EXISTS, exists), ErrorCode::NoNode.number());
    world.create(2, "/a", 0);
    assert_eq!(world.request(1, op::EXISTS, exists), 0);
    let xids: Vec<i32> =
        world.frames(1)[1..].iter().map(|frame| Reader::new(frame.clone()).i32().unwrap()).collect();
    assert_eq!(xids, [1, -1, 1]);
}

#[test]
fn a_failed_multi_leaves_nothing_but_its_number() {
    let mut world = World::new();
    world.connect(1, 0, &[], 1_000);
    world.create(1, "/a", 0);
    let before = image(&world.core);
    let zxid = world.core.zxid();
    world.request(1, op::MULTI, |writer| {
        for (operation, path) in
            [(op::CREATE, "/b"), (op::CREATE, "/b/c"), (op::CREATE, "/a"), (op::CREATE, "/d")]
        {
            writer.i32(operation);
            writer.bool(false);
            writer.i32(-1);
            write_create(writer, path, 0);
        }
        writer.i32(-1);
        writer.bool(true);
        writer.i32(-1);
    });
    assert_eq!(world.core.zxid(), zxid + 1);
    world.core.zxid = zxid;
    assert_eq!(image(&world.core), before);
    assert!(world.effects.transactions.last().unwrap().changes.is_empty());
}

#[test]
fn unknown_operations_are_answered_and_closed_and_broken_headers_only_closed() {
    let mut world = World::new();
    world.connect(1, 0, &[], 1_000);
    assert_eq!(world.request(1, 77, |_| {}), ErrorCode::Unimplemented.number());
    assert!(world.closed(1));
    world.connect(2, 0, &[], 1_000);
    world.step(Input::Frame(ConnectionId(2), Bytes::from_static(&[1, 2, 3])));
    assert!(world.closed(2) && world.frames(2).len() == 1);
}

#[test]
fn containers_and_nodes_with_a_time_to_live_go_when_their_time_is_over() {
    let mut world = World::new();
    world.connect(1, 0, &[], 10_000);
    assert_eq!(world.create(1, "/container", 4), 0);
    let create_ttl = |writer: &mut Writer| {
        write_create(writer, "/ttl", 5);
        writer.i64(2_500);
    };
    assert_eq!(world.request(1, op::CREATE_TTL, create_ttl), 0);
    world.tick_at(1_000);
    assert!(world.core.tree.node("/container").is_some(), "it never had a child");
    assert_eq!(world.create(1, "/container/child", 0), 0);
    world.tick_at(2_000);
    let delete = |writer: &mut Writer| {
        writer.string("/container/child");
        writer.i32(-1);
    };
    assert_eq!(world.request(1, op::DELETE, delete), 0);
    world.tick_at(3_000);
    assert!(world.core.tree.node("/container").is_none());
    assert!(world.core.tree.node("/ttl").is_none());
    assert_eq!(world.create(1, "/ttl", 5), ErrorCode::BadArguments.number(), "a TTL mode without a TTL");
}

#[test]
fn watches_on_endless_absent_paths_close_their_connection() {
    let mut world = World::new();
    world.connect(1, 0, &[], 1_000);
    world.connect(2, 0, &[], 1_000);
    let path_bytes = 1_000_000;
    for number in 0..=WATCH_BYTES_PER_CONNECTION_MAX / path_bytes {
        assert!(!world.closed(1), "after {number} watches");
        world.request(1, op::EXISTS, |writer| {
            writer.string(&format!("/{number}{}", "x".repeat(path_bytes)));
            writer.bool(true);
        });
    }
    assert!(world.closed(1) && !world.closed(2));
    assert_eq!(world.core.data_watches.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Live state = snapshot + replay, wherever the snapshot was taken.
    #[test]
    fn a_replayed_log_gives_the_live_state(steps in proptest::collection::vec((0u8..6, 0usize..5, 0i32..7), 1..60), cut in 0usize..60) {
        let paths = ["/a", "/b", "/a/c", "/a/c/d", "/b/s-"];
        let mut world = World::new();
        world.connect(1, 0, &[], 10_000);
        let mut base = None;
        for (index, (kind, path, mode)) in steps.into_iter().enumerate() {
            if index == cut {
                base = Some((world.core.to_snapshot(), world.effects.transactions.len()));
            }
            world.now = at(index as u64 * 7);
            match kind {
                0 | 1 => { world.create(1, paths[path], mode % 5); }
                2 => { world.request(1, op::DELETE, |writer| { writer.string(paths[path]); writer.i32(-1); }); }
                3 => { world.request(1, op::SET_DATA, |writer| { writer.string(paths[path]); writer.buffer(None); writer.i32(-1); }); }
                4 => { world.connect(2 + index as u64, 0, &[], 100); world.create(2 + index as u64, paths[path], 3); }
                _ => world.core.tick(world.now, &mut world.effects),
            }
        }
        let (mut replayed, skip) = match base {
            None => (Core::new(LIMITS, at(0)), 0),
            Some((records, skip)) => (Core::from_snapshot(records, LIMITS, at(0)).unwrap(), skip),
        };
        for transaction in &world.effects.transactions[skip..] {
            let decoded = Transaction::decode(transaction.encode()).unwrap();
            replayed.replay(&decoded, at(0));
        }
        prop_assert_eq!(image(&replayed), image(&world.core));
    }

    #[test]
    fn no_frame_makes_the_core_panic(frames in proptest::collection::vec((-12i32..110, proptest::collection::vec(any::<u8>(), 0..80)), 1..20)) {
        let mut world = World::new();
        for (index, (operation, body)) in frames.into_iter().enumerate() {
            world.connect(index as u64, 0, &[], 100);
            let mut frame = vec![0, 0, 0, 9];
            frame.extend_from_slice(&operation.to_be_bytes());
            frame.extend_from_slice(&body);
            world.step(Input::Frame(ConnectionId(index as u64), frame.into()));
        }
    }
}
