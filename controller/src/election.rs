//! Who leads next. Pure rules over what is stored and who is alive; the caller writes, counts and logs.

use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerId, LeaderEpoch};

use crate::event::Millis;

/// How fit a live replica is to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fitness {
    Gone,
    /// It refused; asked again, if nobody else is there, not before this moment (L4).
    Refused {
        retry_at: Millis,
    },
    /// It asked for controlled shutdown: taken when nobody else is there.
    Leaving,
    Fit,
}

/// What an election of a started partition is decided from.
#[derive(Debug, Clone)]
pub(crate) struct Candidates<'a> {
    pub(crate) target: &'a [BrokerId],
    pub(crate) assigned: &'a [BrokerId],
    pub(crate) isr: &'a [BrokerId],
    pub(crate) elr: &'a [BrokerId],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Elected(BrokerId),
    /// Nobody now; somebody who refused may be asked at that moment.
    Wait(Millis),
    /// Nobody in sync or eligible is alive.
    Nobody,
}

impl Candidates<'_> {
    /// Target, then assigned, then the rest; the order in which clean candidates are tried.
    fn order(&self) -> Vec<BrokerId> {
        union(&union(&union(self.target, self.assigned), self.isr), self.elr)
    }
}

/// A clean election: the first replica, in the order of preference, that is alive and in the ISR, else alive and in
/// the ELR. A replica about to leave is taken only when no other is in the same set.
pub(crate) fn elect(
    candidates: &Candidates<'_>,
    now: Millis,
    fitness: impl Fn(BrokerId) -> Fitness,
) -> Choice {
    let order = candidates.order();
    for set in [candidates.isr, candidates.elr] {
        for wanted in [Fitness::Fit, Fitness::Leaving] {
            let found = order.iter().find(|id| set.contains(id) && fitness(**id) == wanted);
            if let Some(leader) = found {
                return Choice::Elected(*leader);
            }
        }
    }
    let eligible = order.iter().filter(|id| candidates.isr.contains(id) || candidates.elr.contains(id));
    ask_again(eligible.copied(), now, fitness)
}

/// The first election of a partition that never had an ISR: any assigned replica that is alive.
pub(crate) fn elect_first(order: &[BrokerId], now: Millis, fitness: impl Fn(BrokerId) -> Fitness) -> Choice {
    for wanted in [Fitness::Fit, Fitness::Leaving] {
        if let Some(leader) = order.iter().find(|id| fitness(**id) == wanted) {
            return Choice::Elected(*leader);
        }
    }
    ask_again(order.iter().copied(), now, fitness)
}

fn ask_again(
    eligible: impl Iterator<Item = BrokerId>,
    now: Millis,
    fitness: impl Fn(BrokerId) -> Fitness,
) -> Choice {
    let refused = eligible.filter_map(|id| match fitness(id) {
        Fitness::Refused { retry_at } => Some((retry_at, id)),
        Fitness::Gone | Fitness::Leaving | Fitness::Fit => None,
    });
    match refused.min_by_key(|(retry_at, _)| *retry_at) {
        Some((retry_at, id)) if retry_at <= now => Choice::Elected(id),
        Some((retry_at, _)) => Choice::Wait(retry_at),
        None => Choice::Nobody,
    }
}

/// An election for a reason other than need (preferred leader, shutdown, a leader outside the target): only a fit
/// member of the ISR, and nobody when the present leader is the best there is.
pub(crate) fn elect_better(
    order: &[BrokerId],
    isr: &[BrokerId],
    fitness: impl Fn(BrokerId) -> Fitness,
) -> Option<BrokerId> {
    order.iter().copied().find(|id| isr.contains(id) && fitness(*id) == Fitness::Fit)
}

/// An unclean election: the replica with the largest (last epoch, log end); the order of preference breaks ties.
/// A replica that did not answer is taken only if none did.
pub(crate) fn elect_uncleanly(
    order: &[BrokerId],
    ends: impl Fn(BrokerId) -> Option<Option<(LeaderEpoch, i64)>>,
) -> Option<BrokerId> {
    let mut best: Option<(Option<(LeaderEpoch, i64)>, BrokerId)> = None;
    for id in order {
        let Some(end) = ends(*id) else { continue };
        if best.as_ref().is_none_or(|(so_far, _)| *so_far < end) {
            best = Some((end, *id));
        }
    }
    best.map(|(_, id)| id)
}

/// The ISR that a leader of this election is told to store: the stored one without members whose broker is gone, or
/// the leader alone when it is not in it (it was elected from the ELR, or uncleanly).
pub(crate) fn isr_to_take_over(
    leader: BrokerId,
    stored: &[BrokerId],
    is_live: impl Fn(BrokerId) -> bool,
) -> Vec<BrokerId> {
    if !stored.contains(&leader) {
        return vec![leader];
    }
    let gone: Vec<BrokerId> = stored.iter().copied().filter(|id| *id != leader && !is_live(*id)).collect();
    difference(stored, &gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fitness::{Fit, Gone, Leaving};

    const LATER: Fitness = Fitness::Refused { retry_at: Millis(100) };

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    /// Fitness of brokers 1, 2, 3, 4.
    fn choose(isr: &[i32], elr: &[i32], fitness: [Fitness; 4], now: u64) -> Choice {
        let (target, isr, elr) = (ids(&[1, 2, 3]), ids(isr), ids(elr));
        let candidates = Candidates { target: &target, assigned: &target, isr: &isr, elr: &elr };
        elect(&candidates, Millis(now), |id| fitness[usize::try_from(id.0).unwrap() - 1])
    }

    #[test]
    fn the_first_live_member_of_the_isr_then_of_the_elr_leads() {
        let elected = |id| Choice::Elected(BrokerId(id));
        #[rustfmt::skip]
        let rows = [
            // isr          elr          1      2        3        4      chosen
            (&[1, 2, 3][..], &[][..],    [Fit,  Fit,     Fit,     Gone], elected(1)),
            (&[3, 2],        &[],        [Fit,  Fit,     Fit,     Gone], elected(2)),
            (&[1, 2, 3],     &[],        [Gone, Fit,     Fit,     Gone], elected(2)),
            (&[1],           &[],        [Gone, Fit,     Fit,     Gone], Choice::Nobody),
            (&[1],           &[3],       [Gone, Fit,     Fit,     Gone], elected(3)),
            (&[1],           &[2, 3],    [Gone, Leaving, Fit,     Gone], elected(3)),
            (&[1, 2],        &[3],       [Gone, Leaving, Fit,     Gone], elected(2)),
            (&[1, 2],        &[3],       [Gone, LATER,   Fit,     Gone], elected(3)),
            (&[1, 2],        &[],        [Gone, LATER,   Fit,     Gone], Choice::Wait(Millis(100))),
            (&[4],           &[],        [Fit,  Fit,     Fit,     Fit],  elected(4)),
            (&[4, 3],        &[],        [Fit,  Fit,     Fit,     Fit],  elected(3)),
        ];
        for (isr, elr, fitness, chosen) in rows {
            assert_eq!(choose(isr, elr, fitness, 99), chosen, "isr {isr:?} elr {elr:?} {fitness:?}");
        }
        assert_eq!(
            choose(&[2], &[], [Gone, LATER, Fit, Gone], 100),
            elected(2),
            "asked again when it is time"
        );
    }

    #[test]
    fn unclean_elections_take_the_longest_log() {
        let order = ids(&[1, 2, 3]);
        let end = |epoch, offset| Some(Some((LeaderEpoch(epoch), offset)));
        #[rustfmt::skip]
        let rows = [
            ([end(1, 9),  end(2, 3),  end(2, 2)],  Some(2)),
            ([end(2, 3),  end(2, 3),  None],       Some(1)),
            ([Some(None), end(0, 0),  None],       Some(2)),
            ([Some(None), Some(None), None],       Some(1)),
            ([None,       None,       None],       None),
        ];
        for (ends, chosen) in rows {
            let found = elect_uncleanly(&order, |id| ends[usize::try_from(id.0).unwrap() - 1]);
            assert_eq!(found, chosen.map(BrokerId), "{ends:?}");
        }
    }

    #[test]
    fn only_dead_members_are_left_out_of_what_a_new_leader_stores() {
        let live = |id: BrokerId| id.0 != 1;
        assert_eq!(isr_to_take_over(BrokerId(2), &ids(&[1, 2, 3]), live), ids(&[2, 3]));
        assert_eq!(isr_to_take_over(BrokerId(3), &ids(&[1, 2]), live), ids(&[3]), "from the ELR, alone");
    }
}
