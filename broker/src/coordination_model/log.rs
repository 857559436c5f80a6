//! A replicated partition: what is committed, and what each broker that believes to lead it holds. Admission of batches,
//! producers and the last stable offset are the production code; the list of batches stands for the files.

use std::collections::BTreeMap;

use bytes::Bytes;
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use crate::log::{
    Admission, AppendOrigin, BatchHeader, HEADER_BYTES, Marker, ProducerStates, TurnedAway, Verification,
    Verifications,
};
use crate::partition::ProduceRejection;

/// A broker, by its number.
pub(super) type Node = usize;

/// A partition of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Transactions,
    Offsets,
    Output(i32),
}

/// Partitions that the applications write to.
pub(super) const OUTPUTS: i32 = 2;

impl Place {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        [Self::Transactions, Self::Offsets].into_iter().chain((0..OUTPUTS).map(Self::Output))
    }

    pub(super) fn id(self) -> TopicPartition {
        match self {
            Self::Transactions => TopicPartition::new("__transaction_state", 0),
            Self::Offsets => TopicPartition::new("__consumer_offsets", 0),
            Self::Output(number) => TopicPartition::new("output", number),
        }
    }

    pub(super) fn of(id: &TopicPartition) -> Self {
        Self::all().find(|place| place.id() == *id).expect("a partition of the world")
    }
}

/// Who waits until a batch is committed; a name of the world's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Token(pub(super) u64);

/// What an append came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Appended {
    pub(super) first_offset: i64,
    /// Committed when the high watermark is there.
    pub(super) end: i64,
}

/// A broker's leadership, which may be over without its knowledge.
#[derive(Debug)]
pub(super) struct Lead {
    pub(super) epoch: i32,
    batches: Vec<Bytes>,
    pub(super) end: i64,
    pub(super) high_watermark: i64,
    pub(super) producers: ProducerStates,
    pub(super) verifications: Verifications,
    turned_away: TurnedAway,
    /// By the offset that they wait for.
    waiting: Vec<(i64, Token)>,
}

fn parse(batch: &Bytes) -> (BatchHeader, Option<Marker>) {
    let header = BatchHeader::parse(batch).expect("what is appended is whole");
    let marker = Marker::parse(&header, &batch[HEADER_BYTES..]);
    (header, marker)
}

/// Offset and epoch are not covered by the checksum.
fn stamp(batch: &Bytes, offset: i64, epoch: i32) -> Bytes {
    let mut bytes = batch.to_vec();
    bytes[0..8].copy_from_slice(&offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&epoch.to_be_bytes());
    bytes.into()
}

impl Lead {
    fn new(epoch: i32, batches: Vec<Bytes>, high_watermark: i64) -> Self {
        let mut producers = ProducerStates::new(0);
        let mut end = 0;
        for batch in &batches {
            let (header, marker) = parse(batch);
            if let Some(completed) = producers.adopt(&header, marker) {
                producers.complete(&completed);
            }
            end = header.next_offset();
        }
        producers.note_high_watermark(high_watermark);
        Self {
            epoch,
            batches,
            end,
            high_watermark,
            producers,
            verifications: Verifications::default(),
            turned_away: TurnedAway::default(),
            waiting: Vec::new(),
        }
    }

    pub(super) fn append(
        &mut self,
        batch: &Bytes,
        (origin, verification): (AppendOrigin, Verification),
        now_ms: i64,
    ) -> Result<Appended, Rejection> {
        let stamped = stamp(batch, self.end, self.epoch);
        let (header, marker) = parse(&stamped);
        let (verifications, turned_away) = (&self.verifications, &self.turned_away);
        let admission = Admission { origin, verification, verifications, turned_away, now_ms };
        let checked = self.producers.check(&[header], &[marker], &admission);
        if let Some(stored) = checked.map_err(|error| ProduceRejection::from(error).rejection)? {
            return Ok(Appended { first_offset: stored.first_offset(), end: stored.last_offset + 1 });
        }
        if header.is_transactional() {
            self.verifications.note(&header);
        }
        if let Some(completed) = self.producers.adopt(&header, marker) {
            self.producers.complete(&completed);
        }
        self.batches.push(stamped);
        self.end = header.next_offset();
        Ok(Appended { first_offset: header.base_offset, end: self.end })
    }

    pub(super) fn wait(&mut self, end: i64, token: Token) {
        self.waiting.push((end, token));
    }

    /// min(high watermark, first offset of an undecided transaction) (T3).
    pub(super) fn last_stable_offset(&self) -> i64 {
        self.high_watermark.min(self.producers.first_unstable_offset().unwrap_or(i64::MAX))
    }

    /// What a coordinator loads.
    pub(super) fn committed(&self) -> impl Iterator<Item = &Bytes> {
        self.batches.iter().filter(|batch| parse(batch).0.next_offset() <= self.high_watermark)
    }
}

/// One partition.
#[derive(Debug)]
pub(super) struct Replicated {
    /// The current leader: the only one that can commit.
    pub(super) leader: Node,
    epoch: i32,
    /// Every broker that believes to lead.
    pub(super) leads: BTreeMap<Node, Lead>,
    /// Below the highest watermark that ever was. It only grows.
    pub(super) committed: Vec<Bytes>,
    /// Fewer replicas are in sync than `min.insync.replicas` asks for.
    pub(super) is_small: bool,
}

impl Replicated {
    pub(super) fn new(leader: Node) -> Self {
        let leads = BTreeMap::from([(leader, Lead::new(0, Vec::new(), 0))]);
        Self { leader, epoch: 0, leads, committed: Vec::new(), is_small: false }
    }

    pub(super) fn current(&self) -> &Lead {
        &self.leads[&self.leader]
    }

    /// Whether the current leader has something that is not committed.
    pub(super) fn can_commit(&self) -> bool {
        self.current().high_watermark < self.current().end
    }

    /// So many more batches are on all replicas. Returns whose wait is over.
    pub(super) fn commit(&mut self, batches: usize) -> Vec<Token> {
        let lead = self.leads.get_mut(&self.leader).expect("the leader leads");
        let more = lead.batches.iter().map(|batch| parse(batch).0.next_offset());
        let reached = more.filter(|end| lead.high_watermark < *end).take(batches).last();
        lead.high_watermark = reached.unwrap_or(lead.high_watermark);
        lead.producers.note_high_watermark(lead.high_watermark);
        let committed: Vec<Bytes> = lead.committed().cloned().collect();
        if self.committed.len() < committed.len() {
            self.committed = committed;
        }
        let done = |(end, _): &(i64, Token)| *end <= lead.high_watermark;
        let (over, waiting) = std::mem::take(&mut lead.waiting).into_iter().partition::<Vec<_>, _>(done);
        lead.waiting = waiting;
        over.into_iter().map(|(_, token)| token).collect()
    }

    /// Another epoch: what is committed stays, and of the rest the first `kept` batches. Whoever led before goes on until
    /// it hears of it; one that leads again keeps its log and who waits (N19).
    pub(super) fn elect(&mut self, node: Node, kept: usize) {
        self.epoch += 1;
        let old = self.current();
        let (log, high_watermark) = (old.batches.clone(), old.high_watermark);
        if node == self.leader {
            let lead = self.leads.get_mut(&node).expect("the leader leads");
            lead.epoch = self.epoch;
            return;
        }
        let committed = self.committed.len();
        let batches: Vec<Bytes> = log.into_iter().take(committed + kept).collect();
        // A follower may know a lower high watermark than its leader.
        let known = if kept == 0 { high_watermark } else { 0 };
        self.leads.insert(node, Lead::new(self.epoch, batches, known));
        self.leader = node;
    }

    /// A broker learns that it leads no more. Returns who waited there in vain.
    pub(super) fn resign(&mut self, node: Node) -> Vec<Token> {
        assert_ne!(node, self.leader, "only who was replaced");
        let lead = self.leads.remove(&node);
        lead.into_iter().flat_map(|lead| lead.waiting).map(|(_, token)| token).collect()
    }
}
