//! Writes: each is validated into a change or a refusal; a multi takes its changes back when one
//! of its operations is refused.

use super::change::Change;
use super::tree::{Lifetime, TTL_MAX_MS};
use super::{ConnectionId, Core, Effects, Now, access, path};
use crate::protocol::code::ErrorCode;
use crate::protocol::reply::Outcome;
use crate::protocol::request::{Create, Write};
use crate::protocol::types::{Acl, Stat, permission};

/// Nodes that belong to ZooKeeper itself and stay.
const PROTECTED: [&str; 4] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

/// A validated operation: what to change (a check changes nothing) and how to answer.
struct Planned {
    change: Option<Change>,
    answer: Answer,
}

enum Answer {
    Path(String),
    PathAndStat(String),
    Stat(String),
    Deleted,
    Checked,
}

impl Core {
    pub(super) fn write(
        &mut self,
        connection: ConnectionId,
        write: Write,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Outcome, ErrorCode> {
        let stamp = self.next_stamp(now);
        let planned = self.plan(connection, write);
        let mut changes = Vec::new();
        let result = planned.map(|planned| {
            if let Some(change) = planned.change {
                self.apply_to_tree(&change, stamp);
                changes.push(change);
            }
            self.outcome(planned.answer)
        });
        self.commit(stamp, changes, effects);
        result
    }

    /// Results in the order of the operations. After a refusal the state is as before: operations
    /// ahead of the refused one answer "would have succeeded", those behind it were not looked at.
    pub(super) fn multi(
        &mut self,
        connection: ConnectionId,
        writes: Vec<Write>,
        now: Now,
        effects: &mut Effects,
    ) -> Vec<Outcome> {
        let stamp = self.next_stamp(now);
        let total = writes.len();
        let (mut outcomes, mut changes, mut undos) = (Vec::new(), Vec::new(), Vec::new());
        for write in writes {
            match self.plan(connection, write) {
                Ok(planned) => {
                    if let Some(change) = planned.change {
                        undos.extend(self.apply_to_tree(&change, stamp));
                        changes.push(change);
                    }
                    // In a multi, 3.8 never tells the stat of a created node.
                    let answer = match planned.answer {
                        Answer::PathAndStat(path) => Answer::Path(path),
                        answer => answer,
                    };
                    outcomes.push(self.outcome(answer));
                }
                Err(error) => {
                    while let Some(undo) = undos.pop() {
                        self.tree.undo(undo);
                    }
                    changes.clear();
                    outcomes.fill(Outcome::RolledBack);
                    outcomes.push(Outcome::Failed(error));
                    outcomes.resize(total, Outcome::Failed(ErrorCode::RuntimeInconsistency));
                    break;
                }
            }
        }
        self.commit(stamp, changes, effects);
        outcomes
    }

    fn outcome(&self, answer: Answer) -> Outcome {
        match answer {
            Answer::Path(path) => Outcome::Created(path),
            Answer::PathAndStat(path) => {
                let stat = self.stat(&path);
                Outcome::CreatedWithStat(path, stat)
            }
            Answer::Stat(path) => Outcome::Set(self.stat(&path)),
            Answer::Deleted => Outcome::Deleted,
            Answer::Checked => Outcome::Checked,
        }
    }

    fn stat(&self, path: &str) -> Stat {
        self.tree.node(path).expect("the change just applied left this node").stat()
    }

    fn plan(&self, connection: ConnectionId, write: Write) -> Result<Planned, ErrorCode> {
        match write {
            Write::Create(create) => self.plan_create(connection, create),
            Write::Delete { path, version } => self.plan_delete(connection, path, version),
            Write::SetData { path, data, version } => {
                self.check_target(connection, &path, permission::WRITE, version)?;
                let answer = Answer::Stat(path.clone());
                Ok(Planned { change: Some(Change::SetData { path, data }), answer })
            }
            Write::SetAcl { path, acls, version } => self.plan_set_acl(connection, path, &acls, version),
            Write::Check { path, version } => {
                self.check_target(connection, &path, permission::READ, version)?;
                Ok(Planned { change: None, answer: Answer::Checked })
            }
        }
    }

    fn check_target(
        &self,
        connection: ConnectionId,
        path: &str,
        wanted: i32,
        version: i32,
    ) -> Result<(), ErrorCode> {
        if !path::is_valid(path) {
            return Err(ErrorCode::BadArguments);
        }
        let node = self.tree.node(path).ok_or(ErrorCode::NoNode)?;
        access::check(&node.acls, wanted, self.identities(connection))?;
        check_version(version, node.version)
    }

    fn plan_set_acl(
        &self,
        connection: ConnectionId,
        path: String,
        acls: &[Acl],
        version: i32,
    ) -> Result<Planned, ErrorCode> {
        if !path::is_valid(&path) {
            return Err(ErrorCode::BadArguments);
        }
        let caller = self.identities(connection);
        let acls = access::resolve(acls, caller)?;
        let node = self.tree.node(&path).ok_or(ErrorCode::NoNode)?;
        access::check(&node.acls, permission::ADMIN, caller)?;
        check_version(version, node.aversion)?;
        let answer = Answer::Stat(path.clone());
        Ok(Planned { change: Some(Change::SetAcls { path, acls }), answer })
    }

    fn plan_create(&self, connection: ConnectionId, create: Create) -> Result<Planned, ErrorCode> {
        let session = self.connections.get(&connection).map_or(0, |open| open.session);
        let (lifetime, sequential) = creation_mode(create.mode, create.ttl_ms, session)?;
        let mut path = create.path;
        let (parent_path, _) = path::split(&path).ok_or(ErrorCode::BadArguments)?;
        let caller = self.identities(connection);
        let acls = access::resolve(&create.acls, caller)?;
        let parent = self.tree.node(parent_path).ok_or(ErrorCode::NoNode)?;
        access::check(&parent.acls, permission::CREATE, caller)?;
        let parent_is_ephemeral = matches!(parent.lifetime(), Lifetime::Ephemeral(_));
        if sequential {
            path.push_str(&format!("{:010}", parent.creations));
        }
        if !path::is_valid(&path) {
            return Err(ErrorCode::BadArguments);
        }
        if self.tree.node(&path).is_some() {
            return Err(ErrorCode::NodeExists);
        }
        if parent_is_ephemeral {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        let answer =
            if create.wants_stat { Answer::PathAndStat(path.clone()) } else { Answer::Path(path.clone()) };
        let owner = lifetime.owner();
        Ok(Planned { change: Some(Change::Create { path, data: create.data, acls, owner }), answer })
    }

    fn plan_delete(
        &self,
        connection: ConnectionId,
        path: String,
        version: i32,
    ) -> Result<Planned, ErrorCode> {
        let (parent_path, _) = path::split(&path).ok_or(ErrorCode::BadArguments)?;
        if PROTECTED.contains(&path.as_str()) {
            return Err(ErrorCode::BadArguments);
        }
        let parent = self.tree.node(parent_path).ok_or(ErrorCode::NoNode)?;
        let node = self.tree.node(&path).ok_or(ErrorCode::NoNode)?;
        access::check(&parent.acls, permission::DELETE, self.identities(connection))?;
        check_version(version, node.version)?;
        if !node.children.is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        Ok(Planned { change: Some(Change::Delete { path }), answer: Answer::Deleted })
    }
}

/// -1 stands for any version.
fn check_version(expected: i32, actual: i32) -> Result<(), ErrorCode> {
    if expected == -1 || expected == actual { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

/// Lifetime of the node to create, and whether it gets a sequence number.
fn creation_mode(mode: i32, ttl_ms: i64, session: i64) -> Result<(Lifetime, bool), ErrorCode> {
    let sequential = matches!(mode, 2 | 3 | 6);
    let lifetime = match mode {
        0 | 2 => Lifetime::Persistent,
        1 | 3 => Lifetime::Ephemeral(session),
        4 => Lifetime::Container,
        5 | 6 if (1..=TTL_MAX_MS).contains(&ttl_ms) => return Ok((Lifetime::TimeToLive(ttl_ms), sequential)),
        _ => return Err(ErrorCode::BadArguments),
    };
    if ttl_ms >= 0 { Err(ErrorCode::BadArguments) } else { Ok((lifetime, sequential)) }
}
