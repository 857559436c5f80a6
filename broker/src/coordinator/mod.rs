//! What the coordinators of groups and of transactions have in common.

mod topic;

#[cfg(test)]
pub(crate) use topic::partition_of;
pub(crate) use topic::{CoordinatorTopic, setting};
