//! What survives when the server stops and starts again.

use crate::support::raw::{Body, RawClient};
use crate::support::{Restartable, eventually};

pub(crate) fn nodes_survive_a_restart(server: &mut Restartable) {
    let (mut client, _) = RawClient::connect(&server.address(), 10_000);
    client.create("/kept", 0);
    client.done(5, Body::new().string("/kept").buffer(b"data").int(0));
    client.create("/kept/n-", 2);
    client.done(2, Body::new().string("/kept/n-0000000000").int(-1));
    let kept = client.done(4, Body::new().string("/kept").bool(false));
    // The last number a client sees is that of a write that failed.
    let seen = client.call(2, Body::new().string("/kept/absent").int(-1)).zxid;
    for _ in 0..2 {
        server.restart();
        let mut client = RawClient::open(&server.address());
        client.introduce(seen, 10_000, 0, &[0; 16]).expect("a client that has seen everything is welcome");
        assert_eq!(client.done(4, Body::new().string("/kept").bool(false)).body, kept.body);
    }
    let mut client = RawClient::open(&server.address());
    client.introduce(0, 10_000, 0, &[0; 16]).unwrap();
    let next = client.create("/kept/n-", 2);
    assert_eq!(next.body.clone().string(), "/kept/n-0000000001");
    assert!(next.zxid > seen);
}

pub(crate) fn a_session_survives_a_restart_and_then_expires(server: &mut Restartable) {
    let (mut client, session) = RawClient::connect(&server.address(), 10_000);
    client.create("/held", 1);
    let (mut brief, _) = RawClient::connect(&server.address(), 1);
    brief.create("/brief", 1);
    server.restart();
    let (mut client, answer) = RawClient::reattach(&server.address(), &session, 0);
    assert_eq!(answer, Some(session));
    assert!(client.exists("/held"));
    eventually("the session that did not come back expires", || !client.exists("/brief"));
    assert!(client.exists("/held"));
}
