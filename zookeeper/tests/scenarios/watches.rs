//! Watches: who hears what, when, and how often.

use std::time::Duration;

use zookeeper_client::{Acls, AddWatchMode, Client, CreateMode, EventType};

use crate::support::block_on;
use crate::support::raw::{Body, Event, RawClient};

const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const MULTI: i32 = 14;
const CHECK_WATCHES: i32 = 17;
const REMOVE_WATCHES: i32 = 18;
const SET_WATCHES: i32 = 101;
const SET_WATCHES2: i32 = 105;
const ADD_WATCH: i32 = 106;

const CREATED: i32 = 1;
const DELETED: i32 = 2;
const CHANGED: i32 = 3;
const CHILDREN: i32 = 4;

fn watch(path: &str) -> Body {
    Body::new().string(path).bool(true)
}

fn events(expected: &[(i32, &str)]) -> Vec<Event> {
    expected.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
}

fn set_data(client: &mut RawClient, path: &str) -> i64 {
    client.done(SET_DATA, Body::new().string(path).buffer(b"x").int(-1)).zxid
}

fn delete(client: &mut RawClient, path: &str) {
    client.done(DELETE, Body::new().string(path).int(-1));
}

/// A watcher and a writer, and the root of the scenario.
fn pair(address: &str, root: &str) -> (RawClient, RawClient) {
    let (watcher, _) = RawClient::connect(address, 10_000);
    let (mut writer, _) = RawClient::connect(address, 10_000);
    writer.create(root, 0);
    (watcher, writer)
}

pub(crate) fn one_shot_watches(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/shot");
    assert_eq!(watcher.call(EXISTS, watch("/shot/a")).error, -101);
    watcher.done(GET_CHILDREN, watch("/shot"));
    writer.create("/shot/a", 0);
    set_data(&mut writer, "/shot/a");
    assert_eq!(watcher.settled_events(), events(&[(CREATED, "/shot/a"), (CHILDREN, "/shot")]));

    watcher.done(GET_DATA, watch("/shot/a"));
    watcher.done(EXISTS, watch("/shot/a"));
    set_data(&mut writer, "/shot/a");
    set_data(&mut writer, "/shot/a");
    assert_eq!(watcher.settled_events(), events(&[(CHANGED, "/shot/a")]));

    // A child's data and a grandchild are no news about the children.
    watcher.done(GET_CHILDREN, watch("/shot"));
    set_data(&mut writer, "/shot/a");
    set_data(&mut writer, "/shot");
    writer.create("/shot/a/below", 0);
    assert_eq!(watcher.settled_events(), events(&[]));
    delete(&mut writer, "/shot/a/below");
    delete(&mut writer, "/shot/a");
    assert_eq!(watcher.settled_events(), events(&[(CHILDREN, "/shot")]));

    // Neither a failed read nor one of an absent node leaves a watch.
    assert_eq!(watcher.call(GET_DATA, watch("/shot/b")).error, -101);
    assert_eq!(watcher.call(GET_CHILDREN, watch("/shot/b")).error, -101);
    writer.create("/shot/b", 0);
    assert_eq!(watcher.settled_events(), events(&[]));
}

pub(crate) fn a_deleted_node_is_told_once(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/once");
    watcher.done(GET_DATA, watch("/once"));
    watcher.done(GET_CHILDREN, watch("/once"));
    delete(&mut writer, "/once");
    assert_eq!(watcher.settled_events(), events(&[(DELETED, "/once")]));
    writer.create("/once", 0);
    watcher.done(GET_CHILDREN, watch("/once"));
    delete(&mut writer, "/once");
    assert_eq!(watcher.settled_events(), events(&[(DELETED, "/once")]));
}

pub(crate) fn persistent_watches(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/persistent");
    let mut answer = watcher.done(ADD_WATCH, Body::new().string("/persistent/a").int(0));
    assert!(answer.body.int() == 0 && answer.body.is_empty());
    writer.create("/persistent/a", 0);
    set_data(&mut writer, "/persistent/a");
    writer.create("/persistent/a/b", 0);
    set_data(&mut writer, "/persistent/a/b");
    delete(&mut writer, "/persistent/a/b");
    set_data(&mut writer, "/persistent/a");
    delete(&mut writer, "/persistent/a");
    writer.create("/persistent/a", 0);
    let a = "/persistent/a";
    let expected =
        [(CREATED, a), (CHANGED, a), (CHILDREN, a), (CHILDREN, a), (CHANGED, a), (DELETED, a), (CREATED, a)];
    assert_eq!(watcher.settled_events(), events(&expected));
    assert_eq!(watcher.call(ADD_WATCH, Body::new().string("/persistent").int(9)).error, -5);
    assert_eq!(watcher.call(REMOVE_WATCHES, Body::new().string("/persistent").int(9)).error, -5);
}

pub(crate) fn recursive_watches(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/recursive");
    watcher.done(ADD_WATCH, Body::new().string("/recursive").int(1));
    set_data(&mut writer, "/recursive");
    writer.create("/recursive/a", 0);
    writer.create("/recursive/a/b", 0);
    set_data(&mut writer, "/recursive/a/b");
    writer.create("/recursively", 0);
    delete(&mut writer, "/recursive/a/b");
    delete(&mut writer, "/recursive/a");
    delete(&mut writer, "/recursive");
    let expected = [
        (CHANGED, "/recursive"),
        (CREATED, "/recursive/a"),
        (CREATED, "/recursive/a/b"),
        (CHANGED, "/recursive/a/b"),
        (DELETED, "/recursive/a/b"),
        (DELETED, "/recursive/a"),
        (DELETED, "/recursive"),
    ];
    assert_eq!(watcher.settled_events(), events(&expected));
}

/// A trap of 3.8 (gone in 3.9): one client has one watch per path and table, the last one set.
pub(crate) fn the_last_watch_on_a_path_replaces_the_others(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/kinds");
    watcher.done(ADD_WATCH, Body::new().string("/kinds").int(1));
    watcher.done(GET_DATA, watch("/kinds"));
    set_data(&mut writer, "/kinds");
    writer.create("/kinds/a", 0);
    set_data(&mut writer, "/kinds");
    assert_eq!(watcher.settled_events(), events(&[(CHANGED, "/kinds")]));
    watcher.done(GET_DATA, watch("/kinds"));
    watcher.done(ADD_WATCH, Body::new().string("/kinds").int(0));
    set_data(&mut writer, "/kinds");
    set_data(&mut writer, "/kinds");
    assert_eq!(watcher.settled_events(), events(&[(CHANGED, "/kinds"), (CHANGED, "/kinds")]));
    // The tables are apart: a watch on the children leaves the one on the data alone.
    watcher.done(GET_CHILDREN, watch("/kinds"));
    writer.create("/kinds/b", 0);
    writer.create("/kinds/c", 0);
    set_data(&mut writer, "/kinds");
    assert_eq!(watcher.settled_events(), events(&[(CHILDREN, "/kinds"), (CHANGED, "/kinds")]));
    watcher.done(ADD_WATCH, Body::new().string("/kinds").int(1));
    writer.create("/kinds/d", 0);
    assert_eq!(watcher.settled_events(), events(&[(CREATED, "/kinds/d")]));
}

pub(crate) fn watches_end_with_removal(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/removal");
    let about = |kind| Body::new().string("/removal").int(kind);
    let (children, data, any) = (1, 2, 3);
    assert_eq!(watcher.call(REMOVE_WATCHES, about(any)).error, -121);
    watcher.done(GET_DATA, watch("/removal"));
    watcher.done(CHECK_WATCHES, about(data));
    assert_eq!(watcher.call(CHECK_WATCHES, about(children)).error, -121);
    assert_eq!(watcher.call(REMOVE_WATCHES, about(children)).error, -121);
    watcher.done(REMOVE_WATCHES, about(data));
    assert_eq!(watcher.call(CHECK_WATCHES, about(any)).error, -121);
    watcher.done(GET_CHILDREN, watch("/removal"));
    watcher.done(REMOVE_WATCHES, about(children));
    for mode in [0, 1] {
        watcher.done(ADD_WATCH, about(mode));
        watcher.done(REMOVE_WATCHES, about(any));
    }
    set_data(&mut writer, "/removal");
    writer.create("/removal/child", 0);
    assert_eq!(watcher.settled_events(), events(&[]));
}

pub(crate) fn a_failed_multi_tells_nobody(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/nobody");
    watcher.done(ADD_WATCH, Body::new().string("/nobody").int(1));
    let doomed = Body::new()
        .operation(1)
        .create("/nobody/a", b"", 0)
        .operation(DELETE)
        .string("/nobody/absent")
        .int(-1)
        .end_of_multi();
    writer.done(MULTI, doomed);
    assert_eq!(watcher.settled_events(), events(&[]));
    let fine = Body::new()
        .operation(1)
        .create("/nobody/a", b"", 0)
        .operation(DELETE)
        .string("/nobody/a")
        .int(-1)
        .end_of_multi();
    writer.done(MULTI, fine);
    assert_eq!(watcher.settled_events(), events(&[(CREATED, "/nobody/a"), (DELETED, "/nobody/a")]));
}

pub(crate) fn catching_up_after_a_reconnect(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/away");
    for name in ["same", "changed", "deleted", "parent", "kept", "gone"] {
        writer.create(&format!("/away/{name}"), 0);
    }
    let seen = watcher.ping().zxid;
    set_data(&mut writer, "/away/changed");
    delete(&mut writer, "/away/deleted");
    writer.create("/away/created", 0);
    writer.create("/away/parent/child", 0);
    delete(&mut writer, "/away/gone");
    let request = Body::new()
        .long(seen)
        .strings(&["/away/same", "/away/changed", "/away/deleted"])
        .strings(&["/away/absent", "/away/created"])
        .strings(&["/away/kept", "/away/parent", "/away/gone"]);
    watcher.ask_as(-8, SET_WATCHES, request);
    let reply = watcher.reply();
    assert_eq!((reply.xid, reply.error), (-8, 0));
    let mut caught_up = std::mem::take(&mut watcher.events);
    caught_up.sort();
    let expected = [
        (CREATED, "/away/created"),
        (DELETED, "/away/deleted"),
        (DELETED, "/away/gone"),
        (CHANGED, "/away/changed"),
        (CHILDREN, "/away/parent"),
    ];
    assert_eq!(caught_up, events(&expected), "all before the reply");
    // What was not missed is watched again, what was told is used up.
    for path in ["/away/same", "/away/changed", "/away/kept"] {
        set_data(&mut writer, path);
    }
    writer.create("/away/absent", 0);
    writer.create("/away/kept/child", 0);
    writer.create("/away/parent/second", 0);
    let expected = [(CHANGED, "/away/same"), (CREATED, "/away/absent"), (CHILDREN, "/away/kept")];
    assert_eq!(watcher.settled_events(), events(&expected));
}

pub(crate) fn persistent_watches_after_a_reconnect(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/return");
    let seen = watcher.ping().zxid;
    set_data(&mut writer, "/return");
    let request = Body::new()
        .long(seen)
        .strings(&[])
        .strings(&[])
        .strings(&[])
        .strings(&["/return"])
        .strings(&["/return/tree"]);
    watcher.ask_as(-8, SET_WATCHES2, request);
    assert_eq!(watcher.reply().error, 0);
    assert_eq!(watcher.settled_events(), events(&[]), "nothing is replayed for persistent watches");
    writer.create("/return/tree", 0);
    writer.create("/return/tree/leaf", 0);
    let expected = [(CREATED, "/return/tree"), (CHILDREN, "/return"), (CREATED, "/return/tree/leaf")];
    assert_eq!(watcher.settled_events(), events(&expected));
}

pub(crate) fn events_come_before_what_they_announce(address: &str) {
    let (mut watcher, mut writer) = pair(address, "/order");
    watcher.done(ADD_WATCH, Body::new().string("/order").int(0));
    for _ in 0..50 {
        let zxid = set_data(&mut writer, "/order");
        let reply = watcher.done(EXISTS, Body::new().string("/order").bool(false));
        let mut stat = reply.body;
        stat.long();
        let (mzxid, told) = (stat.long(), watcher.events.len());
        assert!(mzxid == zxid && told == 1, "the read shows {mzxid:#x} of {zxid:#x} after {told} events");
        watcher.events.clear();
    }
    // A client's own write is announced before its reply.
    watcher.create("/order/own", 0);
    assert_eq!(watcher.events, events(&[(CHILDREN, "/order")]));
}

pub(crate) fn an_ordinary_client_watches(address: &str) {
    block_on(async {
        let timeout = Duration::from_secs(10);
        let client = Client::connector().with_session_timeout(timeout).connect(address).await.unwrap();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/ordinary", b"", &persistent).await.unwrap();
        let mut recursive = client.watch("/ordinary", AddWatchMode::PersistentRecursive).await.unwrap();
        let (_, _, data) = client.get_and_watch_data("/ordinary").await.unwrap();
        let (absent, stat) = client.check_and_watch_stat("/ordinary/a").await.unwrap();
        assert_eq!(absent, None);
        client.create("/ordinary/a", b"", &persistent).await.unwrap();
        client.set_data("/ordinary", b"x", None).await.unwrap();
        assert_eq!(stat.changed().await.event_type, EventType::NodeCreated);
        assert_eq!(data.changed().await.event_type, EventType::NodeDataChanged);
        let event = recursive.changed().await;
        assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeCreated, "/ordinary/a"));
    });
}
