//! Whether this broker is ready, and if not, why: what `/ready` tells. Exists before anything else of the broker, so that
//! it can be asked while logs are recovered (D13).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use tokio::runtime::Handle;
use zurau_common::config::BrokerConfig;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::{HttpServer, Observed, Readiness};
use zurau_common::id::BrokerId;
use zurau_common::zk::session::SessionState;
use zurau_common::zk::session_metrics::SessionMetrics;

use crate::context::BrokerContext;
use crate::disk_space::Space;
use crate::metrics::{IdleShare, write_page};
use crate::partitions::{DirectoryProgress, LoadingProgress};

/// What is known of the broker from its first moment to its last.
#[derive(Debug)]
pub(crate) struct Health {
    own: BrokerId,
    log_dirs: Vec<PathBuf>,
    pub(crate) loading: LoadingProgress,
    pub(crate) sessions: Arc<SessionMetrics>,
    /// Of the threads that serve clients.
    idle: IdleShare,
    /// Set when the logs are loaded.
    context: OnceLock<Arc<BrokerContext>>,
    stopping: AtomicBool,
}

impl Health {
    /// `data`: the runtime that serves clients.
    pub(crate) fn new(config: &BrokerConfig, data: Handle) -> Arc<Self> {
        Arc::new(Self {
            own: config.broker_id,
            log_dirs: config.log_dirs.clone(),
            loading: LoadingProgress::default(),
            sessions: Arc::default(),
            idle: IdleShare::new(data),
            context: OnceLock::new(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Begins to answer over HTTP if the configuration asks for it, on the runtime that calls this.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(crate) async fn serve(self: &Arc<Self>, config: &BrokerConfig) -> anyhow::Result<Option<HttpServer>> {
        match &config.http_listener {
            None => Ok(None),
            Some(listener) => HttpServer::bind(listener, Arc::clone(self) as _).await.map(Some),
        }
    }

    /// The logs are loaded; from here on the rest of the broker can be asked.
    pub(crate) fn loaded(&self, context: &Arc<BrokerContext>) {
        self.context.get_or_init(|| Arc::clone(context));
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Kafka's numbers.
    fn broker_state(&self) -> u64 {
        if self.stopping.load(Ordering::Relaxed) {
            return 6;
        }
        match self.context.get() {
            Some(context) if 0 <= context.broker_epoch().0 => 3,
            Some(_) => 1,
            None if self.loading.snapshot().iter().any(|one| one.logs_done < one.logs_total) => 2,
            None => 1,
        }
    }

    fn reasons(&self) -> Vec<String> {
        if self.stopping.load(Ordering::Relaxed) {
            return vec!["the broker is stopping".to_owned()];
        }
        let Some(context) = self.context.get() else {
            return self.starting();
        };
        let mut reasons = Vec::new();
        match context.zookeeper.current().map(|zookeeper| *zookeeper.state().borrow()) {
            None | Some(SessionState::Ended) => {
                reasons.push("not registered: there is no ZooKeeper session".to_owned());
                return reasons;
            }
            Some(SessionState::Disconnected) => {
                reasons.push("ZooKeeper does not answer; the session is being attached again".to_owned());
            }
            Some(SessionState::Connected) => {}
        }
        match context.shared.lease() {
            None => reasons.push("not registered yet".to_owned()),
            Some(lease) if !lease.is_held() => reasons.push(
                "the lease has run out: ZooKeeper has confirmed no write for half a session timeout"
                    .to_owned(),
            ),
            Some(_) if context.metadata.image().controller_epoch.is_none() => {
                reasons.push("no controller has spoken to this broker since it registered".to_owned());
            }
            Some(_) => {}
        }
        reasons
    }

    /// What is missing before there is more than logs.
    fn starting(&self) -> Vec<String> {
        let all = self.loading.snapshot();
        if all.is_empty() {
            return vec!["the log directories are being opened".to_owned()];
        }
        let loading = all.iter().filter(|one| one.logs_done < one.logs_total).map(|one| {
            format!(
                "the logs in {} are being recovered: {} of {} are done, {} of {} bytes are scanned",
                one.path.display(),
                one.logs_done,
                one.logs_total,
                one.bytes_scanned,
                one.bytes_total
            )
        });
        let loading: Vec<String> = loading.collect();
        if loading.is_empty() {
            vec!["the logs are loaded; there is no ZooKeeper session yet".to_owned()]
        } else {
            loading
        }
    }

    fn directories(&self) -> Vec<DirectoryHealth> {
        let opened = self.context.get().map(|context| context.partitions.directories()).unwrap_or_default();
        let loading = self.loading.snapshot();
        let all = self.log_dirs.iter().map(|path| {
            let opened = opened.iter().find(|directory| directory.path == path);
            let progress = loading.iter().find(|directory| directory.path == *path).cloned();
            let failed = match opened.and_then(|directory| directory.failed) {
                None if progress.is_none() && !loading.is_empty() => {
                    Some("it could not be opened when the broker started; its log says why")
                }
                failed => failed,
            };
            DirectoryHealth {
                path: path.display().to_string(),
                failed: failed.map(str::to_owned),
                space: opened.map_or(Space::Enough, |directory| directory.space),
                progress,
            }
        });
        all.collect()
    }

    fn details(&self, directories: &[DirectoryHealth]) -> Value {
        let context = self.context.get();
        let zookeeper = context.and_then(|context| context.zookeeper.current()).map(|zookeeper| {
            let state = match *zookeeper.state().borrow() {
                SessionState::Connected => "connected",
                SessionState::Disconnected => "disconnected",
                SessionState::Ended => "ended",
            };
            json!({
                "state": state,
                "session": format!("{:#x}", zookeeper.session_id()),
                "attached_again": zookeeper.attached_again(),
            })
        });
        let lease = context.and_then(|context| context.shared.lease());
        json!({
            "broker": self.own.0,
            "broker_epoch": context.map(|context| context.broker_epoch().0).filter(|epoch| 0 <= *epoch),
            "controller_epoch": context.and_then(|context| context.metadata.image().controller_epoch).map(|epoch| epoch.0),
            "zookeeper": zookeeper,
            "lease_remaining_ms": lease.map(|lease| lease.remaining().as_millis()),
            "log_directories": directories.iter().map(DirectoryHealth::details).collect::<Vec<_>>(),
        })
    }
}

impl Observed for Health {
    fn readiness(&self) -> Readiness {
        let directories = self.directories();
        let warnings = directories.iter().filter_map(DirectoryHealth::warning).collect();
        Readiness::new(self.reasons(), warnings, self.details(&directories))
    }

    fn metrics(&self, page: &mut Exposition) {
        let help = "1 if /ready says so.";
        page.gauge("zurau_ready", help, self.reasons().is_empty());
        let help = "1 starting, 2 recovering logs, 3 running, 6 handing over or stopping.";
        page.gauge("kafka_server_kafkaserver_brokerstate", help, self.broker_state());
        let directories = self.directories();
        let offline = directories.iter().filter(|directory| directory.failed.is_some()).count();
        page.gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that cannot be used.",
            offline,
        );
        type Read = fn(&DirectoryProgress) -> u64;
        let families: [(&str, &str, Read); 2] = [
            (
                "kafka_log_logmanager_remaininglogstorecover",
                "Logs still to be opened by this start.",
                |one| (one.logs_total - one.logs_done.min(one.logs_total)) as u64,
            ),
            ("zurau_recovery_remaining_bytes", "Bytes still to be scanned by this start.", |one| {
                one.bytes_total.saturating_sub(one.bytes_scanned)
            }),
        ];
        for (name, help, read) in families {
            let mut family = page.family(name, Kind::Gauge, help);
            for directory in &directories {
                if let Some(progress) = &directory.progress {
                    family.sample(&[("dir", &directory.path)], read(progress));
                }
            }
        }
        self.idle.write(page);
        let zookeeper = self.context.get().and_then(|context| context.zookeeper.current());
        self.sessions.write(zookeeper.map(|zookeeper| *zookeeper.state().borrow()), page);
        if let Some(context) = self.context.get() {
            write_page(context, page);
        }
    }
}

/// One of `log.dirs` at this moment.
struct DirectoryHealth {
    path: String,
    failed: Option<String>,
    space: Space,
    /// `None` before the directory was listed.
    progress: Option<DirectoryProgress>,
}

impl DirectoryHealth {
    fn warning(&self) -> Option<String> {
        let path = &self.path;
        match (&self.failed, self.space) {
            (Some(reason), _) => Some(format!("the log directory {path} is offline: {reason}")),
            (None, Space::Enough) => None,
            (None, Space::Low(_)) => {
                Some(format!("little space is left in {path}: producers are slowed down"))
            }
            (None, Space::Exhausted) => Some(format!("no space is left in {path}: producers are refused")),
        }
    }

    fn details(&self) -> Value {
        let is_loaded = |progress: &DirectoryProgress| progress.logs_total <= progress.logs_done;
        let state = match (&self.failed, &self.progress) {
            (Some(_), _) => "offline",
            (None, Some(progress)) if is_loaded(progress) => "online",
            (None, _) => "recovering",
        };
        let space = match self.space {
            Space::Enough => "enough",
            Space::Low(_) => "low",
            Space::Exhausted => "exhausted",
        };
        json!({
            "path": self.path,
            "state": state,
            "space": space,
            "logs": self.progress.as_ref().map(|progress| progress.logs_total),
            "logs_recovered": self.progress.as_ref().map(|progress| progress.logs_done),
            "bytes_to_scan": self.progress.as_ref().map(|progress| progress.bytes_total),
            "bytes_scanned": self.progress.as_ref().map(|progress| progress.bytes_scanned),
        })
    }
}
