//! Whether this controller is ready, active or standby: what `/ready` tells. Exists before the ZooKeeper session.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use zurau_common::http::exposition::Exposition;
use zurau_common::http::{Observed, Readiness};
use zurau_common::id::ControllerEpoch;
use zurau_common::zk::session::{SessionState, ZooKeeper};

use crate::api::SharedApi;
use crate::metrics::{Metrics, write};

/// What this process is among the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Standby,
    Active(ControllerEpoch),
    Stopping,
}

/// What is known of the controller from its first moment to its last.
#[derive(Debug)]
pub(crate) struct Health {
    id: i32,
    api: SharedApi,
    metrics: Arc<Metrics>,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    role: Role,
    /// The session of the moment; `None` before the first and between two.
    session: Option<Session>,
}

/// A session as it can be watched. Not the session itself: whoever drops the last clone of that ends it.
#[derive(Debug, Clone)]
struct Session {
    id: i64,
    state: watch::Receiver<SessionState>,
}

impl Health {
    pub(crate) fn new(id: i32, api: SharedApi) -> Self {
        Self { id, api, metrics: Arc::default(), now: Mutex::new(Now { role: Role::Standby, session: None }) }
    }

    pub(crate) fn set_session(&self, zookeeper: Option<&ZooKeeper>) {
        self.now.lock().session =
            zookeeper.map(|zookeeper| Session { id: zookeeper.session_id(), state: zookeeper.state() });
    }

    /// What this process counts, in all its terms of office.
    pub(crate) fn counters(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// The process is stopping for good once it is; other roles change.
    pub(crate) fn set_role(&self, role: Role) {
        let mut now = self.now.lock();
        if now.role != Role::Stopping {
            now.role = role;
        }
    }
}

impl Observed for Health {
    fn readiness(&self) -> Readiness {
        let (role, session) = {
            let now = self.now.lock();
            (now.role, now.session.clone())
        };
        let state = session.as_ref().map(|session| *session.state.borrow());
        let reason = match (role, state) {
            (Role::Stopping, _) => Some("the controller is stopping"),
            (_, None | Some(SessionState::Ended)) => Some("there is no ZooKeeper session"),
            (_, Some(SessionState::Disconnected)) => {
                Some("ZooKeeper does not answer; the session is being attached again")
            }
            (_, Some(SessionState::Connected)) => None,
        };
        let (role, epoch) = match role {
            Role::Standby => ("standby", None),
            Role::Active(epoch) => ("active", Some(epoch.0)),
            Role::Stopping => ("stopping", None),
        };
        let details = json!({
            "controller": self.id,
            "role": role,
            "controller_epoch": epoch,
            "zookeeper_session": session.map(|session| format!("{:#x}", session.id)),
        });
        Readiness::new(reason.into_iter().map(str::to_owned).collect(), Vec::new(), details)
    }

    fn metrics(&self, page: &mut Exposition) {
        let help = "1 if /ready says so.";
        page.gauge("zurau_ready", help, self.readiness().is_ready());
        let state = self.now.lock().session.as_ref().map(|session| *session.state.borrow());
        self.metrics.sessions.write(state, page);
        write(&self.metrics, self.api.observe().blocking_recv().ok().as_ref(), page);
    }
}
