//! The admin's view of ZooKeeper: reads and writes single znodes, dumps trees, waits for values. It knows nothing of
//! the layout; tests spell the paths, as an admin would.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::runtime::Runtime;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::wait::eventually;

const OPERATION_LIMIT: Duration = Duration::from_secs(10);
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// A znode as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub text: String,
    pub version: i32,
    pub czxid: i64,
    pub mzxid: i64,
    /// 0 for a persistent znode.
    pub ephemeral_owner: i64,
}

/// One session with the ensemble, opened anew when it is lost.
pub struct Znodes {
    connect: String,
    runtime: Runtime,
    client: Mutex<Client>,
}

impl Znodes {
    /// # Errors
    /// No session within the limit.
    pub fn connect(connect: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("a runtime for the ZooKeeper client")?;
        let client = runtime.block_on(open(connect))?;
        Ok(Self { connect: connect.to_owned(), runtime, client: Mutex::new(client) })
    }

    /// Runs an operation; after a lost session or connection once more on a new session.
    fn run<T, F>(&self, what: &str, mut operation: impl FnMut(Client) -> F) -> Result<Result<T, Error>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(async {
            for attempt in 0..2 {
                let outcome = tokio::time::timeout(OPERATION_LIMIT, operation(client.clone())).await;
                match outcome {
                    Ok(Err(
                        Error::SessionExpired
                        | Error::ConnectionLoss
                        | Error::ClientClosed
                        | Error::RuntimeInconsistent
                        | Error::Timeout
                        | Error::NoHosts,
                    ))
                    | Err(_)
                        if attempt == 0 =>
                    {
                        *client = open(&self.connect).await?;
                    }
                    Ok(outcome) => return Ok(outcome),
                    Err(_) => bail!("ZooKeeper did not answer within {OPERATION_LIMIT:?}: {what}"),
                }
            }
            bail!("ZooKeeper lost the session twice: {what}")
        })
    }

    /// The znode, or `None` if it does not exist.
    ///
    /// # Errors
    /// ZooKeeper does not answer.
    pub fn get(&self, path: &str) -> Result<Option<Node>> {
        match self.run(path, |client| async move { client.get_data(path).await })? {
            Ok((data, stat)) => Ok(Some(Node {
                text: String::from_utf8_lossy(&data).into_owned(),
                version: stat.version,
                czxid: stat.czxid,
                mzxid: stat.mzxid,
                ephemeral_owner: stat.ephemeral_owner,
            })),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {path}")),
        }
    }

    /// The znode's text, or `None` if it does not exist.
    ///
    /// # Errors
    /// ZooKeeper does not answer.
    pub fn text(&self, path: &str) -> Result<Option<String>> {
        Ok(self.get(path)?.map(|node| node.text))
    }

    /// Names of the children in order; empty if the znode does not exist.
    ///
    /// # Errors
    /// ZooKeeper does not answer.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        match self.run(path, |client| async move { client.list_children(path).await })? {
            Ok(mut names) => {
                names.sort();
                Ok(names)
            }
            Err(Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("listing {path}")),
        }
    }

    /// Creates a persistent znode; its parent must exist.
    ///
    /// # Errors
    /// ZooKeeper refuses or does not answer.
    pub fn create(&self, path: &str, text: &str) -> Result<()> {
        let created = self.run(path, |client| async move {
            client
                .create(path, text.as_bytes(), &CreateMode::Persistent.with_acls(Acls::anyone_all()))
                .await
                .map(|_| ())
        })?;
        created.with_context(|| format!("creating {path}"))
    }

    /// Creates the znode, or sets it if it exists.
    ///
    /// # Errors
    /// ZooKeeper refuses or does not answer.
    pub fn put(&self, path: &str, text: &str) -> Result<()> {
        let set =
            self.run(path, |client| async move { client.set_data(path, text.as_bytes(), None).await })?;
        match set {
            Ok(_) => Ok(()),
            Err(Error::NoNode) => self.create(path, text),
            Err(error) => Err(error).with_context(|| format!("setting {path}")),
        }
    }

    /// Deletes the znode and everything below it. Nothing happens when it does not exist.
    ///
    /// # Errors
    /// ZooKeeper refuses or does not answer.
    pub fn delete(&self, path: &str) -> Result<()> {
        for child in self.children(path)? {
            self.delete(&format!("{path}/{child}"))?;
        }
        match self.run(path, |client| async move { client.delete(path, None).await })? {
            Ok(()) | Err(Error::NoNode) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("deleting {path}")),
        }
    }

    /// Every znode at and below `path` with its text.
    ///
    /// # Errors
    /// ZooKeeper does not answer.
    pub fn tree(&self, path: &str) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            if let Some(text) = self.text(&path)? {
                let separator = if path == "/" { "" } else { "/" };
                for child in self.children(&path)? {
                    open.push(format!("{}{separator}{child}", path));
                }
                found.insert(path, text);
            }
        }
        Ok(found)
    }

    /// Waits until the znode's text satisfies `wanted` (which sees `None` while it does not exist).
    ///
    /// # Errors
    /// It did not within `limit`; the message shows the last text.
    pub fn wait_for(
        &self,
        path: &str,
        limit: Duration,
        wanted: impl Fn(Option<&str>) -> bool,
    ) -> Result<Option<String>> {
        let mut last = None;
        let outcome = eventually(&format!("the right value of {path}"), limit, || {
            last = self.text(path)?;
            Ok(wanted(last.as_deref()).then(|| last.clone()))
        });
        outcome.with_context(|| format!("last value: {last:?}"))
    }
}

async fn open(connect: &str) -> Result<Client> {
    let connecting = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(connect);
    tokio::time::timeout(OPERATION_LIMIT, connecting)
        .await
        .with_context(|| format!("no ZooKeeper session with {connect} within {OPERATION_LIMIT:?}"))?
        .with_context(|| format!("connecting to ZooKeeper at {connect}"))
}
