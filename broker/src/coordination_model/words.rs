//! What applications ask of group coordinators, in the words of the core, and back.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::client::INPUTS;
use super::messages::{Answered, Asked};
use crate::groups::{
    Answer, CommitRequest, FetchRequest, HeartbeatRequest, JoinRequest, OffsetToCommit, Protocol, Request,
    SyncRequest, Transaction,
};
use crate::log::Verification;

const SESSION_MS: i32 = 10_000;

pub(super) fn request(what: &Asked, verification: Option<Verification>, fresh: u64) -> Request {
    match what {
        Asked::Join { member } => Request::Join(JoinRequest {
            member_id: member.as_str().into(),
            instance_id: None,
            client_id: "application".into(),
            client_host: "/127.0.0.1".into(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: SESSION_MS,
            protocol_type: "consumer".into(),
            protocols: vec![Protocol { name: "range".into(), metadata: Bytes::new() }],
            requires_known_member_id: true,
            supports_skipping_assignment: true,
            fresh_id: format!("{fresh:04}").into(),
        }),
        Asked::Sync { generation, member, assignments } => Request::Sync(SyncRequest {
            generation: *generation,
            member_id: member.as_str().into(),
            instance_id: None,
            protocol_type: None,
            protocol: None,
            assignments: assignments
                .iter()
                .map(|(member, inputs)| {
                    let inputs: Vec<u8> =
                        inputs.iter().map(|input| u8::try_from(*input).expect("a small number")).collect();
                    (member.as_str().into(), inputs.into())
                })
                .collect(),
        }),
        Asked::Heartbeat { generation, member } => Request::Heartbeat(HeartbeatRequest {
            generation: *generation,
            member_id: member.as_str().into(),
            instance_id: None,
        }),
        Asked::Offsets => Request::Fetch(FetchRequest {
            topics: Some(vec![("input".into(), (0..INPUTS).collect())]),
            require_stable: true,
            member: None,
        }),
        Asked::CommitOffsets { producer, generation, member, input, offset, .. } => {
            let verification = verification.expect("it was verified");
            Request::Commit(CommitRequest {
                generation: *generation,
                knows_member_epochs: false,
                member_id: member.as_str().into(),
                instance_id: None,
                retention_ms: None,
                transaction: Some(Transaction { producer: *producer, verification }),
                topics: vec![(
                    "input".into(),
                    vec![OffsetToCommit {
                        partition: *input,
                        offset: *offset,
                        leader_epoch: -1,
                        metadata: "".into(),
                        commit_time_ms: None,
                    }],
                )],
            })
        }
        other => panic!("{other:?} is for no group coordinator"),
    }
}

pub(super) fn answered(answer: Answer) -> Answered {
    match answer {
        Answer::Join(answer) => Answered::Join(answer),
        Answer::Sync(synced) => Answered::Sync(
            synced.map(|synced| synced.assignment.iter().map(|input| i32::from(*input)).collect()),
        ),
        Answer::Heartbeat(outcome) => Answered::Done(outcome),
        Answer::Commit(topics) => {
            let refused =
                topics.iter().flat_map(|(_, partitions)| partitions).find_map(|(_, refused)| *refused);
            Answered::Done(refused.map_or(Ok(()), Err))
        }
        Answer::Fetch(Ok(topics)) => {
            let mut positions = BTreeMap::new();
            for offset in topics.iter().flat_map(|(_, offsets)| offsets) {
                if let Some(rejection) = offset.rejection {
                    return Answered::Offsets(Err(rejection));
                }
                positions.insert(offset.partition, offset.offset.max(0));
            }
            Answered::Offsets(Ok(positions))
        }
        Answer::Fetch(Err(rejection)) => Answered::Offsets(Err(rejection)),
        other => panic!("nobody asked for {other:?}"),
    }
}
