//! Writes of a session. A write is sent at most once: when its answer is lost the caller must look (L2). Each
//! confirmed write renews the lease from the moment when it was sent.

use std::sync::Weak;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};
use tracing::debug;
use zookeeper_client as zk;
use zookeeper_client::{Acls, Client, CreateMode, MultiWriteError, MultiWriteResult};

use super::batch::{batches, pack, weight};
use super::lease::BootTime;
use super::op::{Lifetime, MultiError, Op, OpFailure, OpResult};
use super::read::ReadError;
use super::session::{Inner, NoClient, ZooKeeper};
use super::znode::{PERSISTENT_PARENTS, Znode};
use crate::id::BrokerId;

/// Requests of one [`ZooKeeper::multi_batched`] under way: the server makes several of them durable with one sync.
const BATCHES_IN_FLIGHT: usize = 4;
/// Above 1 MiB (jute.maxbuffer) the server drops the connection without a word, again and again.
const LARGEST_MULTI: usize = 1_000_000;

impl From<NoClient> for MultiError {
    fn from(reason: NoClient) -> Self {
        match reason {
            NoClient::NotConnected => Self::Refused("not connected; nothing was sent".to_owned()),
            NoClient::SessionEnded => Self::SessionEnded,
        }
    }
}

impl ZooKeeper {
    /// All operations, or none. One result per operation.
    ///
    /// # Errors
    /// See [`MultiError`]. `Refused` and `Failed` say that nothing was stored; only `Unknown` leaves it open. While
    /// there is no connection the multi waits for one session timeout before it is refused.
    pub async fn multi(&self, ops: &[Op]) -> Result<Vec<OpResult>, MultiError> {
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = weight(ops);
        if bytes > LARGEST_MULTI {
            return Err(MultiError::Refused(format!(
                "a multi of {bytes} bytes is larger than the {LARGEST_MULTI} that ZooKeeper takes"
            )));
        }
        let deadline = Instant::now() + self.session_timeout();
        let mut dead_generation = 0;
        loop {
            let (client, generation) = self.client(dead_generation, deadline).await?;
            let sent = BootTime::now();
            let began = Instant::now();
            let answer = tokio::select! {
                biased;
                answer = commit(client, ops) => answer,
                () = self.inner.closing.cancelled() => return Err(MultiError::Unknown),
            };
            // A refusal may be our own.
            if matches!(answer, Ok(Answer::Stored(_)) | Err(MultiError::Failed { .. } | MultiError::Unknown))
            {
                self.inner.metrics.answered(began.elapsed());
            }
            match answer? {
                Answer::Stored(results) => {
                    self.inner.lease.confirm(sent);
                    return Ok(results);
                }
                Answer::NeverSent => dead_generation = generation,
            }
        }
    }

    /// Creates a persistent znode. `false` when there is one already, whatever it holds.
    pub async fn create_if_absent(&self, path: &str, data: &[u8]) -> Result<bool, MultiError> {
        let op = Op::Create { path: path.to_owned(), data: data.to_vec(), lifetime: Lifetime::Persistent };
        match self.multi(&[op]).await {
            Ok(_) => Ok(true),
            Err(MultiError::Failed { reason: OpFailure::NodeExists, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates every persistent parent of the layout that is missing.
    pub async fn ensure_parents(&self) -> Result<(), MultiError> {
        self.create_parents(PERSISTENT_PARENTS).await
    }

    /// Creates those of the persistent znodes that are missing; parents come before children in `paths`. After a lost
    /// answer it looks again.
    pub async fn create_parents(&self, paths: &[&str]) -> Result<(), MultiError> {
        let mut looks = 0;
        loop {
            looks += 1;
            match self.create_missing(paths).await {
                Err(MultiError::Unknown) if looks < 5 => {}
                result => return result,
            }
        }
    }

    async fn create_missing(&self, paths: &[&str]) -> Result<(), MultiError> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let found = self.get_many(&paths).await.map_err(|error| match error {
            ReadError::SessionEnded => MultiError::SessionEnded,
            other => MultiError::Refused(other.to_string()),
        })?;
        for (path, node) in paths.iter().zip(found) {
            if node.is_none() {
                self.create_if_absent(path, b"").await?;
            }
        }
        Ok(())
    }

    /// Many independent multis, packed 250 or 256 KiB to one request, some of which are under way at a time. Where one
    /// fails, it alone bears the error: the others are sent again in smaller requests. Results in the order of the groups.
    ///
    /// The groups must not depend on one another: each could be stored without the others, and before them.
    pub async fn multi_batched<K>(
        &self,
        groups: Vec<(K, Vec<Op>)>,
    ) -> Vec<(K, Result<Vec<OpResult>, MultiError>)> {
        let (keys, groups): (Vec<K>, Vec<Vec<Op>>) = groups.into_iter().unzip();
        let mut results: Vec<Option<Result<Vec<OpResult>, MultiError>>> = vec![None; groups.len()];
        let mut stack = batches(&groups);
        stack.reverse();
        let mut under_way = FuturesUnordered::new();
        // Never sent: what has not been sent yet would wait and fail likewise.
        let mut hopeless: Option<MultiError> = None;
        loop {
            while hopeless.is_none()
                && under_way.len() < BATCHES_IN_FLIGHT
                && let Some(range) = stack.pop()
            {
                let groups = &groups[range.clone()];
                under_way.push(async move { (range, self.multi_of(groups).await) });
            }
            let Some((range, outcome)) = under_way.next().await else { break };
            match outcome {
                Ok(stored) => {
                    let mut stored = stored.into_iter();
                    for index in range {
                        results[index] = Some(Ok(stored.by_ref().take(groups[index].len()).collect()));
                    }
                }
                Err(Culprit { group: Some(culprit), error }) => {
                    let culprit = range.start + culprit;
                    results[culprit] = Some(Err(error));
                    // What stands before the culprit has passed; behind it more may fail, hence the halves.
                    let middle = culprit + 1 + (range.end - culprit - 1) / 2;
                    for rest in [middle..range.end, culprit + 1..middle, range.start..culprit] {
                        if !rest.is_empty() {
                            stack.push(rest);
                        }
                    }
                }
                Err(Culprit { group: None, error }) => {
                    range.for_each(|index| results[index] = Some(Err(error.clone())));
                    if error != MultiError::Unknown {
                        hopeless = Some(error);
                    }
                }
            }
        }
        let results = results.into_iter().map(|result| {
            let unsent = || hopeless.clone().map(Err);
            result.or_else(unsent).expect("every range was answered")
        });
        keys.into_iter().zip(results).collect()
    }

    /// Groups as one multi: results of all their operations, or who is to blame.
    async fn multi_of(&self, groups: &[Vec<Op>]) -> Result<Vec<OpResult>, Culprit> {
        let packed = pack(groups);
        match self.multi(&packed.ops).await {
            Ok(stored) => Ok(packed.unpack(groups.iter().map(Vec::len).sum(), stored, &OpResult::Checked)),
            Err(MultiError::Failed { index, path, reason }) => {
                let (group, index) = packed.locate(groups, index);
                Err(Culprit { group: Some(group), error: MultiError::Failed { index, path, reason } })
            }
            Err(error) => Err(Culprit { group: None, error }),
        }
    }

    /// Keeps the lease by setting `/leases/[broker]` every eighth of the session timeout, unless another write was
    /// confirmed lately. Goes on until the session ends or its last clone is dropped; call it once per session.
    pub fn keep_lease(&self, broker: BrokerId) {
        let inner = std::sync::Arc::downgrade(&self.inner);
        let closing = self.inner.closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = keep(inner, broker) => {}
                () = closing.cancelled() => {}
            }
        });
    }
}

async fn keep(inner: Weak<Inner>, broker: BrokerId) {
    let path = Znode::Lease(broker).path();
    loop {
        let Some(due) = inner.upgrade().map(|inner| inner.lease.renewal_due_in()) else { return };
        if due > Duration::ZERO {
            sleep(due).await;
            continue;
        }
        let Some(inner) = inner.upgrade() else { return };
        let zookeeper = ZooKeeper { inner };
        let set = Op::SetData { path: path.clone(), data: Vec::new(), version: None };
        if let Err(error) = zookeeper.multi(&[set]).await {
            debug!(%broker, "the lease was not renewed: {error}");
            let pause = zookeeper.session_timeout() / 8;
            drop(zookeeper);
            sleep(pause).await;
        }
    }
}

/// Why a multi of several groups was not stored.
struct Culprit {
    /// The one whose operation failed, if it was one.
    group: Option<usize>,
    error: MultiError,
}

enum Answer {
    Stored(Vec<OpResult>),
    /// The client had given up before it could send.
    NeverSent,
}

async fn commit(client: Client, ops: &[Op]) -> Result<Answer, MultiError> {
    let mut writer = client.new_multi_writer();
    // For each operation on the wire, the caller's operation it stands for.
    let mut origins = Vec::with_capacity(ops.len());
    for (index, op) in ops.iter().enumerate() {
        let added = add(&mut writer, op).map_err(|error| refused(op, &error))?;
        origins.extend(std::iter::repeat_n(index, added));
    }
    match writer.commit().await {
        Ok(answers) if answers.len() == origins.len() => Ok(Answer::Stored(results(ops, &origins, &answers))),
        Ok(_) => Err(MultiError::Unknown),
        Err(MultiWriteError::OperationFailed { index, source }) => {
            let index = origins.get(index).copied().ok_or(MultiError::Unknown)?;
            Err(MultiError::Failed { index, path: ops[index].path().to_owned(), reason: failure(&source) })
        }
        Err(MultiWriteError::RequestFailed { source }) => request_failed(source),
    }
}

/// Adds the operation, and says how many it has become.
fn add(writer: &mut zk::MultiWriter<'_>, op: &Op) -> Result<usize, zk::Error> {
    let anyone = Acls::anyone_all();
    if let Op::CheckVersion { version: ..0, .. }
    | Op::SetData { version: Some(..0), .. }
    | Op::Delete { version: Some(..0), .. } = op
    {
        return Err(zk::Error::BadArguments(&"a negative version would mean any version"));
    }
    match op {
        Op::CheckExists { path } => writer.add_check_version(path, -1)?,
        Op::CheckVersion { path, version } => writer.add_check_version(path, *version)?,
        Op::CheckAbsent { path } => {
            writer.add_create(path, b"", &CreateMode::Persistent.with_acls(anyone))?;
            writer.add_delete(path, None)?;
            return Ok(2);
        }
        Op::Create { path, data, lifetime } => {
            let mode = match lifetime {
                Lifetime::Persistent => CreateMode::Persistent,
                Lifetime::Ephemeral => CreateMode::Ephemeral,
            };
            writer.add_create(path, data, &mode.with_acls(anyone))?;
        }
        Op::SetData { path, data, version } => writer.add_set_data(path, data, *version)?,
        Op::Delete { path, version } => writer.add_delete(path, *version)?,
    }
    Ok(1)
}

fn refused(op: &Op, error: &zk::Error) -> MultiError {
    MultiError::Refused(format!("{} cannot be sent: {error}", op.path()))
}

/// The answer of an operation's last part is the answer of the operation.
fn results(ops: &[Op], origins: &[usize], answers: &[MultiWriteResult]) -> Vec<OpResult> {
    let mut results: Vec<OpResult> = vec![OpResult::Checked; ops.len()];
    for (origin, answer) in origins.iter().zip(answers) {
        results[*origin] = match (&ops[*origin], answer) {
            (Op::CheckAbsent { .. }, _) => OpResult::Checked,
            (_, MultiWriteResult::Create { .. }) => OpResult::Created,
            (_, MultiWriteResult::Delete) => OpResult::Deleted,
            (_, MultiWriteResult::SetData { stat }) => {
                OpResult::Set { version: stat.version, mzxid: stat.mzxid }
            }
            _ => OpResult::Checked,
        };
    }
    results
}

fn failure(error: &zk::Error) -> OpFailure {
    match error {
        zk::Error::NoNode => OpFailure::NoNode,
        zk::Error::NodeExists => OpFailure::NodeExists,
        zk::Error::BadVersion => OpFailure::BadVersion,
        zk::Error::NotEmpty => OpFailure::NotEmpty,
        _ => OpFailure::Other,
    }
}

/// The request as a whole failed. Whatever is not known to be a refusal may have been stored.
fn request_failed(error: zk::Error) -> Result<Answer, MultiError> {
    match error {
        // Either the server says that the session is over, and then it stored nothing of it; or the client gave up by
        // its own clock, and says so of those requests only that it had not sent.
        zk::Error::SessionExpired | zk::Error::ClientClosed => Ok(Answer::NeverSent),
        zk::Error::NoAuth
        | zk::Error::AuthFailed
        | zk::Error::InvalidAcl
        | zk::Error::NotReadOnly
        | zk::Error::QuotaExceeded
        | zk::Error::SessionMoved
        | zk::Error::Throttled
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented
        | zk::Error::BadArguments(_) => Err(MultiError::Refused(error.to_string())),
        _ => Err(MultiError::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_refusal_counts_as_not_stored() {
        assert!(matches!(request_failed(zk::Error::ConnectionLoss), Err(MultiError::Unknown)));
        assert!(matches!(request_failed(zk::Error::Timeout), Err(MultiError::Unknown)));
        assert!(matches!(request_failed(zk::Error::UnexpectedErrorCode(-7)), Err(MultiError::Unknown)));
        assert!(matches!(request_failed(zk::Error::Throttled), Err(MultiError::Refused(_))));
        assert!(matches!(request_failed(zk::Error::SessionExpired), Ok(Answer::NeverSent)));
    }
}
