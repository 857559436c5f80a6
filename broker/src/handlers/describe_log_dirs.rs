//! DescribeLogDirs (35), versions 0-4: the log directories of this broker and the size of each replica in them.
//!
//! - Null topics mean all; a partition that this broker does not hold is left out.
//! - v3 adds an error for the whole answer, v4 the size of the file system and what is left of it.
//! - A directory that is offline, or could not be opened at the start, is named with KAFKA_STORAGE_ERROR.
//! - A replica that moves has a second copy ("future"), in another directory: its lag are the records that it lacks of the
//!   first one. The lag of that one are committed records that it lacks.

use std::collections::BTreeMap;
use std::path::Path;

use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};
use kafka_protocol::protocol::StrBytes;
use tracing::warn;
use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::{Call, Starting};
use crate::context::BrokerContext;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DescribeLogDirsRequest| async move {
        let version = call.version();
        // Asks the file system, which may take its time.
        let describing = tokio::task::spawn_blocking(move || describe(&call.context, &request, version));
        let results = describing.await.unwrap_or_default();
        DescribeLogDirsResponse::default().with_results(results)
    })
}

/// Copies by topic, partition and whether it is a future one.
type Copies = BTreeMap<TopicName, BTreeMap<(i32, bool), Copied>>;

/// One copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    size_bytes: u64,
    offset_lag: i64,
}

fn describe(
    context: &BrokerContext,
    request: &DescribeLogDirsRequest,
    version: i16,
) -> Vec<DescribeLogDirsResult> {
    let mut directories: Vec<Copies> = vec![Copies::new(); context.config.log_dirs.len()];
    let mut put = |directory: usize, id: &TopicPartition, is_future: bool, copied: Copied| {
        if let Some(copies) = directories.get_mut(directory) {
            copies.entry(id.topic.clone()).or_default().insert((id.partition, is_future), copied);
        }
    };
    for partition in context.partitions.all() {
        let id = partition.id();
        if !is_asked_for(request, &id.topic, id.partition) {
            continue;
        }
        let future = partition.future();
        let end = partition.with_log(|log| {
            let offset_lag = (log.high_watermark() - log.log_end_offset()).max(0);
            put(partition.directory(), id, false, Copied { size_bytes: log.size_bytes(), offset_lag });
            log.log_end_offset()
        });
        if let Some(future) = future {
            // -1: not known, since the replica is offline.
            let offset_lag = end.map_or(-1, |end| end - future.log_end_offset);
            put(future.directory, id, true, Copied { size_bytes: future.size_bytes, offset_lag });
        }
    }
    let results = context.config.log_dirs.iter().zip(directories);
    let described = results.enumerate().map(|(index, (path, copies))| {
        if context.partitions.has_failed(index) {
            return named(path).with_error_code(Rejection::KafkaStorageError.code());
        }
        result(path, &copies, version)
    });
    let unopened = context.partitions.unopened().iter();
    let unopened = unopened.map(|path| named(path).with_error_code(Rejection::KafkaStorageError.code()));
    described.chain(unopened).collect()
}

fn is_asked_for(request: &DescribeLogDirsRequest, topic: &str, partition: i32) -> bool {
    let Some(topics) = &request.topics else { return true };
    topics.iter().any(|asked| asked.topic.as_str() == topic && asked.partitions.contains(&partition))
}

fn named(path: &Path) -> DescribeLogDirsResult {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    DescribeLogDirsResult::default()
        .with_log_dir(StrBytes::from_string(absolute.to_string_lossy().into_owned()))
}

fn result(path: &Path, copies: &Copies, version: i16) -> DescribeLogDirsResult {
    let topics = copies.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|((number, is_future), copied)| {
            DescribeLogDirsPartition::default()
                .with_partition_index(*number)
                .with_partition_size(i64::try_from(copied.size_bytes).unwrap_or(i64::MAX))
                .with_offset_lag(copied.offset_lag)
                .with_is_future_key(*is_future)
        });
        DescribeLogDirsTopic::default().with_name(to_wire_topic(topic)).with_partitions(partitions.collect())
    });
    let result = named(path).with_topics(topics.collect());
    if version < 4 {
        return result;
    }
    match rustix::fs::statvfs(path) {
        Ok(space) => {
            let bytes =
                |blocks: u64| i64::try_from(blocks.saturating_mul(space.f_frsize)).unwrap_or(i64::MAX);
            result.with_total_bytes(bytes(space.f_blocks)).with_usable_bytes(bytes(space.f_bavail))
        }
        Err(error) => {
            warn!(directory = %path.display(), %error, "the size of the file system cannot be read");
            result
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let copied = |size_bytes, offset_lag| Copied { size_bytes, offset_lag };
        let partitions = BTreeMap::from([((0, false), copied(7, 0)), ((1, true), copied(9, 3))]);
        let copies = Copies::from([("t".into(), partitions)]);
        let directory = tempfile::tempdir().unwrap();
        assert_every_version_encodes::<DescribeLogDirsRequest>(|version| {
            let results = vec![result(directory.path(), &copies, version)];
            DescribeLogDirsResponse::default().with_results(results)
        });
        let newest = result(directory.path(), &copies, 4);
        assert!(0 < newest.usable_bytes && newest.usable_bytes <= newest.total_bytes);
        let future = &newest.topics[0].partitions[1];
        assert_eq!((future.partition_size, future.offset_lag, future.is_future_key), (9, 3, true));
    }

    #[test]
    fn only_what_was_asked_for_is_described() {
        let topic = DescribableLogDirTopic::default().with_topic(to_wire_topic("t")).with_partitions(vec![1]);
        let request = DescribeLogDirsRequest::default().with_topics(Some(vec![topic]));
        let rows = [("t", 1, true), ("t", 0, false), ("u", 1, false)];
        for (topic, partition, expected) in rows {
            assert_eq!(is_asked_for(&request, topic, partition), expected, "{topic}-{partition}");
        }
        let all = DescribeLogDirsRequest::default().with_topics(None);
        assert!(is_asked_for(&all, "u", 5));
    }
}
