//! DeleteRecords (21), versions 0-2: everything below an offset is deleted; −1 stands for the high watermark.
//!
//! Answered when every live replica has moved its log start, with the lowest one of them (the low watermark), or after
//! the timeout with error 7. Errors: 17 internal topic, 1 offset beyond the high watermark, 44 topic that is compacted
//! only, and those of a partition that this broker does not lead. v2 is flexible.

use std::sync::Arc;

use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use tokio::time::{Instant, timeout_at};
use zurau_common::rejection::Rejection;

use super::leader_hint::{TopicRef, not_hosted};
use super::{Call, Starting, deadline_after};
use crate::context::BrokerContext;
use crate::metadata::is_internal;
use crate::partition::{DeletionWait, Partition};

/// Beside an error there is no low watermark.
const NO_WATERMARK: i64 = -1;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DeleteRecordsRequest| async move {
        let deadline = deadline_after(request.timeout_ms).unwrap_or_else(Instant::now);
        // All of it is begun before anything is waited for.
        let mut begun = Vec::new();
        for topic in &request.topics {
            let partitions = topic.partitions.iter().map(|asked| {
                let number = asked.partition_index;
                (number, begin(&call.context, &topic.name, number, asked.offset))
            });
            begun.push((topic.name.clone(), partitions.collect::<Vec<_>>()));
        }
        let mut topics = Vec::new();
        for (name, partitions) in begun {
            let mut results = Vec::new();
            for (number, begun) in partitions {
                results.push(result(number, finish(begun, deadline).await));
            }
            topics.push(DeleteRecordsTopicResult::default().with_name(name).with_partitions(results));
        }
        DeleteRecordsResponse::default().with_topics(topics)
    })
}

type Begun = Result<(Arc<Partition>, DeletionWait), Rejection>;

fn begin(context: &BrokerContext, topic: &str, number: i32, offset: i64) -> Begun {
    if is_internal(topic) {
        return Err(Rejection::InvalidTopicException);
    }
    let Some(partition) = context.partitions.get(topic, number) else {
        let image = context.metadata.image();
        return Err(not_hosted(&image, &TopicRef::Name(topic.into()), number));
    };
    let waiting = partition.delete_records(offset)?;
    Ok((partition, waiting))
}

async fn finish(begun: Begun, deadline: Instant) -> Result<i64, Rejection> {
    let (partition, waiting) = begun?;
    timeout_at(deadline, waiting).await.unwrap_or_else(|_| {
        partition.forget_ended_deletions();
        Err(Rejection::RequestTimedOut)
    })
}

fn result(number: i32, outcome: Result<i64, Rejection>) -> DeleteRecordsPartitionResult {
    DeleteRecordsPartitionResult::default()
        .with_partition_index(number)
        .with_low_watermark(outcome.unwrap_or(NO_WATERMARK))
        .with_error_code(outcome.err().map_or(0, Rejection::code))
}

#[cfg(test)]
mod tests {
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<DeleteRecordsRequest>(|_| {
            let results = vec![result(0, Ok(7)), result(1, Err(Rejection::OffsetOutOfRange))];
            assert_eq!((results[0].low_watermark, results[0].error_code), (7, 0));
            assert_eq!((results[1].low_watermark, results[1].error_code), (-1, 1));
            let topic =
                DeleteRecordsTopicResult::default().with_name(to_wire_topic("t")).with_partitions(results);
            DeleteRecordsResponse::default().with_topics(vec![topic])
        });
    }
}
