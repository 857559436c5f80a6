//! Reads of a session. A read may be repeated without harm, so one whose answer was lost waits for the next connection
//! and asks again, for one session timeout.

use std::future::Future;

use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use zookeeper_client as zk;
use zookeeper_client::{Client, MultiReadResult};

use super::op::Node;
use super::session::{NoClient, ZooKeeper};

/// Paths in one multi-read: four for each of 200 partitions and some more, because 840 is a multiple of every number
/// up to 8. So the paths of one partition, as many of each, are never torn apart.
const PATHS_PER_READ: usize = 840;
/// Multi-reads under way (coordination.md, section 6: measured).
const READS_IN_FLIGHT: usize = 8;

/// Why a read has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No connection for one session timeout. The session may live on.
    #[error("ZooKeeper could not be read: no connection for one session timeout")]
    ConnectionLoss,
    #[error("ZooKeeper could not be read: the session has ended")]
    SessionEnded,
    #[error("ZooKeeper refused a read: {0}")]
    Refused(String),
}

impl From<NoClient> for ReadError {
    fn from(reason: NoClient) -> Self {
        match reason {
            NoClient::NotConnected => Self::ConnectionLoss,
            NoClient::SessionEnded => Self::SessionEnded,
        }
    }
}

impl ZooKeeper {
    /// The znode, or `None` when there is none.
    pub async fn get(&self, path: &str) -> Result<Option<Node>, ReadError> {
        let path = path.to_owned();
        let found = self.read(move |client| {
            let path = path.clone();
            async move { absent_as_none(client.get_data(&path).await) }
        });
        Ok(found.await?.map(|(data, stat)| node(data, &stat)))
    }

    /// Names of the children, in no order; `None` when the znode itself is missing.
    pub async fn children(&self, path: &str) -> Result<Option<Vec<String>>, ReadError> {
        let path = path.to_owned();
        self.read(move |client| {
            let path = path.clone();
            async move { absent_as_none(client.list_children(&path).await) }
        })
        .await
    }

    pub async fn exists(&self, path: &str) -> Result<bool, ReadError> {
        let path = path.to_owned();
        let stat = self.read(move |client| {
            let path = path.clone();
            async move { client.check_stat(&path).await }
        });
        Ok(stat.await?.is_some())
    }

    /// When the data of the znode was last changed, in milliseconds since 1970 by ZooKeeper's clock; `None` when there
    /// is no such znode.
    pub async fn modified_ms(&self, path: &str) -> Result<Option<i64>, ReadError> {
        let path = path.to_owned();
        let stat = self.read(move |client| {
            let path = path.clone();
            async move { client.check_stat(&path).await }
        });
        Ok(stat.await?.map(|stat| stat.mtime))
    }

    /// Lets the server that answers this session catch up with its leader: later reads see what was stored before.
    pub async fn sync(&self, path: &str) -> Result<(), ReadError> {
        let path = path.to_owned();
        self.read(move |client| {
            let path = path.clone();
            async move { client.sync(&path).await }
        })
        .await
    }

    /// Many znodes, in the order of the paths; `None` where there is none. The whole is not read at one moment, but
    /// groups of up to 8 paths are, when `paths` consists of nothing but groups of that size: `ISR` and `ELR` of a
    /// partition belong in one group.
    pub async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Node>>, ReadError> {
        self.read_slices(paths, true, |result| match result {
            MultiReadResult::Data { data, stat } => Ok(Some(node(data, &stat))),
            other => absent_or_error(other),
        })
        .await
    }

    /// Children of many znodes, in the order of the paths; `None` where the znode itself is missing.
    pub async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, ReadError> {
        self.read_slices(paths, false, |result| match result {
            MultiReadResult::Children { children } => Ok(Some(children)),
            other => absent_or_error(other),
        })
        .await
    }

    async fn read_slices<T>(
        &self,
        paths: &[String],
        data: bool,
        convert: fn(MultiReadResult) -> Result<Option<T>, ReadError>,
    ) -> Result<Vec<Option<T>>, ReadError> {
        let slices: Vec<Vec<String>> = paths.chunks(PATHS_PER_READ).map(<[String]>::to_vec).collect();
        let answers: Vec<Vec<MultiReadResult>> =
            stream::iter(slices.into_iter().map(|s| self.read_slice(s, data)))
                .buffered(READS_IN_FLIGHT)
                .try_collect()
                .await?;
        answers.into_iter().flatten().map(convert).collect()
    }

    async fn read_slice(&self, paths: Vec<String>, data: bool) -> Result<Vec<MultiReadResult>, ReadError> {
        let expected = paths.len();
        let results = self
            .read(move |client| {
                let paths = paths.clone();
                async move {
                    let mut reader = client.new_multi_reader();
                    for path in &paths {
                        if data { reader.add_get_data(path)? } else { reader.add_get_children(path)? }
                    }
                    reader.commit().await
                }
            })
            .await?;
        if results.len() != expected {
            return Err(ReadError::Refused(format!("{} answers to {expected} paths", results.len())));
        }
        Ok(results)
    }

    async fn read<T, F>(&self, request: impl Fn(Client) -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, zk::Error>>,
    {
        let deadline = Instant::now() + self.session_timeout();
        let mut dead_generation = 0;
        loop {
            let (client, generation) = self.client(dead_generation, deadline).await?;
            let began = Instant::now();
            let answer = tokio::select! {
                biased;
                answer = request(client) => answer,
                () = self.inner.closing.cancelled() => return Err(ReadError::SessionEnded),
                // A silent server is noticed by the client only later, and by its own clock.
                () = tokio::time::sleep_until(deadline) => {
                    self.inner.metrics.answered(began.elapsed());
                    return Err(ReadError::ConnectionLoss);
                }
            };
            if !matches!(answer, Err(zk::Error::SessionExpired | zk::Error::ClientClosed)) {
                self.inner.metrics.answered(began.elapsed());
            }
            match answer {
                Ok(answer) => return Ok(answer),
                // The client is dead; whether the session is, the next attachment will tell.
                Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => dead_generation = generation,
                Err(zk::Error::ConnectionLoss | zk::Error::Custom(_) | zk::Error::Timeout) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => return Err(ReadError::Refused(error.to_string())),
            }
        }
    }
}

fn node(data: Vec<u8>, stat: &zk::Stat) -> Node {
    Node {
        data,
        version: stat.version,
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

fn absent_as_none<T>(answer: Result<T, zk::Error>) -> Result<Option<T>, zk::Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

fn absent_or_error<T>(result: MultiReadResult) -> Result<Option<T>, ReadError> {
    match result {
        MultiReadResult::Error { err: zk::Error::NoNode } => Ok(None),
        MultiReadResult::Error { err } => Err(ReadError::Refused(err.to_string())),
        other => Err(ReadError::Refused(format!("an answer of another kind than was asked for: {other:?}"))),
    }
}
