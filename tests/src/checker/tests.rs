//! Made-up histories: a good one, and for every promise one in which just that promise is broken.

use std::collections::BTreeMap;
use std::fs;

use super::*;

fn operation(process: &str, time: u64, outcome: Outcome, steps: Vec<Step>) -> Operation {
    Operation { process: process.to_owned(), start: time, end: time + 5, outcome, transaction: false, steps }
}

fn transaction(process: &str, time: u64, outcome: Outcome, steps: Vec<Step>) -> Operation {
    Operation { transaction: true, ..operation(process, time, outcome, steps) }
}

fn send(value: &str, offset: i64) -> Step {
    Step::Send { key: "t-0".to_owned(), value: value.to_owned(), offset: Some(offset) }
}

fn unanswered(value: &str) -> Step {
    Step::Send { key: "t-0".to_owned(), value: value.to_owned(), offset: None }
}

fn poll(records: &[(i64, &str)]) -> Step {
    let records = records.iter().map(|(offset, value)| (*offset, (*value).to_owned())).collect();
    Step::Poll(BTreeMap::from([("t-0".to_owned(), records)]))
}

fn ok(process: &str, time: u64, step: Step) -> Operation {
    operation(process, time, Outcome::Ok, vec![step])
}

fn broken(operations: Vec<Operation>) -> Vec<Violation> {
    let verdict = check(&History::new(operations));
    verdict.counts().into_keys().collect()
}

#[test]
fn a_good_history_has_no_findings_and_is_counted() {
    let operations = vec![
        ok("p", 0, send("a", 0)),
        operation("p", 10, Outcome::Info, vec![unanswered("b")]),
        operation("p", 20, Outcome::Fail, vec![unanswered("c")]),
        transaction("q", 30, Outcome::Ok, vec![poll(&[(0, "a")]), send("d", 2), send("e", 3)]),
        transaction("q", 40, Outcome::Fail, vec![send("f", 5)]),
        // 4 is the marker of the committed transaction, 5 was aborted.
        ok("r", 50, poll(&[(0, "a"), (1, "b"), (2, "d"), (3, "e")])),
        ok("r", 60, Step::Seek(true)),
        ok("r", 70, poll(&[(0, "a")])),
    ];
    let verdict = check(&History::new(operations));
    assert_eq!(verdict.findings, []);
    let expected = Statistics { acknowledged: 3, unknown: 1, failed: 2, read: 4, lag_ms_max: 0 };
    assert_eq!(verdict.statistics, expected);
}

#[test]
fn two_values_at_one_offset() {
    let operations = vec![
        ok("p", 0, send("a", 0)),
        ok("q", 10, send("b", 0)),
        ok("r", 20, poll(&[(0, "a")])),
        ok("s", 30, poll(&[(0, "b")])),
    ];
    assert_eq!(broken(operations), [Violation::InconsistentOffset]);
}

#[test]
fn a_value_at_two_offsets() {
    let operations = vec![ok("p", 0, send("a", 0)), ok("r", 10, poll(&[(0, "a"), (1, "a")]))];
    assert_eq!(broken(operations), [Violation::Duplicate]);
}

#[test]
fn a_lost_and_an_unseen_write() {
    let lost = vec![ok("p", 0, send("a", 0)), ok("p", 10, send("b", 1)), ok("r", 20, poll(&[(1, "b")]))];
    assert_eq!(broken(lost), [Violation::LostWrite]);
    let unseen = vec![ok("p", 0, send("a", 0)), ok("p", 10, send("b", 1)), ok("r", 20, poll(&[(0, "a")]))];
    assert_eq!(broken(unseen), [Violation::Unseen]);
}

#[test]
fn values_that_should_not_be_there() {
    assert_eq!(broken(vec![ok("r", 0, poll(&[(0, "a")]))]), [Violation::Phantom]);
    let refused =
        vec![operation("p", 0, Outcome::Fail, vec![unanswered("a")]), ok("r", 10, poll(&[(0, "a")]))];
    assert_eq!(broken(refused), [Violation::AbortedRead]);
    let aborted =
        vec![transaction("p", 0, Outcome::Fail, vec![send("a", 0)]), ok("r", 10, poll(&[(0, "a")]))];
    assert_eq!(broken(aborted), [Violation::AbortedRead]);
}

#[test]
fn a_transaction_that_reads_itself() {
    let operations = vec![
        transaction("p", 0, Outcome::Ok, vec![send("a", 0), poll(&[(0, "a")])]),
        ok("r", 10, poll(&[(0, "a")])),
    ];
    assert_eq!(broken(operations), [Violation::PrecommittedRead]);
}

#[test]
fn a_torn_transaction() {
    for outcome in [Outcome::Ok, Outcome::Info] {
        let operations = vec![
            transaction("p", 0, outcome, vec![send("a", 0), send("b", 7)]),
            ok("r", 10, poll(&[(0, "a")])),
        ];
        assert!(broken(operations).contains(&Violation::TornTransaction), "{outcome:?}");
    }
}

#[test]
fn polls_that_jump_or_go_back() {
    let writes = [ok("p", 0, send("a", 0)), ok("p", 10, send("b", 1)), ok("p", 20, send("c", 2))];
    let all = ok("r", 30, poll(&[(0, "a"), (1, "b"), (2, "c")]));
    let with = |polls: Vec<Operation>| [&writes[..], std::slice::from_ref(&all), &polls].concat();
    let jump = with(vec![ok("s", 30, poll(&[(0, "a")])), ok("s", 40, poll(&[(2, "c")]))]);
    assert_eq!(broken(jump), [Violation::PollSkip]);
    let back = with(vec![ok("s", 30, poll(&[(1, "b")])), ok("s", 40, poll(&[(0, "a")]))]);
    assert_eq!(broken(back), [Violation::NonMonotonicPoll]);
    let inside = with(vec![transaction("s", 30, Outcome::Ok, vec![poll(&[(0, "a")]), poll(&[(2, "c")])])]);
    assert_eq!(broken(inside), [Violation::PollSkip]);
    let again = with(vec![
        transaction("s", 30, Outcome::Fail, vec![poll(&[(1, "b")])]),
        transaction("s", 40, Outcome::Ok, vec![poll(&[(1, "b")])]),
    ]);
    assert_eq!(broken(again), []);
}

#[test]
fn sends_that_go_back() {
    let operations =
        vec![ok("p", 0, send("a", 1)), ok("p", 10, send("b", 0)), ok("r", 20, poll(&[(0, "b"), (1, "a")]))];
    assert_eq!(broken(operations), [Violation::NonMonotonicSend]);
}

#[test]
fn transactions_that_see_each_other() {
    let operations = vec![
        Operation { end: 30, ..transaction("p", 0, Outcome::Ok, vec![send("a", 0), poll(&[(1, "b")])]) },
        Operation { end: 30, ..transaction("q", 1, Outcome::Ok, vec![poll(&[(0, "a")]), send("b", 1)]) },
        ok("r", 40, poll(&[(0, "a"), (1, "b")])),
    ];
    assert_eq!(broken(operations), [Violation::Cycle]);
}

#[test]
fn a_read_from_the_future() {
    let operations = vec![ok("r", 0, poll(&[(0, "a")])), ok("p", 10, send("a", 0))];
    assert_eq!(broken(operations), [Violation::Cycle]);
}

#[test]
fn a_recorded_file_is_read_and_an_unfinished_line_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history");
    let lines = r#"{"process": "p", "intent": "a", "key": "t-0"}
{"process": "p", "start": 1, "end": 2, "outcome": "ok", "steps": [{"send": {"key": "t-0", "value": "a", "offset": 0}}]}
{"process": "p", "intent": "b", "key": "t-0"}
{"process": "r", "start": 3, "end": 4, "outcome": "ok", "steps": [{"poll": {"t-0": [[0, "a"], [1, "b"]]}}, {"seek": true}]}
{"process": "p", "start": 5, "e"#;
    fs::write(&path, lines).unwrap();
    let mut history = History::default();
    history.read(&path).unwrap();
    assert_eq!(history.len(), 2);
    let verdict = check(&history);
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.statistics.acknowledged, verdict.statistics.unknown), (1, 1));
    fs::write(&path, "{\"process\": 1}\n").unwrap();
    assert!(History::default().read(&path).is_err());
}
