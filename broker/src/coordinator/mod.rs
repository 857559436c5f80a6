//! What the coordinators of groups and of transactions have in common.
//!
//! Reading order: `step` (words of every core), `timers`, `stored` and `batch` are pure. Then the shells: `load` replays
//! a partition into a core, `writer` appends what a core writes, `replies` knows who waits for an
//! answer, `offices` has a core for each partition that this broker leads, `topic` knows which partition a key belongs to.

mod batch;

mod load;

mod offices;

mod replies;

mod step;

mod stored;

mod timers;

mod topic;

mod writer;

pub(crate) use batch::Producer;
#[cfg(test)]
pub(crate) use batch::{BatchStyle, KeyValue, encode_batch};
pub(crate) use load::Replay;
#[cfg(test)]
pub(crate) use load::replay;
#[cfg(test)]
pub(crate) use load::{LoadError, Loaded, load};
pub(crate) use offices::{Kind, Office, Offices};
pub(crate) use replies::Replies;
pub(crate) use step::{Now, ReplyId, WriteId, WriteOutcome};
pub(crate) use stored::{
    Reader, RecordProblem, put_compact_length, put_compact_nullable_string, put_compact_string, put_string,
    put_unsigned_varint,
};
pub(crate) use timers::Timers;
#[cfg(test)]
pub(crate) use topic::partition_of;
pub(crate) use topic::{CoordinatorTopic, setting};
pub(crate) use writer::{WriteSettings, Writer};
