//! The rules that guard data, by name, so that the model in the tests can switch each one off and show that it notices
//! (cases/invariants.md, section 6; the attacks of coordination.md, section 7).
//!
//! In production every rule holds: [`holds`] is a constant, and the compiler leaves nothing of it. Only the feature
//! `model`, which nothing but the `tests` crate asks for, makes it a question.

macro_rules! rules {
    ($($(#[$list_doc:meta])* $list:ident { $($(#[$doc:meta])* $name:ident;)* })*) => {
        /// A rule, named by what it says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($($(#[$doc])* $name,)*)*
        }

        impl Rule {
            $($(#[$list_doc])* pub const $list: &'static [Self] = &[$(Self::$name,)*];)*
        }
    };
}

rules! {
    /// Those of controllers and replicas, for the table of their model.
    OF_PARTITIONS {
    /// A follower's offset in a fetch that diverges is not its progress.
    DivergingFetchIsNoProgress;
    /// A follower that is told a new epoch fetches in it, even from the same leader (mutation 2).
    FetchInNewEpoch;
    /// A leader that begins an epoch knows nothing of its followers' logs (mutation 3).
    ProgressPerEpoch;
    /// Who joins the ISR has fetched in this epoch (mutation 4).
    JoinAfterFetch;
    /// Who joins the ISR holds everything committed (mutation 5).
    JoinAtHighWatermark;
    /// Who joins the ISR holds the start of the epoch (mutation 6).
    JoinAtEpochStart;
    /// An answer counts only at the offset that was asked for (mutation 7).
    AnswerAtItsOffset;
    /// An answer counts only in the epoch in which it was asked for (mutation 8).
    AnswerInItsEpoch;
    /// A diverging answer counts only for the question that it answers.
    DivergenceForItsQuestion;
    /// KIP-101: who asks where epochs end fetches nothing before its log agrees with the leader's.
    TruncateBeforeFetch;
    /// KIP-279, HW-03: an answer for an epoch that the follower lacks leads to another question.
    EpochsAgree;
    /// An added member lives in the registration under which it fetched (mutation 9, F3).
    MemberRegistration;
    /// An ISR change is stored only over the version that it was decided from (mutation 10).
    PartitionVersion;
    /// Older news of the ISR changes nothing.
    NewerIsrOnly;
    /// Every write of a controller checks the controller epoch.
    ControllerEpoch;
    /// Who leaves the ISR counts until that is stored.
    ShrinkCountsWhenStored;
    /// Who is proposed counts before that is stored.
    ProposedCounts;
    /// A replica is deleted only by an epoch that did not name it as a host.
    DeleteInItsEpoch;
    /// A leader's broker that registered anew leads no more.
    BounceIsSeen;
    /// A change that is stored already is confirmed to the leader that asks again, not refused.
    RetryIsRecognised;
    /// A leader that hears of a later ISR than the one it knows finds out what is stored: a member that lost records has
    /// left by itself.
    LaterIsrIsLookedAt;
    /// L2: an office that was refused, and may have been stored all the same, is given back.
    RefusedOfficeIsGivenBack;
    /// L2: a leader that cannot know what became of its proposals gets the version moved.
    ClearUpIsStored;
    /// A question or a fetch in another epoch is refused (KIP-320).
    EpochOfReads;
    /// F1: an election is decided from the ISR that is stored.
    ElectionFromStoredIsr;
    /// F2: while an ELR may exist the high watermark stands still.
    ElrStopsHighWatermark;
    /// F3: fetches of an older registration are not heard.
    RegistrationOfFetch;
    /// F4: a write belongs to an incarnation that exists.
    IncarnationExists;
    /// F4: a partition is marked as started by the ISR of its own incarnation.
    StartedByIsr;
    /// F5: no broker leads an epoch twice.
    EpochLedOnce;
    /// F6: who resigns deletes no successor's `leader`.
    ResignInOwnEpoch;
    /// F7, N4: a partition that holds records is never begun anew.
    StartedStaysStarted;
    /// N3, F7: a host that registered while its partition was in error is told of it afterwards.
    UntoldIsToldLater;
    /// F8: nothing is set aside because a request or a znode does not name it.
    StrayIsProven;
    /// F9: only the incarnation that is named is stopped.
    StopNamesIncarnation;
    /// F9: the newest connection of the newest controller gives orders.
    NewestCommander;
    /// F10: only confirmed writes renew the lease.
    LeaseByWrites;
    /// F13: an unclean election is recorded, not remembered.
    RecoveryIsRecorded;
    /// F11: a copied directory steals no registration.
    DirectoryOfMachine;
    /// F12: -1 is no version.
    MinusOneIsNoVersion;
    /// L1, F4: what the controller wrote and somebody removed at once is not believed in any longer.
    OwnWriteIsKnown;
    /// L1: after a deaf time everything is read again.
    ReadAfterDeafness;
    /// L2: a proposal whose answer was lost may be stored.
    LostAnswerLingers;
    /// L3: a change of hosts or target is a new epoch.
    MoveIsAnEpoch;
    /// L4: who refused is not asked again at once.
    RefusalIsRemembered;
    /// L5: a leader has resigned only if its broker is alive after all.
    BrokerBeforeResignation;
    /// L6: a lease that lapsed is renewed in the same session.
    LeaseReturns;
    /// L7: a leader without answers asks ZooKeeper whether it still leads.
    UnansweredLeaderAsks;
    /// L8: the minimum is not above the number of target replicas.
    MinimumWithinTarget;
    /// L9: an input may be wrong for a moment before its author is told.
    ErrorsWait;
    /// L10: eligible replicas are hosts.
    ElrIsHosted;
    /// L11: a new session forgets the numbers of the old one.
    NumbersOfSession;
    /// L12: after an outage of all, elections wait for the brokers.
    WaitForBrokers;
    /// N1: a directory is complete only after the broker has left what it cannot honour.
    LeaveBeforeComplete;
    /// N2: without the lease a leader serves only while nobody can have replaced it.
    CertainWithoutLease;
    /// N3: an emptied topic node gets its id back.
    IdIsPutBack;
    /// N3: the first `state` of an emptied topic may be on its way.
    FirstStateIsAwaited;
    /// N3, M8: a topic whose node is emptied keeps no broker in an ISR that it cannot honour.
    EmptiedTopicIsLeft;
    /// N4: records make a partition a started one.
    RecordsMeanStarted;
    /// N5: a host of this epoch is not told to delete what an earlier one left.
    HostsDoNotLeave;
    /// N6: a take-over over an ISR that moved is decided again.
    TakeOverOfStoredIsr;
    /// N7: a partition in error makes no stray.
    ErrorIsNoStray;
    /// N8: hosts only grow before the move is complete.
    HostsOnlyGrow;
    /// N9: the completing multi checks the wish.
    WishAtItsVersion;
    /// N10: only the leader's registration ends an epoch.
    FollowerBouncesFreely;
    /// N11: a removing replica does not return to the ISR.
    RemovedStaysOut;
    /// A registration is what this process has written, not what it finds (mutation 1).
    RegistrationIsOwn;
    /// N12: a registration is conditional on the former one.
    RegistrationOverFormer;
    /// N14: the epoch of a new controller is above every recorded one.
    EpochAboveTree;
    /// L2, N14: a new controller epoch whose answer was lost is written again.
    RaiseIsRepeated;
    /// N14: a controller whose epoch brokers find too low, although nobody else is in office, goes above it.
    OutrankedYields;
    /// N15: an ELR that is not told is read.
    MissingElrIsRead;
    /// N16: the recorded target stands in for an assignment that cannot be read.
    TargetStandsIn;
    /// N19: a leader that goes on keeps its acknowledgements.
    CommitQueueIsKept;
    /// N20, D1: a directory is complete only under the boot of its machine, unless it was closed cleanly.
    CompleteUnderBoot;
    }

    /// Those of transactions and groups, for the model of the coordinators.
    OF_COORDINATORS {
    /// T6: only the current producer of a transactional id adds to its transaction and ends it.
    TransactionOfItsProducer;
    /// T6: each run of an application gets an epoch that no other has.
    EpochOfEachRun;
    /// TXN-02: the end of a transaction of version 2 gives its producer another epoch.
    EpochOfEachTransaction;
    /// TXN-02: a marker of version 2 ends transactions of lower epochs only.
    MarkerEndsLowerEpochs;
    /// T4: a record of version 2 joins no open transaction to which its partition was not added.
    OpenIsJoinedWhenAdded;
    /// TXN-13: a transaction that is aborted because its time is over fences its producer.
    TimeoutFences;
    /// T4: a producer that starts again has its open transaction aborted first.
    OpenIsAbortedFirst;
    /// T4: a decided transaction takes no more partitions.
    DecidedIsClosed;
    /// TXN-01: a decided transaction verifies nothing.
    DecidedIsNotVerified;
    /// T4: a transaction is complete when each of its partitions has a marker.
    MarkedEverywhere;
    /// TXN-11: who loads a decided transaction goes on with its markers.
    DecidedGoesOn;
    /// T6: a partition takes nothing of an older epoch of a producer.
    ProducerEpochOnPartition;
    /// TXN-07: a partition takes no marker of a coordinator that has been replaced.
    MarkerOfNewestCoordinator;
    /// KIP-890: nobody opens a transaction on a partition unverified.
    OpeningIsVerified;
    /// KIP-890: a verification that a marker has overtaken counts no more.
    GuardIsOvertaken;
    /// T5: a verification counts only if no newer coordinator has ended a transaction there.
        VerifiedByNewestCoordinator;
    /// T3: nothing of an open transaction is stable.
    OpenIsUnstable;
    /// T3: nothing of a transaction is stable before its marker is committed.
    MarkerIsReplicated;
    /// T1: a batch that comes again is not stored again.
    BatchesAreStoredOnce;
    /// G2: only members of the current generation commit, in transactions too.
    CommitOfGeneration;
    /// KIP-447: offsets that an open transaction may change are told to nobody who asks for stable ones.
    UnstableIsNotTold;
    /// T4: offsets of a transaction count when it commits, not before.
    OffsetsWaitForTheEnd;
    /// T4: offsets of an aborted transaction never count.
    AbortedOffsetsAreDropped;
    }
}

/// Whether the rule is in force.
#[cfg(not(feature = "model"))]
#[inline(always)]
#[must_use]
pub const fn holds(_rule: Rule) -> bool {
    true
}

#[cfg(feature = "model")]
pub use switch::{holds, without};

#[cfg(feature = "model")]
mod switch {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        /// A bit for each rule.
        static SWITCHED_OFF: Cell<u128> = const { Cell::new(0) };
    }

    /// Whether the rule is in force on this thread.
    #[must_use]
    pub fn holds(rule: Rule) -> bool {
        SWITCHED_OFF.get() & bit(rule) == 0
    }

    const fn bit(rule: Rule) -> u128 {
        1 << rule as u32
    }

    /// Does the work without these rules, on this thread.
    pub fn without<T>(rules: &[Rule], work: impl FnOnce() -> T) -> T {
        struct Restore(u128);
        impl Drop for Restore {
            fn drop(&mut self) {
                SWITCHED_OFF.set(self.0);
            }
        }
        let off = rules.iter().fold(0, |off, rule| off | bit(*rule));
        let _restore = Restore(SWITCHED_OFF.replace(off));
        work()
    }
}
