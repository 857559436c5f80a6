//! A number counts only if what was acknowledged is there: every record at its offset, with its own number inside.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::FetchRequest;
use zurau_tests::kafka::{EARLIEST, FETCH_VERSION, KafkaClient, fetch_request};
use zurau_tests::records::decode_batches;

use crate::batch::sequence_of;

/// Reads everything back. Returns the number of records.
///
/// # Errors
/// A record is missing, doubled or another one.
pub(crate) fn read_back(client: &mut KafkaClient, topic: &str, written: &HashMap<i32, i64>) -> Result<u64> {
    let mut count = 0;
    for (partition, end) in written {
        let start = client.offset(topic, *partition, EARLIEST)?;
        ensure!(start == 0, "{topic}-{partition} begins at {start}: retention took records away");
        let mut next = 0;
        let (_, address) = client.leader(topic, *partition)?;
        while next < *end {
            let request: FetchRequest = fetch_request(topic, *partition, next);
            let answer = client.call(&address, FETCH_VERSION, &request)?;
            let found = answer.responses.first().and_then(|topic| topic.partitions.first());
            let found = found.context("the answer names no partition")?;
            ensure!(found.error_code == 0, "Fetch of {topic}-{partition}: error {}", found.error_code);
            let before = next;
            for record in decode_batches(found.records.clone().unwrap_or_default())? {
                if record.offset < next {
                    continue; // the batch began before the asked offset
                }
                ensure!(record.offset == next, "{topic}-{partition}: {} follows {next}", record.offset);
                let number = sequence_of(&record.value);
                ensure!(number == Some(next), "{topic}-{partition} offset {next} holds record {number:?}");
                next += 1;
            }
            ensure!(next > before, "{topic}-{partition} ends at {next}, {end} were acknowledged");
        }
        count += u64::try_from(next)?;
    }
    Ok(count)
}
