//! The server's tasks: one accepts connections, one owns the state. Connections send the owner
//! their requests through a bounded channel; the owner steps the core through whatever has
//! gathered, makes that durable with one sync, and only then lets the answers out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::connection::{self, Outbox};
use crate::core::change::Transaction;
use crate::core::four_letter::{FourLetterWord, Settings};
use crate::core::{ConnectionId, Core, Effects, Input, Limits, Now, Output};
use crate::journal::Journal;

/// Most connections at a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 4_096;
/// Requests on their way to the owner.
const QUEUE_LENGTH: usize = 256;
/// Pause after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How to run a [`Server`].
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where to keep state across restarts; `None` keeps it in memory only.
    pub data_dir: Option<PathBuf>,
    /// ZooKeeper's unit of time. Only told in `conf`: sessions expire to the millisecond.
    pub tick_time: Duration,
    /// Lower bound of negotiated session timeouts; at least 1 ms, at most the upper bound.
    pub min_session_timeout: Duration,
    /// Upper bound of negotiated session timeouts; below 24 days.
    pub max_session_timeout: Duration,
}

impl Default for ServerConfig {
    /// A free port on 127.0.0.1, in memory, ticks of 2 s, session timeouts from 2 to 20 ticks.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: None,
            tick_time: Duration::from_secs(2),
            min_session_timeout: Duration::from_secs(4),
            max_session_timeout: Duration::from_secs(40),
        }
    }
}

/// What reaches the owner of the state.
#[derive(Debug)]
pub(crate) enum Command {
    /// A connection came; its answers go to the outbox.
    Opened(ConnectionId, Outbox),
    /// With the time when it arrived.
    Input(Input, Instant),
    Ask(FourLetterWord, oneshot::Sender<String>),
}

/// A running server. Dropping it stops the server without waiting.
#[derive(Debug)]
pub struct Server {
    local_addr: SocketAddr,
    hooks: mpsc::UnboundedSender<Input>,
    stop: CancellationToken,
    owner: JoinHandle<anyhow::Result<()>>,
    acceptor: JoinHandle<()>,
    _stop_on_drop: DropGuard,
}

impl Server {
    /// Binds, recovers what the data directory holds, and serves.
    ///
    /// # Errors
    /// The address cannot be bound, the timeouts contradict each other, or the data directory is
    /// in use, unreadable or damaged.
    pub async fn start(config: ServerConfig) -> anyhow::Result<Self> {
        let limits = limits(&config)?;
        let listener = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.listen))?;
        let local_addr = listener.local_addr().context("cannot read the own address")?;
        let clock = Clock::start();
        let now = clock.now();
        let (journal, core) = match config.data_dir.clone() {
            None => (None, Core::new(limits, now)),
            Some(directory) => {
                let open = move || Journal::open(&directory, limits, now);
                let (journal, core) = tokio::task::spawn_blocking(open).await.context("recovery")??;
                (Some(journal), core)
            }
        };
        tracing::info!(
            address = %local_addr,
            data_dir = ?config.data_dir,
            zxid = core.zxid(),
            "in-process ZooKeeper server started: for development and tests only, not replicated"
        );
        let settings = Settings {
            port: local_addr.port(),
            data_dir: config.data_dir.map_or_else(String::new, |path| path.display().to_string()),
            tick_time_ms: config.tick_time.as_millis(),
        };
        let (commands, receiver) = mpsc::channel(QUEUE_LENGTH);
        let (hooks, hook_receiver) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let owner = Owner { core, journal, clock, settings, outboxes: HashMap::new() };
        let owner = tokio::spawn(owner.run(receiver, hook_receiver, stop.clone()));
        let acceptor = tokio::spawn(accept(listener, commands, stop.clone()));
        let _stop_on_drop = stop.clone().drop_guard();
        Ok(Self { local_addr, hooks, stop, owner, acceptor, _stop_on_drop })
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// `host:port`, as clients want it.
    pub fn connect_string(&self) -> String {
        self.local_addr.to_string()
    }

    /// Closes all connections, keeps the sessions for the next start when there is a data
    /// directory, and returns when the port is free again.
    ///
    /// # Errors
    /// The server had stopped before, because the disk refused a write.
    pub async fn shutdown(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.acceptor.await.context("the accepting task failed")?;
        self.owner.await.context("the task that owns the state failed")?
    }

    /// Returns when the server has stopped by itself, because the disk refused a write.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// For tests: closes every connection as a network failure would. Sessions live on.
    pub fn drop_connections(&self) {
        self.hook(Input::DropConnections);
    }

    /// For tests: expires the session at once, whatever its timeout. Unknown ids are ignored.
    pub fn expire_session(&self, session_id: i64) {
        self.hook(Input::ExpireSession(session_id));
    }

    fn hook(&self, input: Input) {
        if self.hooks.send(input).is_err() {
            tracing::warn!("the server has stopped; a test hook had no effect");
        }
    }
}

fn limits(config: &ServerConfig) -> anyhow::Result<Limits> {
    let milliseconds = |name: &str, duration: Duration| {
        i32::try_from(duration.as_millis())
            .ok()
            .filter(|milliseconds| *milliseconds > 0)
            .with_context(|| format!("{name} is {duration:?}; it must be from 1 ms to {} ms", i32::MAX))
    };
    let limits = Limits {
        min_session_timeout_ms: milliseconds("min_session_timeout", config.min_session_timeout)?,
        max_session_timeout_ms: milliseconds("max_session_timeout", config.max_session_timeout)?,
    };
    ensure!(
        limits.min_session_timeout_ms <= limits.max_session_timeout_ms,
        "min_session_timeout {:?} is above max_session_timeout {:?}",
        config.min_session_timeout,
        config.max_session_timeout
    );
    Ok(limits)
}

async fn accept(listener: TcpListener, commands: mpsc::Sender<Command>, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut next_id = 0;
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                next_id += 1;
                let (id, commands, stop) = (ConnectionId(next_id), commands.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = connection::serve(stream, address, id, commands) => {}
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Clock {
    start: Instant,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now() }
    }

    fn now(self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic_ms: self.milliseconds_at(Instant::now()),
            unix_ms: i64::try_from(unix.as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn milliseconds_at(self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    fn instant(self, monotonic_ms: u64) -> tokio::time::Instant {
        let far = Duration::from_secs(3600).as_millis() as u64 + self.now().monotonic_ms;
        (self.start + Duration::from_millis(monotonic_ms.min(far))).into()
    }
}

/// Owns the state; nothing else reads or writes it.
struct Owner {
    core: Core,
    journal: Option<Journal>,
    clock: Clock,
    settings: Settings,
    outboxes: HashMap<ConnectionId, Outbox>,
}

impl Owner {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut hooks: mpsc::UnboundedReceiver<Input>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(QUEUE_LENGTH);
        loop {
            let wake = self.clock.instant(self.core.next_tick_ms());
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(input) = hooks.recv() => batch.push(Command::Input(input, Instant::now())),
                received = commands.recv_many(&mut batch, QUEUE_LENGTH) => {
                    if received == 0 {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            let backlog = !commands.is_empty();
            if let Err(error) = self.turn(&mut batch, backlog).await {
                // An answer must not leave before it is durable: nothing can be answered any more.
                tracing::error!(%error, "the in-process ZooKeeper server stops");
                stop.cancel();
                return Err(error);
            }
        }
    }

    async fn turn(&mut self, batch: &mut Vec<Command>, backlog: bool) -> anyhow::Result<()> {
        let now = self.clock.now();
        // A request that arrived in time must not find its session expired because this task was
        // slow. What still waits arrived after the last command of this batch.
        let mut settled = now;
        let mut effects = Effects::default();
        let mut answers = Vec::new();
        for command in batch.drain(..) {
            match command {
                Command::Opened(connection, outbox) => {
                    self.outboxes.insert(connection, outbox);
                }
                Command::Input(input, arrived) => {
                    if backlog {
                        settled.monotonic_ms = self.clock.milliseconds_at(arrived);
                    }
                    if let Input::Disconnected(connection) = input {
                        self.outboxes.remove(&connection);
                    }
                    self.core.step(input, now, &mut effects);
                }
                Command::Ask(word, answer) => answers.push((word, answer)),
            }
        }
        self.core.tick(settled, &mut effects);
        self.persist(std::mem::take(&mut effects.transactions)).await?;
        for output in effects.outputs {
            self.deliver(output);
        }
        for (word, answer) in answers {
            // The asker may have gone.
            let _ = answer.send(self.core.answer(word, &self.settings));
        }
        Ok(())
    }

    async fn persist(&mut self, transactions: Vec<Transaction>) -> anyhow::Result<()> {
        if transactions.is_empty() {
            return Ok(());
        }
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        let zxid = self.core.zxid();
        let snapshot = journal.wants_snapshot().then(|| self.core.to_snapshot());
        let commit = move || -> anyhow::Result<Journal> {
            journal.commit(&transactions)?;
            if let Some(records) = snapshot {
                journal.snapshot(zxid, &records)?;
            }
            Ok(journal)
        };
        self.journal = Some(tokio::task::spawn_blocking(commit).await.context("the journal failed")??);
        Ok(())
    }

    fn deliver(&mut self, output: Output) {
        match output {
            Output::Send(connection, frame) => {
                let Some(outbox) = self.outboxes.get(&connection) else { return };
                if !outbox.send(frame) {
                    tracing::warn!(connection = connection.0, "close a connection that does not read");
                    self.outboxes.remove(&connection);
                    self.core.disconnect(connection);
                }
            }
            // Without its outbox the connection writes what is left and ends.
            Output::Close(connection) => {
                self.outboxes.remove(&connection);
            }
        }
    }
}
