use super::*;

const NOTHING: Told = Told { has_records: false, is_special: false, high_watermark: 0, log_start_offset: 0 };
const RECORDS: Told = Told { has_records: true, high_watermark: 9, ..NOTHING };
const SPECIAL: Told = Told { is_special: true, high_watermark: -1, ..NOTHING };

fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic: TopicRef::Name("t".into()), partition }
}

fn at(offset: i64) -> PartitionFetch {
    PartitionFetch { offset, max_bytes: 100, current_leader_epoch: 5, last_fetched_epoch: -1, log_start: -1 }
}

fn request(id: i32, epoch: i32, partitions: &[(i32, i64)]) -> SessionRequest {
    let partitions = partitions.iter().map(|(partition, offset)| (key(*partition), at(*offset))).collect();
    SessionRequest { id, epoch, partitions, ..SessionRequest::default() }
}

/// Opens a session with these partitions and says where it stands.
fn open(sessions: &FetchSessions, id: i32, is_follower: bool, partitions: &[(i32, i64)], now_ms: u64) -> i32 {
    let request = SessionRequest { is_follower, ..request(NO_SESSION, EPOCH_INITIAL, partitions) };
    let fetching = sessions.begin(request, now_ms).unwrap();
    let answers = vec![NOTHING; fetching.partitions.len()];
    let (id, told) = sessions.finish(&fetching, &answers, || id, now_ms);
    assert!(told.iter().all(|told| *told), "a full answer names everything");
    id
}

fn offsets(fetching: &Fetching) -> Vec<(i32, i64)> {
    fetching.partitions.iter().map(|asked| (asked.key.partition, asked.fetch.offset)).collect()
}

/// CLI-07.
#[test]
fn later_requests_name_only_what_changes_and_later_answers_what_moved() {
    let sessions = FetchSessions::new(10);
    assert_eq!(open(&sessions, 7, false, &[(0, 0), (1, 0), (2, 0)], 0), 7);

    let second = sessions.begin(request(7, 1, &[(1, 5), (3, 0)]), 0).unwrap();
    assert_eq!(offsets(&second), [(0, 0), (1, 5), (2, 0), (3, 0)]);
    let answers = [NOTHING, RECORDS, SPECIAL, NOTHING];
    let (id, told) = sessions.finish(&second, &answers, || unreachable!(), 0);
    assert_eq!((id, told), (7, vec![false, true, true, true]), "the new partition was never told");

    let forgetting = SessionRequest { forgotten: vec![key(0)], ..request(7, 2, &[]) };
    let third = sessions.begin(forgetting, 0).unwrap();
    assert_eq!(offsets(&third), [(2, 0), (3, 0), (1, 5)], "what gave records is read last");
    assert_eq!(third.partitions[0].fetch.current_leader_epoch, 5, "the epoch is remembered");
    let unmoved = Told { has_records: false, ..RECORDS };
    let (_, told) = sessions.finish(&third, &[NOTHING, NOTHING, unmoved], || unreachable!(), 0);
    assert_eq!(told, [true, false, false], "the end of an error is told too");
}

#[test]
fn wrong_ids_and_epochs_are_refused() {
    let sessions = FetchSessions::new(10);
    open(&sessions, 7, false, &[(0, 0)], 0);
    let refusal = |request| sessions.begin(request, 0).unwrap_err();
    assert_eq!(refusal(request(8, 1, &[])), Rejection::FetchSessionIdNotFound);
    assert_eq!(refusal(request(7, 2, &[])), Rejection::InvalidFetchSessionEpoch);
    let other_names = SessionRequest { uses_topic_ids: true, ..request(7, 1, &[]) };
    assert_eq!(refusal(other_names), Rejection::FetchSessionTopicIdError);
    assert!(sessions.begin(request(7, 1, &[]), 0).is_ok(), "refusals change nothing");
    assert_eq!(refusal(request(7, 1, &[])), Rejection::InvalidFetchSessionEpoch, "an epoch counts once");
}

#[test]
fn sessions_end_when_told_or_empty() {
    let sessions = FetchSessions::new(10);
    open(&sessions, 7, false, &[(0, 0)], 0);
    let last = sessions.begin(request(7, EPOCH_FINAL, &[(0, 3)]), 0).unwrap();
    assert_eq!(sessions.finish(&last, &[NOTHING], || unreachable!(), 0), (NO_SESSION, vec![true]));
    assert_eq!(sessions.begin(request(7, 1, &[]), 0).unwrap_err(), Rejection::FetchSessionIdNotFound);

    open(&sessions, 8, false, &[(0, 0)], 0);
    let emptied = SessionRequest { forgotten: vec![key(0)], ..request(8, 1, &[]) };
    assert!(sessions.begin(emptied, 0).unwrap().partitions.is_empty());
    assert_eq!(sessions.begin(request(8, 2, &[]), 0).unwrap_err(), Rejection::FetchSessionIdNotFound);
    assert_eq!(open(&sessions, 9, false, &[], 0), NO_SESSION, "nothing to remember");
}

#[test]
fn cli_08_scarce_sessions_go_to_followers_and_to_those_that_use_them() {
    let sessions = FetchSessions::new(2);
    assert_eq!(open(&sessions, 1, false, &[(0, 0)], 0), 1);
    assert_eq!(open(&sessions, 2, true, &[(0, 0)], 0), 2);
    assert_eq!(open(&sessions, 3, false, &[(0, 0)], 1_000), NO_SESSION, "both are in use");
    assert_eq!(open(&sessions, 4, true, &[(0, 0)], 1_000), 4, "a follower takes a client's");
    assert_eq!(sessions.begin(request(1, 1, &[]), 1_000).unwrap_err(), Rejection::FetchSessionIdNotFound);
    assert_eq!(open(&sessions, 5, true, &[(0, 0)], 1_000), NO_SESSION, "followers do not evict followers");
    sessions.begin(request(4, 1, &[]), 100_000).unwrap();
    assert_eq!(open(&sessions, 6, false, &[(0, 0)], 130_000), 6, "unused for two minutes");
    assert!(sessions.begin(request(4, 2, &[]), 130_000).is_ok(), "it was used meanwhile");
    assert_eq!(open(&FetchSessions::new(0), 1, true, &[(0, 0)], 0), NO_SESSION);
}

#[test]
fn epochs_wrap_round_and_ids_are_never_reused() {
    assert_eq!((next_epoch(0), next_epoch(i32::MAX)), (1, 1));
    let sessions = FetchSessions::new(10);
    open(&sessions, 7, false, &[(0, 0)], 0);
    let fetching = sessions.begin(request(NO_SESSION, EPOCH_INITIAL, &[(0, 0)]), 0).unwrap();
    let mut ids = [7, 0, -3, 8].into_iter();
    let (id, _) = sessions.finish(&fetching, &[NOTHING], || ids.next().unwrap(), 0);
    assert_eq!(id, 8);
}
