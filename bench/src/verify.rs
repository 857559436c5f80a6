//! A number counts only if what was acknowledged is there: at every acknowledged offset the record that its producer
//! sent, whole by its hash, and nothing that was not acknowledged.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::FetchRequest;
use zurau_tests::kafka::{EARLIEST, FETCH_VERSION, KafkaClient, fetch_request};

use crate::batch::{Found, number, read_batch};
use crate::load::{Acked, Ledger};

/// An acknowledged record may be missing from answers for so long: until the high watermark is known to the leader.
const PATIENCE: Duration = Duration::from_secs(10);

/// Holds the records of one partition against what was acknowledged, in the order of offsets.
struct Checker {
    acked: std::vec::IntoIter<Acked>,
    /// The batch that is being compared, and how many of its records have been found.
    current: Option<(Acked, u64)>,
}

impl Checker {
    fn new(mut acked: Vec<Acked>) -> Self {
        acked.sort_unstable_by_key(|batch| batch.base_offset);
        let mut acked = acked.into_iter();
        let current = acked.next().map(|first| (first, 0));
        Self { acked, current }
    }

    fn is_done(&self) -> bool {
        self.current.is_none()
    }

    fn check(&mut self, found: Found) -> Result<()> {
        let Found { offset, number: stored } = found;
        let (batch, seen) =
            self.current.as_mut().with_context(|| format!("offset {offset} was never acknowledged"))?;
        let due = batch.base_offset + i64::try_from(*seen)?;
        ensure!(offset == due, "the next acknowledged offset is {due}, but {offset} follows");
        let expected = number(batch.producer, batch.first + *seen);
        ensure!(stored == expected, "offset {offset} holds record {stored:#x} instead of {expected:#x}");
        *seen += 1;
        if *seen == batch.records as u64 {
            self.current = self.acked.next().map(|next| (next, 0));
        }
        Ok(())
    }
}

/// Reads everything back. Returns the number of records.
///
/// # Errors
/// A record is missing, doubled, damaged or another one, or one is there that was not acknowledged.
pub(crate) fn read_back(client: &mut KafkaClient, topic: &str, ledger: &Ledger) -> Result<u64> {
    let mut count = 0;
    for (partition, acked) in ledger {
        let start = client.offset(topic, *partition, EARLIEST)?;
        ensure!(start == 0, "{topic}-{partition} begins at {start}: retention took records away");
        let name = || format!("{topic}-{partition}");
        count += read_partition(client, topic, *partition, acked.clone()).with_context(name)?;
    }
    Ok(count)
}

fn read_partition(client: &mut KafkaClient, topic: &str, partition: i32, acked: Vec<Acked>) -> Result<u64> {
    let mut checker = Checker::new(acked);
    let (mut next, mut count) = (0, 0);
    let (_, address) = client.leader(topic, partition)?;
    let mut last_progress = std::time::Instant::now();
    while !checker.is_done() {
        let request: FetchRequest = fetch_request(topic, partition, next);
        let answer = client.call(&address, FETCH_VERSION, &request)?;
        let found = answer.responses.first().and_then(|topic| topic.partitions.first());
        let found = found.context("the answer names no partition")?;
        ensure!(found.error_code == 0, "Fetch: error {}", found.error_code);
        let records = found.records.clone().unwrap_or_default();
        let mut bytes = &records[..];
        let before = next;
        while let Some(end) = read_batch(&mut bytes, |record| {
            // A batch may begin before the asked offset.
            if record.offset >= before {
                checker.check(record)?;
                count += 1;
            }
            Ok(())
        })? {
            next = next.max(end);
        }
        if next > before {
            last_progress = std::time::Instant::now();
        }
        let waited = last_progress.elapsed();
        ensure!(waited < PATIENCE, "nothing follows offset {next}, though more was acknowledged");
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches() -> Vec<Acked> {
        let batch = |base_offset, records, producer, first| Acked { base_offset, records, producer, first };
        // Two producers; offset 5 is a control record of a transaction.
        vec![batch(3, 2, 0, 2), batch(0, 2, 0, 0), batch(6, 1, 1, 1), batch(2, 1, 1, 0)]
    }

    fn found() -> Vec<Found> {
        let all = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 0, 2), (4, 0, 3), (6, 1, 1)];
        all.map(|(offset, producer, sequence)| Found { offset, number: number(producer, sequence) }).into()
    }

    fn check(found: &[Found]) -> Result<bool> {
        let mut checker = Checker::new(batches());
        found.iter().try_for_each(|record| checker.check(*record))?;
        Ok(checker.is_done())
    }

    #[test]
    fn what_was_acknowledged_and_nothing_else_passes() {
        assert!(check(&found()).unwrap());
        assert!(!check(&found()[..5]).unwrap(), "the last one is still missing");
    }

    #[test]
    fn missing_doubled_foreign_and_unacknowledged_records_are_noticed() {
        for at in 0..5 {
            let mut missing = found();
            missing.remove(at);
            assert!(check(&missing).is_err(), "record {at} was missing");
            let mut doubled = found();
            doubled.insert(at, doubled[at]);
            assert!(check(&doubled).is_err(), "record {at} was doubled");
            let mut foreign = found();
            foreign[at].number += 1;
            assert!(check(&foreign).is_err(), "record {at} was another");
        }
        let mut more = found();
        more.push(Found { offset: 7, number: number(1, 2) });
        let error = check(&more).unwrap_err().to_string();
        assert!(error.contains("never acknowledged"), "{error}");
    }
}
