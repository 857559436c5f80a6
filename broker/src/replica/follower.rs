//! The follower of a partition: what it asks of its leader, and what an answer means for its log. It truncates by
//! leader epoch only, never by high watermark (KIP-101, KIP-279, R16), and acts on no answer to a question that it
//! would not ask any more (cases/invariants.md, mutations 7 and 8).

use zurau_common::id::{BrokerId, LeaderEpoch};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

/// Where an epoch ends in a log, as a leader answers it: the largest epoch not above the asked one and its exclusive
/// end. −1 and −1 when the leader knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEndOffset {
    pub leader_epoch: i32,
    pub end_offset: i64,
}

/// The follower's state: whom it fetches from, in which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follower {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
}

/// A follower's question: "what follows `offset`, which I reached under `last_fetched_epoch`?"
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPosition {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    /// The follower's log end.
    pub offset: i64,
    /// Epoch of its last batch; −1 when it has none.
    pub last_fetched_epoch: i32,
    pub log_start: i64,
}

/// What a Fetch answer says about one partition, its records aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchedOutcome {
    Records { high_watermark: i64, log_start: i64 },
    Diverging(EpochEndOffset),
    Rejected(Rejection),
}

/// What the follower does with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowerAction {
    /// Append the records, then take over high watermark and log start, each bounded by the own log.
    Append { high_watermark: i64, log_start: i64 },
    /// Cut the log to this end.
    Truncate(i64),
    /// The offset is outside the leader's log: ask where that begins.
    AskLeaderStart,
    /// Ask again after a pause; the reason is for the log line.
    BackOff(Rejection),
    /// The answer belongs to a question of the past.
    Ignore,
}

impl Follower {
    /// Decides on an answer to the question `asked`. `current` is what the follower would ask now; `own_end_of` looks
    /// an epoch up in its own history.
    pub fn decide(
        asked: FetchPosition,
        current: FetchPosition,
        outcome: FetchedOutcome,
        own_end_of: impl Fn(i32) -> EpochEndOffset,
    ) -> FollowerAction {
        let same_epoch = asked.leader == current.leader && asked.leader_epoch == current.leader_epoch;
        let same_place =
            asked.offset == current.offset && asked.last_fetched_epoch == current.last_fetched_epoch;
        let diverging =
            matches!(outcome, FetchedOutcome::Diverging(_)) && !holds(Rule::DivergenceForItsQuestion);
        let same_question =
            (same_epoch || !holds(Rule::AnswerInItsEpoch)) && (same_place || !holds(Rule::AnswerAtItsOffset));
        if !same_question && !diverging {
            return FollowerAction::Ignore;
        }
        match outcome {
            FetchedOutcome::Records { high_watermark, log_start } => {
                FollowerAction::Append { high_watermark, log_start }
            }
            FetchedOutcome::Diverging(leader_end) => match truncation_end(current, leader_end, own_end_of) {
                Some(end) => FollowerAction::Truncate(end),
                None => FollowerAction::AskLeaderStart,
            },
            FetchedOutcome::Rejected(Rejection::OffsetOutOfRange) => FollowerAction::AskLeaderStart,
            FetchedOutcome::Rejected(rejection) => FollowerAction::BackOff(rejection),
        }
    }

    /// What to do once the leader has said where its log begins.
    pub fn decide_start(current: FetchPosition, leader_start: i64) -> StartDecision {
        if current.offset < leader_start { StartDecision::ResetTo(leader_start) } else { StartDecision::Keep }
    }
}

/// What becomes of a follower whose offset its leader does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartDecision {
    /// Everything it has is below the leader's start: drop all and begin there (R16 c).
    ResetTo(i64),
    /// Its log reaches into the leader's; asking again finds the divergence.
    Keep,
}

/// Where to cut, from both histories (KIP-279): the last offset that both logs can share. `None` when the leader has no
/// history that helps, so nothing is cut.
///
/// `leader_end` answers for the follower's last epoch, through Fetch or OffsetsForLeaderEpoch alike. When the leader
/// knows an older epoch instead, the follower cuts to its own end of that epoch at most, and asks again.
pub fn truncation_end(
    current: FetchPosition,
    leader_end: EpochEndOffset,
    own_end_of: impl Fn(i32) -> EpochEndOffset,
) -> Option<i64> {
    if leader_end.leader_epoch < 0 || leader_end.end_offset < 0 {
        return None;
    }
    let own_end = own_end_of(leader_end.leader_epoch);
    let end = match own_end.leader_epoch == leader_end.leader_epoch {
        true => own_end.end_offset.min(leader_end.end_offset),
        // The own history lacks that epoch: cut to the end of the next older one, which the next answer settles.
        false if 0 <= own_end.leader_epoch => own_end.end_offset.min(leader_end.end_offset),
        // Every own record is of a newer epoch than the leader's: nothing is shared above the leader's end.
        false => leader_end.end_offset,
    };
    Some(end.min(current.offset).max(current.log_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(offset: i64, last_fetched_epoch: i32) -> FetchPosition {
        FetchPosition {
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(9),
            offset,
            last_fetched_epoch,
            log_start: 0,
        }
    }

    /// A history as (epoch, start) with the end of the log: the same rule that the log applies.
    fn lookup(history: &[(i32, i64)], log_end: i64) -> impl Fn(i32) -> EpochEndOffset {
        move |asked| {
            let above = history.partition_point(|(epoch, _)| *epoch <= asked);
            match (above.checked_sub(1).map(|at| history[at]), history.get(above)) {
                (Some((epoch, _)), Some((_, next))) => {
                    EpochEndOffset { leader_epoch: epoch, end_offset: *next }
                }
                (Some((epoch, _)), None) => EpochEndOffset { leader_epoch: epoch, end_offset: log_end },
                (None, Some((_, oldest))) => EpochEndOffset { leader_epoch: asked, end_offset: *oldest },
                (None, None) => EpochEndOffset { leader_epoch: -1, end_offset: -1 },
            }
        }
    }

    #[test]
    fn hw_01_hw_03_cuts_where_the_histories_part() {
        let own = [(0, 0), (1, 10), (3, 20)];
        //   leader's answer (epoch, end), expected end
        let rows = [
            ((3, 25), Some(25)), // same epoch, the leader's is shorter
            ((3, 99), Some(30)), // same epoch, ours is shorter: nothing to cut
            ((2, 24), Some(20)), // the leader lacks epoch 3; we lack 2: our end of 1
            ((2, 15), Some(15)),
            ((1, 12), Some(12)),
            ((0, 4), Some(4)),
            ((-1, -1), None),
        ];
        for ((leader_epoch, end_offset), expected) in rows {
            let answer = EpochEndOffset { leader_epoch, end_offset };
            let end = truncation_end(position(30, 3), answer, lookup(&own, 30));
            assert_eq!(end, expected, "{answer:?}");
        }
    }

    #[test]
    fn hw_07_old_questions_are_not_answered() {
        let outcome = FetchedOutcome::Records { high_watermark: 5, log_start: 0 };
        let none = |_| EpochEndOffset { leader_epoch: -1, end_offset: -1 };
        let asked = position(10, 3);
        assert_eq!(
            Follower::decide(asked, asked, outcome, none),
            FollowerAction::Append { high_watermark: 5, log_start: 0 }
        );
        for current in [
            position(11, 3),
            position(10, 2),
            FetchPosition { leader_epoch: LeaderEpoch(10), ..asked },
            FetchPosition { leader: BrokerId(2), ..asked },
        ] {
            assert_eq!(Follower::decide(asked, current, outcome, none), FollowerAction::Ignore);
        }
    }

    #[test]
    fn hw_12_an_offset_that_the_leader_lacks_leads_to_its_start() {
        let none = |_| EpochEndOffset { leader_epoch: -1, end_offset: -1 };
        let asked = position(10, 3);
        let outcome = FetchedOutcome::Rejected(Rejection::OffsetOutOfRange);
        assert_eq!(Follower::decide(asked, asked, outcome, none), FollowerAction::AskLeaderStart);
        assert_eq!(Follower::decide_start(asked, 11), StartDecision::ResetTo(11));
        assert_eq!(Follower::decide_start(asked, 10), StartDecision::Keep);
        let fenced = FetchedOutcome::Rejected(Rejection::FencedLeaderEpoch);
        assert_eq!(
            Follower::decide(asked, asked, fenced, none),
            FollowerAction::BackOff(Rejection::FencedLeaderEpoch)
        );
    }

    proptest::proptest! {
        /// Two logs that share a prefix: truncating in turns ends exactly at the shared prefix (R7).
        #[test]
        fn repeated_truncation_finds_the_common_prefix(
            shared in proptest::collection::vec(0..3_i32, 0..8),
            own_tail in proptest::collection::vec(0..3_i32, 0..6),
            leader_tail in proptest::collection::vec(0..3_i32, 0..6),
        ) {
            // Epochs per record: ascending steps; the own tail gets odd epochs, the leader's even ones, so they differ.
            let mut epoch = 0;
            let prefix: Vec<i32> = shared.iter().map(|step| { epoch += step * 2; epoch }).collect();
            let tail = |steps: &[i32], first: i32| {
                let mut epoch = epoch + first;
                steps.iter().map(|step| { epoch += step * 2; epoch }).collect::<Vec<i32>>()
            };
            let mut own = [prefix.clone(), tail(&own_tail, 1)].concat();
            let leader = [prefix.clone(), tail(&leader_tail, 2)].concat();
            let history = |log: &[i32]| {
                let mut entries: Vec<(i32, i64)> = Vec::new();
                for (at, epoch) in log.iter().enumerate() {
                    if entries.last().is_none_or(|(last, _)| last < epoch) {
                        entries.push((*epoch, at as i64));
                    }
                }
                entries
            };
            for _ in 0..20 {
                let Some(last) = own.last().copied() else { break };
                let leader_history = history(&leader);
                let answer = match leader_history.last() {
                    Some((latest, _)) if last <= *latest => lookup(&leader_history, leader.len() as i64)(last),
                    // The leader knows nothing as new: its end of its latest epoch (KIP-320 keeps epochs known).
                    Some((latest, _)) => EpochEndOffset { leader_epoch: *latest, end_offset: leader.len() as i64 },
                    None => EpochEndOffset { leader_epoch: 0, end_offset: 0 },
                };
                if answer.leader_epoch == last && own.len() as i64 <= answer.end_offset {
                    break;
                }
                let own_history = history(&own);
                let end = truncation_end(position(own.len() as i64, last), answer, lookup(&own_history, own.len() as i64));
                own.truncate(end.unwrap_or(own.len() as i64) as usize);
            }
            proptest::prop_assert_eq!(own, prefix);
        }
    }
}
