//! The ISR as its leader sees it: what is stored, what is proposed, and what may have been stored although the answer
//! was lost. The high watermark counts every broker that *may* be a member (R10): the maximal ISR.

use zurau_common::assignment::{difference, same_set, union};
use zurau_common::id::{BrokerEpoch, BrokerId, PartitionEpoch};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::isr::StoredIsr;

/// A change of the ISR that the leader wants stored. Decided from `partition_epoch`, and stored only if that is still
/// the stored one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub isr: Vec<BrokerId>,
    pub elr: Vec<BrokerId>,
    pub partition_epoch: PartitionEpoch,
    /// Registrations under which members last fetched; a member that is added always has one (R13).
    pub broker_epochs: Vec<(BrokerId, BrokerEpoch)>,
}

/// What may have been stored without the leader's knowledge, until a later version of `ISR` proves otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lingering {
    isr: Vec<BrokerId>,
    elr: bool,
}

/// Stored, proposed and possible ISR. At most one proposal is in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsrState {
    stored: StoredIsr,
    proposal: Option<Proposal>,
    /// The proposal was sent more than once or its answer was lost.
    ambiguous: bool,
    lingering: Lingering,
    /// The latest version of `ISR` that is known to be stored, whatever it says.
    latest: PartitionEpoch,
}

impl IsrState {
    pub fn new(stored: StoredIsr) -> Self {
        let latest = stored.partition_epoch;
        Self { stored, proposal: None, ambiguous: false, lingering: Lingering::default(), latest }
    }

    pub fn stored(&self) -> &StoredIsr {
        &self.stored
    }

    pub fn proposal(&self) -> Option<&Proposal> {
        self.proposal.as_ref()
    }

    /// Every broker that may be a stored member now.
    pub fn maximal(&self) -> Vec<BrokerId> {
        let proposed = self.proposal.as_ref().map_or(&[][..], |proposal| &proposal.isr);
        if !proposed.is_empty() && !holds(Rule::ShrinkCountsWhenStored) {
            return proposed.to_vec();
        }
        let proposed = if holds(Rule::ProposedCounts) { proposed } else { &[] };
        union(&union(&self.stored.isr, proposed), &self.lingering.isr)
    }

    /// Whether an ELR is stored, or may be: the high watermark then stands still (F2).
    pub fn may_have_elr(&self) -> bool {
        !self.stored.elr.is_empty()
            || self.lingering.elr
            || self.proposal.as_ref().is_some_and(|proposal| !proposal.elr.is_empty())
    }

    /// The ELR that goes with `isr` (D2, F2): members that left while too few remained stay electable.
    pub fn elr_beside(&self, isr: &[BrokerId], min: usize) -> Vec<BrokerId> {
        if min <= isr.len() {
            return Vec::new();
        }
        difference(&union(&self.stored.isr, &self.stored.elr), isr)
    }

    /// Whether storing `isr` and `elr` would change or clear up anything.
    pub fn differs_from(&self, isr: &[BrokerId], elr: &[BrokerId]) -> bool {
        !same_set(isr, &self.stored.isr) || !same_set(elr, &self.stored.elr) || !self.is_clear()
    }

    /// Whether nothing is possibly stored that is not known to be.
    pub fn is_clear(&self) -> bool {
        self.lingering == Lingering::default() && self.latest <= self.stored.partition_epoch
    }

    /// This version of `ISR` is stored, as the controller tells. If it is later than all that is decided here, somebody
    /// else stored it: a member that registers anew with less than it had acknowledged leaves by itself, and its leader
    /// may never learn that it was gone. The next proposal finds out.
    pub fn hear_of(&mut self, version: PartitionEpoch) {
        if holds(Rule::LaterIsrIsLookedAt) {
            self.latest = self.latest.max(version);
        }
    }

    pub fn propose(&mut self, proposal: Proposal) {
        assert!(self.proposal.is_none(), "two proposals in flight: {:?} and {proposal:?}", self.proposal);
        assert!(!proposal.isr.is_empty(), "an empty ISR was about to be proposed: {proposal:?}");
        self.proposal = Some(proposal);
        self.ambiguous = false;
    }

    /// The proposal may have been stored although no answer came; it goes on counting.
    pub fn answer_lost(&mut self) {
        self.ambiguous = holds(Rule::LostAnswerLingers);
    }

    /// The proposal was refused and is certain not to be stored, unless an earlier sending of it was.
    pub fn refused(&mut self) {
        let Some(proposal) = self.proposal.take() else { return };
        if std::mem::take(&mut self.ambiguous) {
            self.lingering.isr = union(&self.lingering.isr, &proposal.isr);
            self.lingering.elr |= !proposal.elr.is_empty();
        }
    }

    /// What is stored now, as an answer or a reading of the znodes says. Older news is ignored. A later version
    /// settles everything that was open: whatever was decided from an earlier one cannot be stored any more.
    pub fn settle(&mut self, stored: StoredIsr) {
        if self.stored.partition_epoch < stored.partition_epoch || !holds(Rule::NewerIsrOnly) {
            let latest = self.latest.max(stored.partition_epoch);
            *self = Self { latest, ..Self::new(stored) };
        } else if self.stored.partition_epoch == stored.partition_epoch {
            self.refused();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn stored(isr: &[i32], elr: &[i32], version: i32) -> StoredIsr {
        StoredIsr { isr: ids(isr), elr: ids(elr), partition_epoch: PartitionEpoch(version) }
    }

    fn proposal(isr: &[i32], elr: &[i32]) -> Proposal {
        Proposal {
            isr: ids(isr),
            elr: ids(elr),
            partition_epoch: PartitionEpoch(4),
            broker_epochs: Vec::new(),
        }
    }

    #[test]
    fn isr_02_proposed_members_count_until_the_answer() {
        let mut isr = IsrState::new(stored(&[1], &[], 4));
        isr.propose(proposal(&[1, 2], &[]));
        assert_eq!(isr.maximal(), ids(&[1, 2]));
        isr.settle(stored(&[1, 2], &[], 5));
        assert_eq!((isr.maximal(), isr.proposal()), (ids(&[1, 2]), None));
    }

    #[test]
    fn isr_09_a_clear_refusal_undoes_and_an_unclear_one_lingers() {
        let mut isr = IsrState::new(stored(&[1], &[], 4));
        isr.propose(proposal(&[1, 2], &[]));
        isr.refused();
        assert_eq!(isr.maximal(), ids(&[1]));

        isr.propose(proposal(&[1, 2], &[3]));
        isr.answer_lost();
        isr.refused();
        assert_eq!(isr.maximal(), ids(&[1, 2]), "an earlier sending may still be stored");
        assert!(isr.may_have_elr());
        assert!(isr.differs_from(&ids(&[1]), &[]), "storing the same again settles it");
        isr.settle(stored(&[1], &[], 5));
        assert_eq!((isr.maximal(), isr.may_have_elr()), (ids(&[1]), false));
    }

    #[test]
    fn a_later_version_than_the_known_one_is_to_be_cleared_up() {
        let mut isr = IsrState::new(stored(&[1, 2, 3], &[], 4));
        let differs = |isr: &IsrState| isr.differs_from(&ids(&[1, 2, 3]), &[]);
        isr.hear_of(PartitionEpoch(4));
        assert!(!differs(&isr) && isr.is_clear());
        isr.hear_of(PartitionEpoch(6));
        assert!(differs(&isr) && !isr.is_clear());
        assert_eq!(isr.maximal(), ids(&[1, 2, 3]), "who has left counts until that is known");
        isr.propose(proposal(&[1, 2, 3], &[]));
        isr.settle(stored(&[1, 2, 3], &[], 5));
        assert!(differs(&isr), "told before the answer came");
        isr.hear_of(PartitionEpoch(3));
        isr.settle(stored(&[1, 2], &[], 6));
        assert!(isr.is_clear());
    }

    #[test]
    fn isr_10_older_news_changes_nothing() {
        let mut isr = IsrState::new(stored(&[1, 2], &[], 4));
        isr.propose(proposal(&[1], &[2]));
        isr.settle(stored(&[1, 2, 3], &[], 3));
        assert_eq!(isr.proposal(), Some(&proposal(&[1], &[2])));
        assert_eq!(isr.stored(), &stored(&[1, 2], &[], 4));
    }

    #[test]
    fn isr_07_members_that_leave_a_small_isr_stay_eligible() {
        //   stored ISR, ELR, new ISR, min, new ELR
        type Ids = &'static [i32];
        let rows: [(Ids, Ids, Ids, usize, Ids); 5] = [
            (&[1, 2, 3], &[], &[1, 2], 2, &[]),
            (&[1, 2], &[], &[1], 2, &[2]),
            (&[1, 2, 3], &[], &[1], 2, &[2, 3]),
            (&[1], &[2], &[1, 3], 2, &[]),
            (&[1], &[2, 3], &[1, 3], 3, &[2]),
        ];
        for (isr, elr, new_isr, min, expected) in rows {
            let state = IsrState::new(stored(isr, elr, 0));
            assert_eq!(state.elr_beside(&ids(new_isr), min), ids(expected), "{isr:?} {elr:?} {new_isr:?}");
        }
    }
}
