//! What every attack of coordination.md (section 7) and every mutation of cases/invariants.md (section 6) is answered by:
//! rules that can be switched off, or a structure that leaves nothing to switch off. Which history catches a rule's
//! absence, the tests in `mutations` print: they go through all rules.

use std::collections::BTreeSet;

use zurau_common::rule::Rule;

/// An attack or a mutation, the rules that answer it, and what there is to say about it.
type Row = (&'static str, &'static [Rule], &'static str);

const ATTACKS: &[Row] = &[
    ("F1", &[Rule::ElectionFromStoredIsr], ""),
    ("F2", &[Rule::ElrStopsHighWatermark], ""),
    ("F3", &[Rule::RegistrationOfFetch, Rule::MemberRegistration], ""),
    ("F4", &[Rule::IncarnationExists, Rule::StartedByIsr, Rule::OwnWriteIsKnown], ""),
    ("F5", &[Rule::EpochLedOnce, Rule::BounceIsSeen], ""),
    ("F6", &[Rule::ResignInOwnEpoch], ""),
    ("F7", &[Rule::StartedStaysStarted, Rule::UntoldIsToldLater], ""),
    ("F8", &[Rule::StrayIsProven], ""),
    ("F9", &[Rule::StopNamesIncarnation, Rule::DeleteInItsEpoch, Rule::NewestCommander], ""),
    ("F10", &[Rule::LeaseByWrites], ""),
    ("F11", &[Rule::DirectoryOfMachine], ""),
    ("F12", &[Rule::MinusOneIsNoVersion], ""),
    ("F13", &[Rule::RecoveryIsRecorded], ""),
    ("L1", &[Rule::ReadAfterDeafness, Rule::OwnWriteIsKnown], ""),
    (
        "L2",
        &[
            Rule::LostAnswerLingers,
            Rule::ClearUpIsStored,
            Rule::RaiseIsRepeated,
            Rule::NewerIsrOnly,
            Rule::RefusedOfficeIsGivenBack,
        ],
        "",
    ),
    ("L3", &[Rule::MoveIsAnEpoch], ""),
    ("L4", &[Rule::RefusalIsRemembered], ""),
    ("L5", &[Rule::BrokerBeforeResignation], ""),
    ("L6", &[Rule::LeaseReturns], ""),
    ("L7", &[Rule::UnansweredLeaderAsks], ""),
    ("L8", &[Rule::MinimumWithinTarget], ""),
    ("L9", &[Rule::ErrorsWait], ""),
    ("L10", &[Rule::ElrIsHosted], ""),
    (
        "L11",
        &[Rule::NumbersOfSession],
        "covered by OutrankedYields as well: only both removals together show",
    ),
    ("L12", &[Rule::WaitForBrokers], ""),
    ("N1", &[Rule::LeaveBeforeComplete, Rule::LaterIsrIsLookedAt], ""),
    ("N2", &[Rule::CertainWithoutLease], ""),
    (
        "N3",
        &[Rule::IdIsPutBack, Rule::FirstStateIsAwaited, Rule::EmptiedTopicIsLeft, Rule::UntoldIsToldLater],
        "",
    ),
    ("N4", &[Rule::RecordsMeanStarted, Rule::StartedStaysStarted], ""),
    ("N5", &[Rule::HostsDoNotLeave, Rule::DeleteInItsEpoch], ""),
    ("N6", &[Rule::TakeOverOfStoredIsr], ""),
    ("N7", &[Rule::ErrorIsNoStray], ""),
    ("N8", &[Rule::HostsOnlyGrow], ""),
    (
        "N9",
        &[Rule::WishAtItsVersion],
        "a wish that is made anew begins at version 0 again, and looks like the first",
    ),
    ("N10", &[Rule::FollowerBouncesFreely], ""),
    ("N11", &[Rule::RemovedStaysOut], ""),
    ("N12", &[Rule::RegistrationOverFormer], ""),
    ("N13", &[Rule::CertainWithoutLease], "coordinators ask the same function as produce"),
    ("N14", &[Rule::EpochAboveTree, Rule::RaiseIsRepeated, Rule::OutrankedYields], ""),
    ("N15", &[Rule::MissingElrIsRead], ""),
    ("N16", &[Rule::TargetStandsIn], ""),
    ("N19", &[Rule::CommitQueueIsKept], ""),
    ("N20", &[Rule::CompleteUnderBoot], ""),
];

const MUTATIONS: &[Row] = &[
    ("1", &[Rule::RegistrationIsOwn], ""),
    ("2", &[Rule::FetchInNewEpoch], ""),
    ("3", &[Rule::ProgressPerEpoch], ""),
    ("4", &[Rule::JoinAfterFetch], ""),
    ("5", &[Rule::JoinAtHighWatermark], ""),
    ("6", &[Rule::JoinAtEpochStart], ""),
    ("7", &[Rule::AnswerAtItsOffset], ""),
    ("8", &[Rule::AnswerInItsEpoch], ""),
    ("9", &[Rule::MemberRegistration], ""),
    ("10", &[Rule::PartitionVersion], ""),
    (
        "truncation to the own high watermark",
        &[],
        "structure: only a diverging epoch cuts, and no caller has the other",
    ),
    ("KIP-101: a fallback to the high watermark", &[], "structure: `truncation_end` is not told one"),
    ("KIP-101: fetching before the log is cut", &[Rule::TruncateBeforeFetch], ""),
    ("KIP-101: one question where epochs end", &[Rule::EpochsAgree], ""),
    ("KIP-279 without fencing", &[Rule::EpochOfReads], ""),
    ("KIP-320, first try", &[Rule::EpochOfReads, Rule::DivergingFetchIsNoProgress], ""),
    ("admission at the high watermark alone", &[Rule::JoinAtEpochStart], ""),
    ("a proposal counts after its answer", &[Rule::ProposedCounts], ""),
    ("the last survivor", &[Rule::ElrStopsHighWatermark], "beyond the minimum: the condition of R9"),
    (
        "an older version in the same epoch",
        &[],
        "structure: in one epoch an order changes nothing (`Verdict::Known`)",
    ),
    ("a controller's write without its epoch", &[Rule::ControllerEpoch], ""),
    ("a shrink counts before it is stored", &[Rule::ShrinkCountsWhenStored], ""),
    ("progress by a diverging fetch", &[Rule::DivergingFetchIsNoProgress], ""),
    ("a late answer tells where to cut", &[Rule::DivergenceForItsQuestion], ""),
    ("StopReplica without an epoch", &[Rule::DeleteInItsEpoch], ""),
    ("a new registration is no bounce", &[Rule::BounceIsSeen], ""),
    ("a retry is refused", &[Rule::RetryIsRecognised], ""),
];

#[test]
fn every_attack_and_mutation_has_its_answer_and_every_rule_its_reason() {
    let rows = || ATTACKS.iter().chain(MUTATIONS);
    let unanswered: Vec<&str> =
        rows().filter(|(_, rules, why)| rules.is_empty() && why.is_empty()).map(|(name, ..)| *name).collect();
    assert!(unanswered.is_empty(), "{unanswered:?}");
    let named: BTreeSet<Rule> = rows().flat_map(|(_, rules, _)| rules.iter().copied()).collect();
    let idle: Vec<&Rule> = Rule::OF_PARTITIONS.iter().filter(|rule| !named.contains(rule)).collect();
    assert!(idle.is_empty(), "rules that answer nothing: {idle:?}");
    let names: BTreeSet<&str> = ATTACKS.iter().map(|(name, ..)| *name).collect();
    let numbers = (1..=13).map(|n| format!("F{n}")).chain((1..=12).map(|n| format!("L{n}")));
    let numbers = numbers.chain((1..=20).filter(|n| !matches!(n, 17 | 18)).map(|n| format!("N{n}")));
    let missing: Vec<String> = numbers.filter(|name| !names.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "attacks without a row: {missing:?}");
}
