//! The follower of a partition: what it asks of its leader, and what an answer means for its log. It truncates by
//! leader epoch only, never by high watermark (KIP-101, KIP-279, R16), and acts on no answer to a question that it
//! would not ask any more (cases/invariants.md, mutations 7 and 8).
//!
//! Where the histories part it learns in one of two ways (`replica.truncation.path`). By Fetch: the epoch of its last
//! record goes with each question, and the leader answers with a diverging epoch instead of records. By
//! OffsetsForLeaderEpoch: in each epoch it first asks where the epoch of its last record ends, cuts, and asks again until
//! the answer names an epoch that it has; only then it fetches.

use std::ops::Range;

use zurau_common::config::TruncationPath;
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
    pub path: TruncationPath,
    /// By OffsetsForLeaderEpoch: the log holds nothing that the leader's lacks. That stays so in this epoch, because a
    /// leader never truncates.
    pub agrees: bool,
}

/// What is asked of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The records from the offset on.
    Records,
    /// Where the epoch of the last record ends.
    EpochEnd,
}

/// A follower's question: "what follows `offset`, which I reached under `last_fetched_epoch`?", or "where does that epoch
/// end?"
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPosition {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    /// The follower's log end.
    pub offset: i64,
    /// Epoch of its last batch; −1 when it has none, and in a question for records that the leader need not compare.
    pub last_fetched_epoch: i32,
    pub log_start: i64,
    pub asked: Asked,
}

/// What a Fetch answer says about one partition, its records aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchedOutcome {
    Records {
        high_watermark: i64,
        log_start: i64,
    },
    Diverging(EpochEndOffset),
    /// The answer of OffsetsForLeaderEpoch.
    EpochEnd(EpochEndOffset),
    Rejected(Rejection),
}

/// What the follower does with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowerAction {
    /// Append the records, then take over high watermark and log start, each bounded by the own log.
    Append { high_watermark: i64, log_start: i64 },
    /// Cut the log to `end`, if it is longer. `agrees`: what remains is the leader's too.
    Truncate { end: i64, agrees: bool },
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
        let same_place = asked.offset == current.offset
            && asked.last_fetched_epoch == current.last_fetched_epoch
            && asked.asked == current.asked;
        let diverging = matches!(outcome, FetchedOutcome::Diverging(_) | FetchedOutcome::EpochEnd(_))
            && !holds(Rule::DivergenceForItsQuestion);
        let same_question =
            (same_epoch || !holds(Rule::AnswerInItsEpoch)) && (same_place || !holds(Rule::AnswerAtItsOffset));
        if !same_question && !diverging {
            return FollowerAction::Ignore;
        }
        let own = current.log_start..current.offset;
        match outcome {
            FetchedOutcome::Records { high_watermark, log_start } => {
                FollowerAction::Append { high_watermark, log_start }
            }
            FetchedOutcome::Diverging(leader_end) => match truncation_end(own, leader_end, own_end_of) {
                Some(end) => FollowerAction::Truncate { end, agrees: false },
                None => FollowerAction::AskLeaderStart,
            },
            // The largest epoch not above the asked one cannot be above it: cutting by such an answer leads nowhere.
            FetchedOutcome::EpochEnd(leader_end) if asked.last_fetched_epoch < leader_end.leader_epoch => {
                FollowerAction::BackOff(Rejection::UnknownServerError)
            }
            FetchedOutcome::EpochEnd(leader_end) => {
                let agrees = knows_epoch(leader_end, &own_end_of) || !holds(Rule::EpochsAgree);
                match truncation_end(own, leader_end, own_end_of) {
                    Some(end) => FollowerAction::Truncate { end, agrees },
                    None => FollowerAction::AskLeaderStart,
                }
            }
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

/// Whether the epoch that the leader answered with ends the search: the follower has it, or has nothing as old. Else the
/// follower's next older epoch is still to be compared (KIP-279).
fn knows_epoch(leader_end: EpochEndOffset, own_end_of: impl Fn(i32) -> EpochEndOffset) -> bool {
    let own_end = own_end_of(leader_end.leader_epoch);
    own_end.leader_epoch == leader_end.leader_epoch || own_end.leader_epoch < 0
}

/// Where to cut a log with the offsets `own`, from both histories (KIP-279): the last offset that both logs can share.
/// `None` when the leader has no history that helps, so nothing is cut.
///
/// `leader_end` answers for the follower's last epoch, through Fetch or OffsetsForLeaderEpoch alike. When the leader
/// knows an older epoch instead, the follower cuts to its own end of that epoch at most, and asks again.
pub fn truncation_end(
    own: Range<i64>,
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
    Some(end.min(own.end).max(own.start))
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
            asked: Asked::Records,
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
            let end = truncation_end(0..30, answer, lookup(&own, 30));
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

    fn where_ends(offset: i64, epoch: i32) -> FetchPosition {
        FetchPosition { asked: Asked::EpochEnd, ..position(offset, epoch) }
    }

    #[test]
    fn hw_01_hw_03_an_epoch_that_is_not_shared_leads_to_another_question() {
        let own = lookup(&[(0, 0), (1, 10), (3, 20)], 30);
        let cut = |end, agrees| FollowerAction::Truncate { end, agrees };
        //   leader's answer to "where does 3 end?" (epoch, end), what follows
        let rows = [
            ((3, 25), cut(25, true)),
            ((3, 99), cut(30, true)),
            ((2, 24), cut(20, false)), // of 2 nothing is known here: 1 is asked about next
            ((2, 15), cut(15, false)),
            ((1, 12), cut(12, true)),
            ((0, 4), cut(4, true)),
            ((-1, -1), FollowerAction::AskLeaderStart),
            // No leader can say so; each such answer would be followed by the same question.
            ((4, 30), FollowerAction::BackOff(Rejection::UnknownServerError)),
        ];
        let asked = where_ends(30, 3);
        for ((leader_epoch, end_offset), expected) in rows {
            let outcome = FetchedOutcome::EpochEnd(EpochEndOffset { leader_epoch, end_offset });
            assert_eq!(Follower::decide(asked, asked, outcome, &own), expected, "{outcome:?}");
        }
        // Everything that the leader has of old is older than the first record here: what it has ends the search.
        let newer = lookup(&[(5, 10)], 30);
        let answer = FetchedOutcome::EpochEnd(EpochEndOffset { leader_epoch: 4, end_offset: 12 });
        assert_eq!(Follower::decide(where_ends(30, 5), where_ends(30, 5), answer, newer), cut(10, true));
    }

    #[test]
    fn hw_07_a_late_answer_of_where_an_epoch_ends_cuts_nothing() {
        let own = lookup(&[(3, 0)], 30);
        let outcome = FetchedOutcome::EpochEnd(EpochEndOffset { leader_epoch: 3, end_offset: 10 });
        let asked = where_ends(30, 3);
        for current in [
            where_ends(31, 3),
            where_ends(30, 2),
            FetchPosition { leader_epoch: LeaderEpoch(10), ..asked },
            FetchPosition { leader: BrokerId(2), ..asked },
            position(30, 3), // it has agreed and fetches: the answer comes twice
        ] {
            assert_eq!(
                Follower::decide(asked, current, outcome, &own),
                FollowerAction::Ignore,
                "{current:?}"
            );
        }
        for rejection in [
            Rejection::FencedLeaderEpoch,
            Rejection::UnknownLeaderEpoch,
            Rejection::NotLeaderOrFollower,
            Rejection::InconsistentTopicId,
        ] {
            let outcome = FetchedOutcome::Rejected(rejection);
            assert_eq!(Follower::decide(asked, asked, outcome, &own), FollowerAction::BackOff(rejection));
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

    /// Two logs that share a prefix: the prefix, one, the other; by the epoch of each record. Ascending steps; one tail gets
    /// odd epochs, the other even ones, so they differ.
    fn parting(shared: &[i32], own_tail: &[i32], leader_tail: &[i32]) -> [Vec<i32>; 3] {
        let from = |first: i32, steps: &[i32]| {
            let ascend = |epoch: &mut i32, step: &i32| {
                *epoch += step * 2;
                Some(*epoch)
            };
            steps.iter().scan(first, ascend).collect::<Vec<i32>>()
        };
        let prefix = from(0, shared);
        let epoch = prefix.last().copied().unwrap_or(0);
        let own = [prefix.clone(), from(epoch + 1, own_tail)].concat();
        let leader = [prefix.clone(), from(epoch + 2, leader_tail)].concat();
        [prefix, own, leader]
    }

    /// The history of a log: each epoch with its start.
    fn history(log: &[i32]) -> Vec<(i32, i64)> {
        let mut entries: Vec<(i32, i64)> = Vec::new();
        for (at, epoch) in log.iter().enumerate() {
            if entries.last().is_none_or(|(last, _)| last < epoch) {
                entries.push((*epoch, at as i64));
            }
        }
        entries
    }

    proptest::proptest! {
        /// By OffsetsForLeaderEpoch: once the histories agree nothing but the shared prefix is left, and the questions that
        /// lead there are fewer than the epochs (R7, KIP-279).
        #[test]
        fn asking_where_epochs_end_finds_the_common_prefix(
            shared in proptest::collection::vec(0..3_i32, 0..8),
            own_tail in proptest::collection::vec(0..3_i32, 0..6),
            leader_tail in proptest::collection::vec(0..3_i32, 0..6),
        ) {
            let [prefix, mut own, leader] = parting(&shared, &own_tail, &leader_tail);
            // The office of the one that leads now is recorded, above every epoch of the other.
            let mut leaders = history(&leader);
            leaders.push((1_000, leader.len() as i64));
            let epochs = history(&own).len();
            for question in 0.. {
                let Some(last) = own.last().copied() else { break };
                proptest::prop_assert!(question <= epochs, "{} questions", question);
                let asked = where_ends(own.len() as i64, last);
                let answer = lookup(&leaders, leader.len() as i64)(last);
                let histories = history(&own);
                let own_end_of = lookup(&histories, own.len() as i64);
                match Follower::decide(asked, asked, FetchedOutcome::EpochEnd(answer), own_end_of) {
                    FollowerAction::Truncate { end, agrees } => {
                        own.truncate(end as usize);
                        if agrees { break }
                    }
                    other => proptest::prop_assert!(false, "{:?}", other),
                }
            }
            proptest::prop_assert_eq!(own, prefix);
        }

        /// Two logs that share a prefix: truncating in turns ends exactly at the shared prefix (R7).
        #[test]
        fn repeated_truncation_finds_the_common_prefix(
            shared in proptest::collection::vec(0..3_i32, 0..8),
            own_tail in proptest::collection::vec(0..3_i32, 0..6),
            leader_tail in proptest::collection::vec(0..3_i32, 0..6),
        ) {
            let [prefix, mut own, leader] = parting(&shared, &own_tail, &leader_tail);
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
                let end = truncation_end(0..own.len() as i64, answer, lookup(&own_history, own.len() as i64));
                own.truncate(end.unwrap_or(own.len() as i64) as usize);
            }
            proptest::prop_assert_eq!(own, prefix);
        }
    }
}
