//! Watches on whole trees (coordination.md, section 4, "Watches"). An event only marks its path dirty. A recursive
//! watch replays nothing that happened without a connection, and the client library does not set it again, so after
//! each reconnect and every five minutes it is set anew, and then everything must be read again (L1).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};
use zookeeper_client as zk;
use zookeeper_client::{AddWatchMode, Client, EventType, WatchedEvent};

use super::session::ZooKeeper;

const ARM_AGAIN_EVERY: Duration = Duration::from_secs(300);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// So many dirty paths cost more than reading the tree.
const MOST_DIRTY_PATHS: usize = 200_000;

/// What a follower of trees is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// The watches have just been set, for the first time or anew: read everything again, and decide nothing before.
    Reset,
    /// These znodes were created, changed or deleted since the last call. Deduplicated, in order.
    Dirty(Vec<String>),
}

/// Follows trees until the session ends.
#[derive(Debug)]
pub struct TreeWatch {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
    /// Somebody waits for [`TreeWatch::caught_up`].
    asked: Notify,
    passed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    armed: bool,
    reset: bool,
    dirty: BTreeSet<String>,
    ended: bool,
    /// Whoever waits for the events that have arrived.
    catching_up: bool,
}

impl ZooKeeper {
    /// Watches the trees below `roots`, which need not exist. The first event is `Reset`.
    pub fn watch_trees(&self, roots: &[&str]) -> TreeWatch {
        self.watch_trees_every(roots, ARM_AGAIN_EVERY)
    }

    /// [`Self::watch_trees`] with another period than five minutes between two `Reset`s without cause.
    pub fn watch_trees_every(&self, roots: &[&str], arm_again_every: Duration) -> TreeWatch {
        let shared = Arc::new(Shared::default());
        let roots = roots.iter().map(|root| (*root).to_owned()).collect();
        let follower =
            Follower { zookeeper: self.clone(), roots, arm_again_every, shared: Arc::clone(&shared) };
        TreeWatch { shared, task: tokio::spawn(follower.run()) }
    }
}

impl TreeWatch {
    /// The next event, or `None` when the session has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<TreeEvent> {
        loop {
            {
                let mut pending = self.shared.pending.lock();
                if pending.ended {
                    return None;
                }
                if std::mem::take(&mut pending.reset) {
                    return Some(TreeEvent::Reset);
                }
                if !pending.dirty.is_empty() {
                    return Some(TreeEvent::Dirty(std::mem::take(&mut pending.dirty).into_iter().collect()));
                }
            }
            self.shared.changed.notified().await;
        }
    }

    /// Waits until every change that was made before the last answer of this session was sent has been marked, or the
    /// watches are lost, so that a `Reset` will follow. A server sends the event of a change before any answer that
    /// is newer, and the client hands both on in that order; only the watches' own queues may still hold it.
    pub async fn caught_up(&self) {
        self.shared.pending.lock().catching_up = true;
        self.shared.asked.notify_one();
        loop {
            let passed = self.shared.passed.notified();
            {
                let pending = self.shared.pending.lock();
                if !pending.catching_up || !pending.armed || pending.ended {
                    return;
                }
            }
            passed.await;
        }
    }

    /// Whether the watches are set and the `Reset` that followed was taken. While this is `false` memory may be
    /// older than it looks, and nothing may be decided from it.
    pub fn is_current(&self) -> bool {
        let pending = self.shared.pending.lock();
        pending.armed && !pending.reset && !pending.ended
    }
}

impl Drop for TreeWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn update(&self, update: impl FnOnce(&mut Pending)) {
        update(&mut self.pending.lock());
        self.changed.notify_one();
        self.passed.notify_waiters();
    }

    fn armed(&self) {
        self.update(|pending| {
            pending.armed = true;
            pending.reset = true;
            pending.dirty.clear();
        });
    }

    /// Dirty paths that nobody has taken are forgotten: the next `Reset` covers them.
    fn deaf(&self) {
        self.update(|pending| {
            pending.armed = false;
            pending.reset = false;
            pending.dirty.clear();
        });
    }

    fn mark(&self, path: String) {
        self.update(|pending| {
            pending.dirty.insert(path);
            if pending.dirty.len() > MOST_DIRTY_PATHS {
                pending.dirty.clear();
                pending.reset = true;
            }
        });
    }
}

type Events = SelectAll<BoxStream<'static, WatchedEvent>>;

struct Follower {
    zookeeper: ZooKeeper,
    roots: Vec<String>,
    arm_again_every: Duration,
    shared: Arc<Shared>,
}

/// Why the watches must be set anew.
enum Interruption {
    /// The connection was lost, or lost and found.
    Reconnect,
    /// The client that they belonged to is dead.
    ClientEnded,
}

impl Follower {
    async fn run(self) {
        let mut dead_generation = 0;
        // Kept until their successors are set: the last watcher of a path takes the watch away from the server.
        let mut previous: Option<Events> = None;
        while let Ok((client, generation)) = self.zookeeper.connected_client(dead_generation).await {
            let armed = tokio::select! {
                armed = self.arm(&client) => armed,
                () = self.zookeeper.inner.closing.cancelled() => break,
            };
            match armed {
                Ok(mut events) => {
                    drop(previous.take());
                    self.shared.armed();
                    match self.follow(&client, &mut events).await {
                        Interruption::Reconnect => previous = Some(events),
                        Interruption::ClientEnded => dead_generation = generation,
                    }
                    self.shared.deaf();
                }
                Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => dead_generation = generation,
                Err(error) => {
                    warn!(roots = ?self.roots, "watches could not be set: {error}; trying again");
                    drop(client);
                    sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
        }
        self.shared.update(|pending| pending.ended = true);
    }

    async fn arm(&self, client: &Client) -> Result<Events, zk::Error> {
        let mut events = SelectAll::new();
        for root in &self.roots {
            let watcher = client.watch(root, AddWatchMode::PersistentRecursive).await?;
            let next = |mut watcher: zk::PersistentWatcher| async {
                let event = watcher.changed().await;
                Some((event, watcher))
            };
            events.push(stream::unfold(watcher, next).boxed());
        }
        debug!(roots = ?self.roots, "watches set");
        Ok(events)
    }

    async fn follow(&self, client: &Client, events: &mut Events) -> Interruption {
        let mut arm_again = Instant::now() + self.arm_again_every;
        loop {
            let event = tokio::select! {
                // No stream may be asked for more after its last event, and each ends in the same one.
                event = events.next() => event,
                () = self.shared.asked.notified() => match events.next().now_or_never() {
                    // Until none is left.
                    Some(event) => {
                        self.shared.asked.notify_one();
                        event
                    }
                    None => {
                        self.shared.update(|pending| pending.catching_up = false);
                        continue;
                    }
                },
                () = self.zookeeper.inner.closing.cancelled() => return Interruption::ClientEnded,
                () = sleep_until(arm_again) => {
                    let Ok(fresh) = self.arm(client).await else { return Interruption::Reconnect };
                    *events = fresh;
                    self.shared.armed();
                    arm_again = Instant::now() + self.arm_again_every;
                    continue;
                }
            };
            match event {
                Some(event) if event.event_type != EventType::Session => self.shared.mark(event.path),
                Some(event) if !event.session_state.is_terminated() => return Interruption::Reconnect,
                _ => return Interruption::ClientEnded,
            }
        }
    }
}
