//! Consumer groups of the classic and of the consumer protocol (KIP-848): who reads what, and how far they are.
//!
//! Reading order: `records` (what is stored), `request` (what clients ask), `group` (the states of a group) with
//! `join`, `membership` and `offsets`, `consumer` (what a group of the consumer protocol is beyond that), and `shard`
//! (all groups of one partition of `__consumer_offsets`): these are pure, with `outbox` beside them. Then the shells: `worker` (owns a shard), `coordinator` (all shards of this broker)
//! and `upkeep`.

mod records;

mod request;

mod outbox;

mod group;

mod join;

mod membership;

mod consumer;

mod offsets;

mod shard;

mod worker;

mod coordinator;

mod upkeep;

pub(crate) use consumer::{
    ConsumerDescribeRequest, ConsumerDescription, ConsumerHeartbeatRequest, ConsumerRefusal,
    HeartbeatOutcome, NamedPartitions, Partitions,
};
#[cfg(test)]
pub(crate) use consumer::{ConsumerHeartbeatAnswer, DescribedConsumer};
pub(crate) use coordinator::GroupCoordinator;
pub(crate) use group::GroupState;
pub(crate) use outbox::Tally;
#[cfg(test)]
pub(crate) use outbox::{Effect, GroupSettings};
pub(crate) use records::GroupId;
#[cfg(test)]
pub(crate) use records::GroupRecord;
#[cfg(test)]
pub(crate) use request::{Answer, Request};
pub(crate) use request::{
    CommitRequest, CommittedTopic, DeleteOffsetsRequest, DeleteRequest, DescribeRequest, Description,
    FetchRequest, FetchedOffset, FetchedTopic, HeartbeatRequest, JoinAnswer, JoinRequest, LeaveRequest,
    LeavingMember, Listing, OffsetToCommit, Protocol, Summary, SyncRequest, Synced, Transaction,
};
#[cfg(test)]
pub(crate) use request::{DescribedMember, JoinedMember};
#[cfg(test)]
pub(crate) use shard::{Event, Shard};
pub(crate) use upkeep::run;

#[cfg(test)]
mod tests;
