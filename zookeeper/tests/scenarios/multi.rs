//! Multi: all or nothing, and what each operation answers.

use zookeeper_client::{Acls, Client, CreateMode, Error, MultiReadResult, MultiWriteError, MultiWriteResult};

use crate::support::block_on;
use crate::support::raw::{Body, RawClient, Reply};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const CREATE2: i32 = 15;

/// Types and error numbers of a multi's results, for those without a body of interest.
fn errors(reply: &mut Reply) -> Vec<(i32, i32)> {
    let mut results = Vec::new();
    loop {
        let (kind, done, error) = (reply.body.int(), reply.body.bool(), reply.body.int());
        if done {
            assert_eq!((kind, error), (-1, -1));
            assert!(reply.body.is_empty());
            return results;
        }
        assert_eq!(kind, -1, "only errors have a body of this form");
        assert_eq!(reply.body.int(), error, "header and body say the same");
        results.push((kind, error));
    }
}

pub(crate) fn all_operations_or_none(address: &str) {
    block_on(async {
        let client = Client::connect(address).await.unwrap();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/all", b"", &persistent).await.unwrap();
        client.create("/all/old", b"", &persistent).await.unwrap();

        let mut writer = client.new_multi_writer();
        writer.add_check_version("/all", 0).unwrap();
        writer.add_create("/all/new", b"1", &persistent).unwrap();
        writer.add_set_data("/all/new", b"22", Some(0)).unwrap();
        writer.add_delete("/all/old", None).unwrap();
        let results = writer.commit().await.unwrap();
        let [
            MultiWriteResult::Check,
            MultiWriteResult::Create { path, stat: created },
            MultiWriteResult::SetData { stat: set },
            MultiWriteResult::Delete,
        ] = results.as_slice()
        else {
            panic!("{results:?}")
        };
        assert_eq!(path, "/all/new");
        assert!(created.is_invalid(), "3.8 does not tell the stat of a node created in a multi");
        assert_eq!((set.version, set.data_length), (1, 2));
        assert_eq!(set.czxid, set.mzxid, "one transaction");
        let (children, parent) = client.get_children("/all").await.unwrap();
        assert_eq!((children.as_slice(), parent.pzxid), ([String::from("new")].as_slice(), set.mzxid));

        let mut writer = client.new_multi_writer();
        writer.add_create("/all/b", b"", &persistent).unwrap();
        writer.add_set_data("/all/new", b"333", None).unwrap();
        writer.add_delete("/all/new", Some(7)).unwrap();
        writer.add_create("/all/c", b"", &persistent).unwrap();
        let failed = MultiWriteError::OperationFailed { index: 2, source: Error::BadVersion };
        assert_eq!(writer.commit().await.unwrap_err(), failed);
        assert_eq!(client.get_data("/all/new").await.unwrap(), (b"22".to_vec(), *set));
        assert_eq!(client.get_children("/all").await.unwrap(), (children, parent));

        let mut writer = client.new_check_writer("/all", Some(9)).unwrap();
        writer.add_create("/all/d", b"", &persistent).unwrap();
        assert!(writer.commit().await.is_err());
        assert_eq!(client.check_stat("/all/d").await, Ok(None));
    });
}

pub(crate) fn results_of_a_failed_multi(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.create("/failed", 0);
    let request = Body::new()
        .operation(CREATE)
        .create("/failed/a", b"", 0)
        .operation(CHECK)
        .string("/failed")
        .int(0)
        .operation(CREATE)
        .create("/failed", b"", 0)
        .operation(DELETE)
        .string("/failed/absent")
        .int(-1)
        .operation(SET_DATA)
        .string("/failed")
        .buffer(b"x")
        .int(-1)
        .end_of_multi();
    let mut reply = client.done(MULTI, request);
    assert_eq!(errors(&mut reply), [(-1, 0), (-1, 0), (-1, -110), (-1, -2), (-1, -2)]);
    assert!(!client.exists("/failed/a"));
    // A number that was rolled back is given again.
    assert_eq!(client.create("/failed/n-", 2).body.string(), "/failed/n-0000000000");
}

pub(crate) fn operations_see_the_ones_before(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    let request = Body::new()
        .operation(CREATE2)
        .create("/chain", b"", 0)
        .operation(CREATE)
        .create("/chain/n-", b"", 3)
        .operation(CREATE)
        .create("/chain/n-", b"", 2)
        .operation(DELETE)
        .string("/chain/n-0000000001")
        .int(0)
        .operation(CREATE)
        .create("/chain/n-", b"", 2)
        .end_of_multi();
    let mut body = client.done(MULTI, request).body;
    // 3.8 answers create2 in a multi as it does create: without the stat.
    for path in ["/chain", "/chain/n-0000000000", "/chain/n-0000000001"] {
        assert_eq!((body.int(), body.bool(), body.int()), (CREATE, false, 0));
        assert_eq!(body.string(), path);
    }
    assert_eq!((body.int(), body.bool(), body.int()), (DELETE, false, 0));
    assert_eq!((body.int(), body.bool(), body.int()), (CREATE, false, 0));
    assert_eq!(body.string(), "/chain/n-0000000002");
    assert_eq!((body.int(), body.bool(), body.int()), (-1, true, -1));
    // A node below an ephemeral one is refused also when both are of the same multi.
    let request = Body::new()
        .operation(CREATE)
        .create("/chain/e", b"", 1)
        .operation(CREATE)
        .create("/chain/e/child", b"", 0)
        .end_of_multi();
    assert_eq!(errors(&mut client.done(MULTI, request)), [(-1, 0), (-1, -108)]);
    assert!(!client.exists("/chain/e"));
}

pub(crate) fn an_odd_operation_is_answered(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    assert_eq!(errors(&mut client.done(MULTI, Body::new().end_of_multi())), []);
    let reads_inside = Body::new().operation(11).string("/").bool(false).end_of_multi();
    assert_eq!(client.call(MULTI, reads_inside).error, -5);
    assert_eq!(client.call(MULTI, Body::new().operation(CREATE)).error, -5);
    client.ping();
}

pub(crate) fn reading_many(address: &str) {
    block_on(async {
        let client = Client::connect(address).await.unwrap();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let (stat, _) = client.create("/many", b"data", &persistent).await.unwrap();
        client.create("/many/child", b"", &persistent).await.unwrap();
        let mut reader = client.new_multi_reader();
        reader.add_get_data("/many").unwrap();
        reader.add_get_data("/many/absent").unwrap();
        reader.add_get_children("/many").unwrap();
        let results = reader.commit().await.unwrap();
        let [
            MultiReadResult::Data { data, stat: read },
            MultiReadResult::Error { err: Error::NoNode },
            MultiReadResult::Children { children },
        ] = results.as_slice()
        else {
            panic!("{results:?}")
        };
        assert_eq!((data.as_slice(), read.mzxid, read.num_children), (b"data".as_slice(), stat.mzxid, 1));
        assert_eq!(children, &["child"]);
    });
}
