//! Sessions: negotiation, expiry, moving to another connection.

use crate::support::raw::{Body, RawClient, Session};
use crate::support::{MAX_SESSION_TIMEOUT, MIN_SESSION_TIMEOUT, eventually};

const CLOSE_SESSION: i32 = -11;

/// What a server says to the claimant of a session that is not (or no more) there.
fn refused() -> Option<Session> {
    Some(Session { timeout_ms: 0, id: 0, password: vec![0; 16] })
}

pub(crate) fn timeouts_are_negotiated(address: &str) {
    let (min, max) = (MIN_SESSION_TIMEOUT.as_millis() as i32, MAX_SESSION_TIMEOUT.as_millis() as i32);
    for (wanted, granted) in [(1, min), (0, min), (-5, min), (5_000, 5_000), (i32::MAX, max)] {
        let (_, session) = RawClient::connect(address, wanted);
        assert_eq!(session.timeout_ms, granted, "wanted {wanted}");
        assert!(session.id != 0 && session.password.len() == 16);
    }
    let (_, one) = RawClient::connect(address, 5_000);
    let (_, other) = RawClient::connect(address, 5_000);
    assert!(one.id != other.id && one.password != other.password);
}

pub(crate) fn an_expired_session_takes_its_nodes_with_it(address: &str) {
    let (mut observer, _) = RawClient::connect(address, 10_000);
    let (mut silent, session) = RawClient::connect(address, 1);
    silent.create("/expired", 1);
    observer.done(3, Body::new().string("/expired").bool(true));
    // The silent one's connection is closed with its session, without a word.
    silent.assert_closed();
    eventually("the ephemeral node goes", || !observer.exists("/expired"));
    assert_eq!(observer.events, [(2, "/expired".to_owned())]);
    let (mut late, answer) = RawClient::reattach(address, &session, 0);
    assert_eq!(answer, refused());
    late.assert_closed();
}

pub(crate) fn pings_keep_a_session(address: &str) {
    let (mut client, _) = RawClient::connect(address, 1);
    client.create("/pinged", 1);
    let start = std::time::Instant::now();
    while start.elapsed() < MIN_SESSION_TIMEOUT * 3 {
        client.ping();
        std::thread::park_timeout(MIN_SESSION_TIMEOUT / 8);
    }
    assert!(client.exists("/pinged"));
}

pub(crate) fn a_session_moves_to_the_next_connection(address: &str) {
    let (mut first, session) = RawClient::connect(address, 10_000);
    let zxid = first.create("/moved", 1).zxid;
    drop(first);
    let (mut second, answer) = RawClient::reattach(address, &session, zxid);
    assert_eq!(answer, Some(session.clone()));
    assert!(second.exists("/moved"));
    second.done(CLOSE_SESSION, Body::new());
    let (_, answer) = RawClient::reattach(address, &session, 0);
    assert_eq!(answer, refused());
}

pub(crate) fn a_wrong_password_is_refused(address: &str) {
    let (mut owner, session) = RawClient::connect(address, 10_000);
    let mut forged = session.clone();
    forged.password[3] ^= 1;
    let (mut thief, answer) = RawClient::reattach(address, &forged, 0);
    assert_eq!(answer, refused());
    thief.assert_closed();
    forged.password.clear();
    assert_eq!(RawClient::reattach(address, &forged, 0).1, refused());
    let unknown = Session { id: 0x7777, ..session.clone() };
    assert_eq!(RawClient::reattach(address, &unknown, 0).1, refused());
    // The attempt may have cost the owner its connection, but not its session.
    drop(owner);
    (owner, _) = {
        let (client, answer) = RawClient::reattach(address, &session, 0);
        assert_eq!(answer, Some(session));
        (client, ())
    };
    owner.ping();
}

pub(crate) fn the_newest_connection_wins(address: &str) {
    let (mut first, session) = RawClient::connect(address, 10_000);
    first.create("/newest", 1);
    let (mut second, answer) = RawClient::reattach(address, &session, 0);
    assert_eq!(answer, Some(session));
    first.assert_closed();
    second.ping();
    assert!(second.exists("/newest"));
}

pub(crate) fn closing_a_session(address: &str) {
    let (mut observer, _) = RawClient::connect(address, 10_000);
    let (mut client, _) = RawClient::connect(address, 10_000);
    for path in ["/closing-b", "/closing-a"] {
        client.create(path, 1);
        observer.done(3, Body::new().string(path).bool(true));
    }
    let reply = client.done(CLOSE_SESSION, Body::new());
    assert!(reply.body.is_empty());
    client.assert_closed();
    let mut events = observer.settled_events();
    events.sort();
    assert_eq!(events, [(2, "/closing-a".to_owned()), (2, "/closing-b".to_owned())]);
}

pub(crate) fn a_client_that_has_seen_more_is_turned_away(address: &str) {
    let mut client = RawClient::open(address);
    assert_eq!(client.introduce(i64::MAX, 10_000, 0, &[0; 16]), None);
}

pub(crate) fn clients_without_the_read_only_flag(address: &str) {
    let mut client = RawClient::open(address);
    client.send(&Body::new().int(0).long(0).int(10_000).long(0).buffer(&[0; 16]));
    let mut answer = client.frame().unwrap();
    assert_eq!((answer.int(), answer.int()), (0, 10_000));
    answer.long();
    assert_eq!(answer.buffer().unwrap().len(), 16);
    assert!(answer.is_empty());
    client.ping();
}
