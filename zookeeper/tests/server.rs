//! What only our server has: the hooks for tests, the data directory, the process.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::raw::{Body, RawClient, four_letter_word};
use support::{block_on, eventually};
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionState};
use zurau_zookeeper::{Server, ServerConfig};

fn brief_sessions() -> ServerConfig {
    ServerConfig { min_session_timeout: Duration::from_millis(500), ..ServerConfig::default() }
}

async fn client(server: &Server) -> Client {
    let timeout = Duration::from_secs(4);
    Client::connector().with_session_timeout(timeout).connect(&server.connect_string()).await.unwrap()
}

#[test]
fn dropped_connections_come_back_with_their_session() {
    block_on(async {
        let server = Server::start(brief_sessions()).await.unwrap();
        let client = client(&server).await;
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        client.create("/e", b"", &ephemeral).await.unwrap();
        let session = client.session_id();
        let mut states = client.state_watcher();
        server.drop_connections();
        while states.changed().await != SessionState::SyncConnected {}
        assert_eq!(client.session_id(), session);
        assert!(client.check_stat("/e").await.unwrap().is_some());
        drop(client);
        server.shutdown().await.unwrap();
    });
}

#[test]
fn an_expired_session_is_told_to_its_client() {
    block_on(async {
        let server = Server::start(brief_sessions()).await.unwrap();
        let (victim, observer) = (client(&server).await, client(&server).await);
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        victim.create("/e", b"", &ephemeral).await.unwrap();
        let (_, _, watcher) = observer.get_and_watch_data("/e").await.unwrap();
        server.expire_session(victim.session_id().0);
        watcher.changed().await;
        assert_eq!(observer.check_stat("/e").await, Ok(None));
        let mut states = victim.state_watcher();
        while states.state() != SessionState::Expired {
            states.changed().await;
        }
        assert_eq!(victim.check_stat("/e").await, Err(Error::SessionExpired));
        server.expire_session(4711);
        observer.check_stat("/").await.unwrap();
    });
}

#[test]
fn contradictory_settings_and_occupied_places_are_refused() {
    block_on(async {
        let inverted = ServerConfig { max_session_timeout: Duration::from_millis(100), ..brief_sessions() };
        let error = Server::start(inverted).await.unwrap_err().to_string();
        assert!(error.contains("above max_session_timeout"), "{error}");
        let none = ServerConfig { min_session_timeout: Duration::ZERO, ..ServerConfig::default() };
        assert!(Server::start(none).await.is_err());

        let directory = tempfile::tempdir().unwrap();
        let durable = ServerConfig { data_dir: Some(directory.path().to_owned()), ..brief_sessions() };
        let first = Server::start(durable.clone()).await.unwrap();
        let error = format!("{:#}", Server::start(durable.clone()).await.unwrap_err());
        assert!(error.contains("in use by another process"), "{error}");
        let same_port = ServerConfig { listen: first.local_addr(), ..brief_sessions() };
        assert!(Server::start(same_port.clone()).await.is_err());
        first.shutdown().await.unwrap();
        // Both are free again.
        Server::start(durable).await.unwrap().shutdown().await.unwrap();
        Server::start(same_port).await.unwrap().shutdown().await.unwrap();
    });
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_others_do_not_notice() {
    let server = support::ours::Ours::in_memory();
    let (mut deaf, _) = RawClient::connect(&server.address(), 30_000);
    let (mut other, _) = RawClient::connect(&server.address(), 30_000);
    deaf.create("/large", 0);
    deaf.done(5, Body::new().string("/large").buffer(&[7; 1_000_000]).int(-1));
    let asked = 200;
    for _ in 0..asked {
        deaf.ask(4, Body::new().string("/large").bool(false));
    }
    eventually("the deaf client is given up", || {
        other.ping();
        four_letter_word(&server.address(), "srvr").contains("Connections: 1\n")
    });
    let answered = std::iter::from_fn(|| deaf.frame()).count();
    assert!(answered < asked, "all {answered} answers were kept for a client that did not read");
    other.ping();
}

struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(listen: &str, data: &std::path::Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zurau-zookeeper"))
            .args(["--listen", listen, "--min-session-timeout-ms", "500", "--data"])
            .arg(data)
            .env("RUST_LOG", "off")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("zookeeper.connect=").unwrap().to_owned();
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_killed_process_loses_nothing_it_has_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = Process::start("127.0.0.1:0", directory.path());
    let address = process.address.clone();
    assert_eq!(four_letter_word(&address, "ruok"), "imok");
    let (mut client, session) = RawClient::connect(&address, 30_000);
    client.create("/log", 0);
    for round in 0..3 {
        // Many are under way when the process dies; those answered before must be there after.
        for _ in 0..200 {
            client.ask(1, Body::new().create("/log/n-", b"data", 3));
        }
        let acknowledged: Vec<String> = (0..50).map(|_| client.reply().body.string()).collect();
        process.kill();
        process = Process::start(&address, directory.path());
        let answer;
        (client, answer) = RawClient::reattach(&address, &session, 0);
        assert_eq!(answer.as_ref().map(|answer| answer.id), Some(session.id), "round {round}");
        for path in acknowledged {
            assert!(client.exists(&path), "round {round}: {path} was acknowledged");
        }
    }
}
