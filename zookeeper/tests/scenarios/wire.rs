//! The wire: order, limits, bad input, four-letter words.

use crate::support::raw::{Body, RawClient, four_letter_word};

/// Default of ZooKeeper's `jute.maxbuffer`.
const FRAME_BYTES_MAX: usize = 0xf_ffff;

pub(crate) fn replies_come_in_order(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.create("/pipeline", 0);
    let mut asked = Vec::new();
    for round in 0..200 {
        asked.push(match round % 3 {
            0 => client.ask(1, Body::new().create("/pipeline/n-", b"", 2)),
            1 => client.ask(8, Body::new().string("/pipeline").bool(false)),
            _ => client.ask(4, Body::new().string("/pipeline/absent").bool(false)),
        });
    }
    let mut latest = 0;
    for xid in asked {
        let reply = client.reply();
        assert_eq!(reply.xid, xid);
        assert!(reply.zxid >= latest, "the server's state never goes back");
        latest = reply.zxid;
    }
}

pub(crate) fn transactions_are_numbered(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    let created = client.create("/numbered", 0).zxid;
    assert_eq!(client.call(1, Body::new().create("/numbered", b"", 0)).error, -110);
    let set = client.done(5, Body::new().string("/numbered").buffer(b"x").int(0));
    assert!(set.zxid > created);
    let mut stat = set.body;
    assert_eq!((stat.long(), stat.long()), (created, set.zxid), "czxid and mzxid");
    assert!(client.ping().zxid >= set.zxid);
    let synced = client.done(9, Body::new().string("/numbered"));
    assert_eq!(synced.body.clone().string(), "/numbered");
}

pub(crate) fn a_frame_too_long_closes_the_connection(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.create("/long", 0);
    // The longest frame: header, path, length of the data, data, version.
    let overhead = 8 + 4 + "/long".len() + 4 + 4;
    let data = vec![7; FRAME_BYTES_MAX - overhead];
    client.done(5, Body::new().string("/long").buffer(&data).int(-1));
    assert_eq!(client.done(4, Body::new().string("/long").bool(false)).body.buffer().unwrap(), data);
    let data = vec![7; FRAME_BYTES_MAX - overhead + 1];
    client.ask(5, Body::new().string("/long").buffer(&data).int(-1));
    client.assert_closed();
    // The announcement is enough.
    for length in [FRAME_BYTES_MAX as i32 + 1, i32::MAX, -1, i32::MIN] {
        let (mut client, _) = RawClient::connect(address, 10_000);
        client.send_bytes(&length.to_be_bytes());
        client.assert_closed();
    }
}

pub(crate) fn garbage_closes_the_connection(address: &str) {
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0xff; 64], &[0, 0, 0, 4, 1, 2, 3, 4]] {
        let mut client = RawClient::open(address);
        client.send_bytes(garbage);
        client.assert_closed();
    }
    // A request too short for its header.
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.send(&Body::new().int(1));
    client.assert_closed();
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.ping();
}

pub(crate) fn a_body_cut_short_is_answered(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    for operation in [1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 22] {
        let reply = client.call(operation, Body::new());
        assert_eq!(reply.error, -5, "operation {operation}");
        assert!(reply.body.is_empty());
    }
    client.ping();
}

pub(crate) fn unknown_operations_close_the_connection(address: &str) {
    for operation in [99, -42, 4711] {
        let (mut client, _) = RawClient::connect(address, 10_000);
        assert_eq!(client.call(operation, Body::new()).error, -6, "operation {operation}");
        client.assert_closed();
    }
}

pub(crate) fn four_letter_words(address: &str) {
    let (_client, _) = RawClient::connect(address, 10_000);
    assert_eq!(four_letter_word(address, "ruok"), "imok");
    assert_eq!(four_letter_word(address, "isro"), "rw");
    for (word, lines) in [
        ("srvr", ["Zookeeper version: 3.", "Mode: standalone", "Node count: "]),
        ("stat", ["Zookeeper version: 3.", "Clients:", "Connections: "]),
        ("mntr", ["zk_version\t3.", "zk_server_state\tstandalone", "zk_znode_count\t"]),
        ("envi", ["Environment:", "zookeeper.version=3.", "os.name="]),
        ("conf", ["clientPort=", "minSessionTimeout=400", "maxSessionTimeout=60000"]),
    ] {
        let text = four_letter_word(address, word);
        for start in lines {
            assert!(text.lines().any(|line| line.starts_with(start)), "{word} has no {start:?}:\n{text}");
        }
    }
}

pub(crate) fn who_am_i(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.ask_as(-4, 100, Body::new().int(0).string("digest").buffer(b"me:secret"));
    let reply = client.reply();
    assert_eq!((reply.xid, reply.error), (-4, 0));
    let mut body = client.done(107, Body::new()).body;
    let mut known: Vec<(String, String)> = (0..body.int()).map(|_| (body.string(), body.string())).collect();
    known.sort();
    let expected = [("digest", "me"), ("ip", "127.0.0.1")];
    assert_eq!(known, expected.map(|(scheme, id)| (scheme.to_owned(), id.to_owned())));
}
