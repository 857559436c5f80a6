//! The harness itself: a test that looks through a broken window proves nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::proxy::Proxy;
use zurau_tests::znodes::Znodes;
use zurau_tests::zookeeper::four_letters;
use zurau_tests::{TestDirectory, ZooKeeperKind, ZooKeeperServer, eventually, on_both_zookeepers};

on_both_zookeepers!(a_killed_zookeeper_returns_with_its_data);
on_both_zookeepers!(a_cut_proxy_refuses_until_it_is_healed);

fn a_killed_zookeeper_returns_with_its_data(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut server = ZooKeeperServer::start(kind, directory.path())?;
    let znodes = Znodes::connect(&server.address())?;
    znodes.create("/a", "1")?;
    znodes.create("/a/b", "")?;
    znodes.put("/a/b", "2")?;
    server.kill()?;
    server.restart()?;
    let expected = BTreeMap::from([("/a".to_owned(), "1".to_owned()), ("/a/b".to_owned(), "2".to_owned())]);
    ensure!(znodes.tree("/a")? == expected, "after the restart: {:?}", znodes.tree("/a"));
    let node = znodes.get("/a/b")?.context("the node is gone")?;
    ensure!(node.version == 1 && node.mzxid > node.czxid, "after the restart: {node:?}");
    znodes.delete("/a")?;
    ensure!(znodes.tree("/a")?.is_empty(), "something is left");
    Ok(())
}

fn a_cut_proxy_refuses_until_it_is_healed(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let server = ZooKeeperServer::start(kind, directory.path())?;
    let proxy = Proxy::start(server.address())?;
    ensure!(four_letters(&proxy.address(), "ruok")? == "imok", "the proxy does not forward");
    proxy.cut();
    let through = four_letters(&proxy.address(), "ruok");
    ensure!(!matches!(through.as_deref(), Ok("imok")), "a cut proxy forwards");
    proxy.heal();
    eventually("the healed proxy forwards", Duration::from_secs(5), || {
        Ok((four_letters(&proxy.address(), "ruok")? == "imok").then_some(()))
    })
}
