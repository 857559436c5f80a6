//! Nodes: their life, their counters, who may touch them.

use std::time::Duration;

use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, CreateOptions, Error, Permission};

use crate::support::raw::{Body, RawClient};
use crate::support::{block_on, eventually};

fn open(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}

async fn client(address: &str) -> Client {
    Client::connector().with_session_timeout(Duration::from_secs(10)).connect(address).await.unwrap()
}

pub(crate) fn versions_and_transactions_of_a_node(address: &str) {
    block_on(async {
        let client = client(address).await;
        let persistent = open(CreateMode::Persistent);
        let (created, _) = client.create("/versions", b"abc", &persistent).await.unwrap();
        assert_eq!((created.czxid, created.pzxid), (created.mzxid, created.czxid));
        assert_eq!((created.version, created.cversion, created.aversion), (0, 0, 0));
        assert_eq!((created.data_length, created.num_children, created.ephemeral_owner), (3, 0, 0));
        assert_eq!(created.ctime, created.mtime);

        let set = client.set_data("/versions", b"abcd", Some(0)).await.unwrap();
        assert!(set.mzxid > created.mzxid && set.czxid == created.czxid && set.pzxid == created.pzxid);
        assert_eq!((set.version, set.cversion, set.data_length), (1, 0, 4));
        assert!(set.mtime >= set.ctime && set.ctime == created.ctime);

        let (child, _) = client.create("/versions/child", b"", &persistent).await.unwrap();
        client.create("/versions/other", b"", &persistent).await.unwrap();
        client.delete("/versions/child", Some(0)).await.unwrap();
        let (children, stat) = client.get_children("/versions").await.unwrap();
        assert_eq!(children, ["other"]);
        assert_eq!((stat.version, stat.cversion, stat.num_children), (1, 3, 1));
        assert!(stat.pzxid > child.czxid && stat.mzxid == set.mzxid);

        let acls = [Acl::new(Permission::ALL, AuthId::anyone())];
        let changed = client.set_acl("/versions", &acls, Some(0)).await.unwrap();
        assert_eq!((changed.aversion, changed.version), (1, 1));
        assert_eq!(client.set_acl("/versions", &acls, Some(0)).await, Err(Error::BadVersion));
        let (read, stat) = client.get_acl("/versions").await.unwrap();
        assert_eq!((read.as_slice(), stat), (acls.as_slice(), changed));
        assert_eq!(client.get_data("/versions").await.unwrap(), (b"abcd".to_vec(), changed));
        assert_eq!(client.check_stat("/versions").await.unwrap(), Some(changed));
        client.sync("/versions").await.unwrap();
    });
}

pub(crate) fn what_is_refused(address: &str) {
    block_on(async {
        let client = client(address).await;
        let persistent = open(CreateMode::Persistent);
        client.create("/refused", b"", &persistent).await.unwrap();
        client.create("/refused/child", b"", &persistent).await.unwrap();
        let create = async |path: &str| client.create(path, b"", &persistent).await.unwrap_err();
        assert_eq!(create("/refused").await, Error::NodeExists);
        assert_eq!(create("/refused/absent/child").await, Error::NoNode);
        assert_eq!(client.delete("/refused", None).await, Err(Error::NotEmpty));
        assert_eq!(client.delete("/refused", Some(7)).await, Err(Error::BadVersion));
        assert_eq!(client.delete("/refused/absent", None).await, Err(Error::NoNode));
        assert_eq!(client.set_data("/refused", b"", Some(1)).await, Err(Error::BadVersion));
        assert_eq!(client.set_data("/refused/absent", b"", None).await, Err(Error::NoNode));
        assert_eq!(client.get_data("/refused/absent").await, Err(Error::NoNode));
        assert_eq!(client.get_children("/refused/absent").await, Err(Error::NoNode));
        assert_eq!(client.list_children("/refused/absent").await, Err(Error::NoNode));
        assert_eq!(client.check_stat("/refused/absent").await, Ok(None));
        assert_eq!(client.get_acl("/refused/absent").await, Err(Error::NoNode));
        assert_eq!(client.count_descendants_number("/refused/absent").await, Err(Error::NoNode));
    });
}

pub(crate) fn paths_that_are_refused(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    client.create("/paths", 0);
    for (path, error) in [
        ("", -8),
        ("paths", -8),
        ("/paths/", -8),
        ("/paths/.", -8),
        ("/paths/..", -8),
        ("/paths/\u{1}", -8),
        ("/paths/\0", -8),
        ("/paths//x", -101),
        ("/paths/ä", 0),
        ("/paths/a b", 0),
    ] {
        let reply = client.call(1, Body::new().create(path, b"", 0));
        assert_eq!(reply.error, error, "create {path:?}");
    }
    for path in ["/", "/zookeeper", "/zookeeper/quota"] {
        assert_eq!(client.call(2, Body::new().string(path).int(-1)).error, -8, "delete {path}");
    }
    // Modes that no client knows, and a mode with time to live without one.
    for mode in [7, -1, 5] {
        assert_eq!(client.call(1, Body::new().create("/paths/mode", b"", mode)).error, -8, "mode {mode}");
    }
}

pub(crate) fn sequence_numbers(address: &str) {
    block_on(async {
        let client = client(address).await;
        let sequential = open(CreateMode::PersistentSequential);
        client.create("/sequence", b"", &open(CreateMode::Persistent)).await.unwrap();
        let (_, first) = client.create("/sequence/n-", b"", &sequential).await.unwrap();
        assert_eq!(first.to_string(), "0000000000");
        client.create("/sequence/other", b"", &open(CreateMode::Persistent)).await.unwrap();
        client.delete("/sequence/n-0000000000", None).await.unwrap();
        client.delete("/sequence/other", None).await.unwrap();
        // Creations of any kind count, deletions do not.
        let (_, third) = client.create("/sequence/m-", b"", &sequential).await.unwrap();
        assert_eq!(third.to_string(), "0000000002");
        let (_, fourth) =
            client.create("/sequence/e-", b"", &open(CreateMode::EphemeralSequential)).await.unwrap();
        assert_eq!(fourth.to_string(), "0000000003");
        let mut children = client.list_children("/sequence").await.unwrap();
        children.sort();
        assert_eq!(children, ["e-0000000003", "m-0000000002"]);
    });
    // A path that ends with a slash is complete with its number.
    let (mut raw, _) = RawClient::connect(address, 10_000);
    assert_eq!(raw.create("/sequence/", 2).body.string(), "/sequence/0000000004");
}

pub(crate) fn ephemeral_nodes(address: &str) {
    block_on(async {
        let client = client(address).await;
        let observer = self::client(address).await;
        client.create("/ephemeral", b"", &open(CreateMode::Persistent)).await.unwrap();
        let (stat, _) = client.create("/ephemeral/a", b"", &open(CreateMode::Ephemeral)).await.unwrap();
        client.create("/ephemeral/b", b"", &open(CreateMode::Ephemeral)).await.unwrap();
        assert_eq!(
            format!("{:x}", stat.ephemeral_owner),
            client.session_id().to_string().trim_start_matches("0x")
        );
        let below = client.create("/ephemeral/a/child", b"", &open(CreateMode::Persistent)).await;
        assert_eq!(below.unwrap_err(), Error::NoChildrenForEphemerals);
        let mut own = client.list_ephemerals("/ephemeral").await.unwrap();
        own.sort();
        assert_eq!(own, ["/ephemeral/a", "/ephemeral/b"]);
        assert_eq!(observer.list_ephemerals("/ephemeral").await.unwrap(), Vec::<String>::new());
        let (_, _, watcher) = observer.get_and_watch_children("/ephemeral").await.unwrap();
        drop(client);
        watcher.changed().await;
        while !observer.list_children("/ephemeral").await.unwrap().is_empty() {}
        let stat = observer.check_stat("/ephemeral").await.unwrap().unwrap();
        assert_eq!((stat.cversion, stat.num_children), (4, 0));
    });
}

pub(crate) fn null_and_empty_data(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    let null = Body::new().string("/null").int(-1).int(1).int(31).string("world").string("anyone").int(0);
    client.done(1, null);
    assert_eq!(client.done(4, Body::new().string("/null").bool(false)).body.buffer(), None);
    let stat = client.done(5, Body::new().string("/null").buffer(b"").int(0)).body;
    assert_eq!(client.done(3, Body::new().string("/null").bool(false)).body, stat);
    assert_eq!(client.done(4, Body::new().string("/null").bool(false)).body.buffer(), Some(Vec::new()));
}

pub(crate) fn access_control(address: &str) {
    block_on(async {
        let owner = client(address).await;
        let stranger = client(address).await;
        let private = CreateMode::Persistent.with_acls(Acls::creator_all());
        let refused = owner.create("/access", b"", &private).await.unwrap_err();
        assert_eq!(refused, Error::InvalidAcl, "an `auth` entry from somebody unknown");
        owner.auth("digest", b"user:secret").await.unwrap();
        owner.create("/access", b"", &private).await.unwrap();
        let (acls, _) = owner.get_acl("/access").await.unwrap();
        assert_eq!((acls.len(), acls[0].scheme(), acls[0].permission()), (1, "digest", Permission::ALL));
        assert!(acls[0].id().starts_with("user:") && acls[0].id().ends_with('='));

        assert_eq!(stranger.get_data("/access").await, Err(Error::NoAuth));
        assert_eq!(stranger.list_children("/access").await, Err(Error::NoAuth));
        assert_eq!(stranger.set_data("/access", b"", None).await, Err(Error::NoAuth));
        assert_eq!(stranger.get_acl("/access").await, Err(Error::NoAuth));
        let below = stranger.create("/access/x", b"", &open(CreateMode::Persistent)).await;
        assert_eq!(below.unwrap_err(), Error::NoAuth);
        assert!(stranger.check_stat("/access").await.unwrap().is_some(), "exists needs no permission");

        stranger.auth("digest", b"user:wrong").await.unwrap();
        assert_eq!(stranger.get_data("/access").await, Err(Error::NoAuth));
        stranger.auth("digest", b"user:secret").await.unwrap();
        stranger.get_data("/access").await.unwrap();
        let read_only = [Acl::new(Permission::READ, AuthId::anyone())];
        owner.set_acl("/access", &read_only, None).await.unwrap();
        assert_eq!(owner.set_data("/access", b"", None).await, Err(Error::NoAuth));
        assert_eq!(owner.set_acl("/access", &read_only, None).await, Err(Error::NoAuth));
        owner.delete("/access", None).await.unwrap();
        assert_eq!(self::client(address).await.auth("nonsense", b"x").await, Err(Error::AuthFailed));
    });
}

pub(crate) fn counts_of_descendants(address: &str) {
    block_on(async {
        let client = client(address).await;
        for path in ["/count", "/count/a", "/count/a/b", "/count/c", "/counted"] {
            client.create(path, b"", &open(CreateMode::Persistent)).await.unwrap();
        }
        assert_eq!(client.count_descendants_number("/count").await.unwrap(), 3);
        assert_eq!(client.count_descendants_number("/counted").await.unwrap(), 0);
    });
}

pub(crate) fn containers_and_times_to_live(address: &str) {
    let (mut client, _) = RawClient::connect(address, 10_000);
    // What makes these nodes special is not told.
    let owner_of = |client: &mut RawClient, path: &str| {
        let mut stat = client.done(3, Body::new().string(path).bool(false)).body;
        stat.skip(4 * 8 + 3 * 4);
        stat.long()
    };
    let mut container = client.done(19, Body::new().create("/container", b"", 4));
    assert_eq!(container.body.string(), "/container");
    assert_eq!(container.body.long(), container.zxid, "the stat follows the path");
    assert_eq!(owner_of(&mut client, "/container"), 0);
    client.create("/container/child", 0);
    client.done(21, Body::new().create("/ttl", b"", 5).long(300));
    assert_eq!(owner_of(&mut client, "/ttl"), 0);
    assert_eq!(client.done(21, Body::new().create("/ttl-", b"", 6).long(300)).error, 0);
    for ttl in [0, -1, 1 << 40] {
        assert_eq!(client.call(21, Body::new().create("/ttl2", b"", 5).long(ttl)).error, -8, "ttl {ttl}");
    }
    eventually("the node outlives its time", || !client.exists("/ttl"));
    assert!(client.exists("/container"));
    client.done(2, Body::new().string("/container/child").int(-1));
    eventually("the empty container goes", || !client.exists("/container"));
}
