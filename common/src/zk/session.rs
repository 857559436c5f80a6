//! One ZooKeeper session (coordination.md, sections 3 to 5). The client library gives a session up by its own clock;
//! then the same session is attached again, for as long as it takes: only the server's word ends it (L12). When it
//! has ended the object is dead, and its owner connects a new one.
//!
//! The connections are not "detached": whoever drops the last clone, or calls `close`, ends the session on the
//! server. The library's client is otherwise dropped only after it has given up, when it can send nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use zookeeper_client as zk;
use zookeeper_client::{Acls, Client, CreateMode};

use super::connect_string::ConnectString;
use super::lease::Lease;
use super::session_metrics::SessionMetrics;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_secs(10);
/// One attempt to connect; a server that accepts and says nothing must not hold up the others for long.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);
/// How long `close` waits for the server to confirm the end.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// How to reach ZooKeeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZooKeeperConfig {
    /// `host:port,host:port/chroot`; the chroot is created when it is missing.
    pub connect: String,
    /// What is asked for; the server may negotiate it down or up.
    pub session_timeout: Duration,
    /// How long [`ZooKeeper::connect`] tries before it fails.
    pub connection_timeout: Duration,
}

/// Where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    Connected,
    /// No connection; the session may be alive, and its ephemeral znodes with it.
    Disconnected,
    /// The server said so, or `close` was called. Final.
    Ended,
}

/// The client at this moment.
#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    pub(crate) client: Option<Client>,
    /// Counts the clients of this session: a request that a dead client never sent may go to a later one.
    pub(crate) generation: u64,
    pub(crate) state: SessionState,
}

/// Why no client can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoClient {
    NotConnected,
    SessionEnded,
}

#[derive(Debug)]
pub(crate) struct Inner {
    target: ConnectString,
    session: zk::SessionInfo,
    session_timeout: Duration,
    pub(crate) attachment: watch::Sender<Attachment>,
    state: watch::Sender<SessionState>,
    pub(crate) lease: Lease,
    pub(crate) closing: CancellationToken,
    pub(crate) metrics: Arc<SessionMetrics>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// One session. Clones share it.
#[derive(Debug, Clone)]
pub struct ZooKeeper {
    pub(crate) inner: Arc<Inner>,
}

impl ZooKeeper {
    /// Starts a session, trying again and again until `connection_timeout` has passed.
    ///
    /// # Errors
    /// A connect string that cannot be read, or no session within the time.
    pub async fn connect(config: ZooKeeperConfig) -> anyhow::Result<Self> {
        Self::connect_counted(config, Arc::default()).await
    }

    /// As [`ZooKeeper::connect`]; what happens to the session and its requests is counted.
    ///
    /// # Errors
    /// As [`ZooKeeper::connect`].
    pub async fn connect_counted(
        config: ZooKeeperConfig,
        metrics: Arc<SessionMetrics>,
    ) -> anyhow::Result<Self> {
        let target = ConnectString::parse(&config.connect)
            .with_context(|| format!("zookeeper.connect={} cannot be read", config.connect))?;
        let deadline = Instant::now() + config.connection_timeout;
        let connector = Client::connector().with_session_timeout(config.session_timeout);
        let mut attempts = Attempts::new(format!("ZooKeeper at {} cannot be reached", config.connect));
        loop {
            let attempt = establish(connector.clone(), &target);
            let error = match timeout(deadline - Instant::now(), attempt).await {
                Ok(Ok(client)) => return Ok(Self::attached_to(client, target, metrics)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + attempts.pause >= deadline {
                bail!(
                    "no ZooKeeper session at {} within {:?} (last attempt: {error}); check zookeeper.connect and \
                     that a majority of the ensemble runs",
                    config.connect,
                    config.connection_timeout
                );
            }
            attempts.failed(&error).await;
        }
    }

    fn attached_to(client: Client, target: ConnectString, metrics: Arc<SessionMetrics>) -> Self {
        let session_timeout = client.session_timeout();
        let session = client.session().clone();
        let attachment =
            Attachment { client: Some(client.clone()), generation: 1, state: SessionState::Connected };
        let inner = Arc::new(Inner {
            target,
            session,
            session_timeout,
            attachment: watch::Sender::new(attachment),
            state: watch::Sender::new(SessionState::Connected),
            lease: Lease::new(session_timeout),
            closing: CancellationToken::new(),
            metrics,
        });
        let (counting, state) = (Arc::clone(&inner.metrics), inner.state.subscribe());
        tokio::spawn(async move { counting.follow(state).await });
        info!(session = %inner.session.id(), timeout = ?session_timeout, "ZooKeeper session started");
        let keeper = Keeper { inner: Arc::downgrade(&inner), closing: inner.closing.clone() };
        tokio::spawn(keeper.run(client.state_watcher()));
        Self { inner }
    }

    pub fn session_id(&self) -> i64 {
        self.inner.session.id().0
    }

    /// The timeout that the server granted.
    pub fn session_timeout(&self) -> Duration {
        self.inner.session_timeout
    }

    /// Follows the session. A short loss and return may be seen only as one change to `Connected`.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.inner.state.subscribe()
    }

    /// How often the session was given up by the client's clock and attached again.
    pub fn attached_again(&self) -> u64 {
        self.inner.attachment.borrow().generation - 1
    }

    pub fn lease(&self) -> Lease {
        self.inner.lease.clone()
    }

    /// Ends the session: its ephemeral znodes go at once. Requests under way are given up, so their answers are
    /// lost. Waits a few seconds at most; if the server cannot be reached the session ends there by its timeout.
    pub async fn close(&self) {
        let client = self.inner.end();
        let ended = async {
            let client = match client {
                Some(client) => client,
                None => self.inner.attach_again().await?,
            };
            let mut states = client.state_watcher();
            drop(client);
            let mut state = states.peek_state();
            while !state.is_terminated() {
                state = states.changed().await;
            }
            Ok::<(), zk::Error>(())
        };
        match timeout(CLOSE_WAIT, ended).await {
            Ok(Ok(()) | Err(zk::Error::SessionExpired)) => {
                debug!(session = %self.inner.session.id(), "closed")
            }
            _ => warn!(
                session = %self.inner.session.id(),
                "ZooKeeper did not confirm the end of the session; it will end by its timeout"
            ),
        }
    }

    /// A connected client of a generation above `after`, waited for until `deadline`.
    pub(crate) async fn client(&self, after: u64, deadline: Instant) -> Result<(Client, u64), NoClient> {
        timeout(deadline.saturating_duration_since(Instant::now()), self.connected_client(after))
            .await
            .unwrap_or(Err(NoClient::NotConnected))
    }

    /// A connected client of a generation above `after`, waited for until the session ends.
    pub(crate) async fn connected_client(&self, after: u64) -> Result<(Client, u64), NoClient> {
        let mut attachment = self.inner.attachment.subscribe();
        let settled = attachment
            .wait_for(|now| match now.state {
                SessionState::Connected => now.generation > after,
                SessionState::Disconnected => false,
                SessionState::Ended => true,
            })
            .await
            .expect("the sender lives as long as this object");
        match &settled.client {
            Some(client) => Ok((client.clone(), settled.generation)),
            None => Err(NoClient::SessionEnded),
        }
    }
}

impl Inner {
    /// Changes the attachment, unless the session has ended. Followers are told even when the state stays the same:
    /// a loss and return that went unseen is a change too.
    fn change(&self, change: impl FnOnce(&mut Attachment)) {
        self.attachment.send_modify(|now| {
            if now.state != SessionState::Ended {
                change(now);
                self.state.send_replace(now.state);
            }
        });
    }

    /// Ends the object, and gives out the client if there was one.
    fn end(&self) -> Option<Client> {
        self.lease.end();
        let mut client = None;
        self.change(|now| {
            now.state = SessionState::Ended;
            client = now.client.take();
        });
        self.closing.cancel();
        client
    }

    /// One attempt to attach the same session to a new client.
    async fn attach_again(&self) -> Result<Client, zk::Error> {
        let connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_session(self.session.clone())
            .with_fail_eagerly();
        let client = timeout(LONGEST_ATTEMPT, connector.connect(&self.target.hosts))
            .await
            .unwrap_or(Err(zk::Error::Timeout))?;
        Ok(below(client, &self.target))
    }
}

/// Watches over the client of a session, and puts another in its place when it gives up.
struct Keeper {
    inner: std::sync::Weak<Inner>,
    closing: CancellationToken,
}

impl Keeper {
    async fn run(self, mut states: zk::StateWatcher) {
        let closing = self.closing.clone();
        let work = async {
            let mut is_told = true;
            loop {
                self.follow(&mut states, std::mem::take(&mut is_told)).await;
                match self.attach_again().await {
                    Some(next) => states = next,
                    None => return,
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = closing.cancelled() => {}
        }
    }

    /// Until the client gives up. `is_told`: that it is connected at first is no news, and not to be taken for a return.
    async fn follow(&self, states: &mut zk::StateWatcher, is_told: bool) {
        let mut state = states.peek_state();
        if is_told && matches!(state, zk::SessionState::SyncConnected) {
            state = states.changed().await;
        }
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            match state {
                zk::SessionState::SyncConnected => inner.change(|now| now.state = SessionState::Connected),
                zk::SessionState::ConnectedReadOnly | zk::SessionState::Disconnected => {
                    inner.change(|now| now.state = SessionState::Disconnected);
                }
                zk::SessionState::Expired | zk::SessionState::Closed | zk::SessionState::AuthFailed => {
                    inner.change(|now| {
                        now.state = SessionState::Disconnected;
                        now.client = None;
                    });
                    return;
                }
            }
            drop(inner);
            state = states.changed().await;
        }
    }

    /// Attaches the session to a new client. `None` when the server says that it is over, or nobody needs it.
    async fn attach_again(&self) -> Option<zk::StateWatcher> {
        // The session's clock on the server may start with the server: there is not a whole timeout to lose.
        let longest_pause = self.inner.upgrade()?.session_timeout / 8;
        let mut attempts =
            Attempts::new("the ZooKeeper session cannot be attached again".to_owned()).at_most(longest_pause);
        loop {
            let inner = self.inner.upgrade()?;
            let attached = match inner.attach_again().await {
                Ok(client) => catch_up(client).await,
                Err(error) => Err(error),
            };
            match attached {
                Ok(client) => {
                    let states = client.state_watcher();
                    info!(session = %inner.session.id(), "ZooKeeper session attached again");
                    inner.lease.grant(client.session_timeout());
                    inner.change(|now| {
                        now.client = Some(client);
                        now.generation += 1;
                    });
                    return Some(states);
                }
                Err(zk::Error::SessionExpired) => {
                    warn!(session = %inner.session.id(), "ZooKeeper says that the session is over");
                    inner.end();
                    return None;
                }
                Err(error) => {
                    drop(inner);
                    attempts.failed(&error.to_string()).await;
                }
            }
        }
    }
}

/// A new client knows nothing of what the session has seen, so its server may be behind: reads would go back in time.
/// Until that server has caught up the client is not used. A living client is never dropped here, since that would end
/// the session.
async fn catch_up(client: Client) -> Result<Client, zk::Error> {
    loop {
        match client.sync("/").await {
            Ok(()) => return Ok(client),
            // The client has given up in its turn, by its own clock or because the server said so: ask again.
            Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                return Err(zk::Error::ConnectionLoss);
            }
            // It connects again by itself, and sends the next one then.
            Err(error) => debug!("ZooKeeper's server has not caught up yet: {error}"),
        }
        sleep(FIRST_PAUSE).await;
    }
}

/// Connects a new session, and creates the chroot if need be.
async fn establish(connector: zk::Connector, target: &ConnectString) -> Result<Client, zk::Error> {
    let client = connector.with_fail_eagerly().connect(&target.hosts).await?;
    if let Some(chroot) = &target.chroot {
        // Looked up first: making an existing one may be forbidden where using it is not.
        if client.check_stat(chroot).await?.is_none() {
            client.mkdir(chroot, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        }
    }
    Ok(below(client, target))
}

fn below(client: Client, target: &ConnectString) -> Client {
    match &target.chroot {
        Some(chroot) => {
            client.chroot(chroot.as_str()).expect("the chroot was a valid path when it was parsed")
        }
        None => client,
    }
}

/// Growing pauses between attempts, and a log line now and then.
struct Attempts {
    what: String,
    pause: Duration,
    longest: Duration,
    logged: Option<Instant>,
}

impl Attempts {
    fn new(what: String) -> Self {
        Self { what, pause: FIRST_PAUSE, longest: LONGEST_PAUSE, logged: None }
    }

    /// The pauses stay below `longest`.
    fn at_most(mut self, longest: Duration) -> Self {
        self.longest = self.longest.min(longest);
        self
    }

    async fn failed(&mut self, error: &str) {
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            warn!("{}: {error}; trying again", self.what);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
    }
}
