//! The broker's `/metrics`, in the names that JMX exporters give to Kafka's beans; what Kafka does not have begins with
//! `zurau_`. A number that this broker does not know is left out, never made up.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::instruments::Counter;

use super::topics::Counters;
use super::{groups, partitions};
use crate::context::BrokerContext;
use crate::disk_space::Space;
use crate::partition::{Observation, Partition};
use crate::partitions::ObservedMoves;
use crate::shared::wall_clock_ms;
use crate::transactions::TransactionState;

/// How long all coordinators of a kind may take to tell; then what they hold is left out.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Everything that can be said once the logs are loaded. Waits for the coordinators: to be called on a thread that may
/// wait, within a runtime.
pub(crate) fn write(context: &BrokerContext, page: &mut Exposition) {
    let observed: Vec<(Arc<Partition>, Observation)> = context
        .partitions
        .all()
        .into_iter()
        .map(|partition| (Arc::clone(&partition), partition.observe()))
        .collect();
    replica_manager(context, &observed, page);
    let help =
        "Partitions that this broker stays in sync of as the last one, although its log may lack records.";
    page.counter("zurau_possible_losses_total", help, context.shared.metrics.possible_losses.get());
    topics(context, page);
    context.shared.metrics.requests.write(page);
    waiting(&observed, page);
    fetchers(context, page);
    let moving = context.partitions.observe_moves();
    moves(&moving, page);
    fetch_sessions(context, page);
    logs(context, page);
    lease(context, page);
    cluster(context, page);
    groups::write(context, page);
    transactions(context, page);
    if context.config.http_metrics_partitions {
        partitions::write(context, observed, &moving, page);
    }
}

fn replica_manager(
    context: &BrokerContext,
    observed: &[(Arc<Partition>, Observation)],
    page: &mut Exposition,
) {
    let count = |is: fn(&Observation) -> bool| observed.iter().filter(|(_, one)| is(one)).count();
    let gauges: [(&str, &str, usize); 7] = [
        (
            "underreplicatedpartitions",
            "Led partitions that lack a replica in sync.",
            count(Observation::is_under_replicated),
        ),
        (
            "underminisrpartitioncount",
            "Led partitions below min.insync.replicas.",
            count(Observation::is_under_min_isr),
        ),
        (
            "atminisrpartitioncount",
            "Led partitions with just min.insync.replicas.",
            count(Observation::is_at_min_isr),
        ),
        ("offlinereplicacount", "Replicas here whose log cannot be used.", count(|one| one.is_offline)),
        ("partitioncount", "Replicas here.", observed.len()),
        ("leadercount", "Partitions led.", count(|one| one.leads.is_some())),
        ("reassigningpartitions", "Led partitions that are being moved.", count(Observation::is_reassigning)),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("kafka_server_replicamanager_{name}"), help, value);
    }
    let producers: usize = observed.iter().map(|(_, one)| one.producers).sum();
    page.gauge(
        "kafka_server_replicamanager_produceridcount",
        "Producers that partitions here know.",
        producers,
    );
    let metrics = &context.shared.metrics;
    for (name, help, counter) in [
        ("isrshrinks", "ISR changes that took members out.", &metrics.isr_shrinks),
        ("isrexpands", "ISR changes that took members in.", &metrics.isr_expands),
        ("failedisrupdates", "ISR changes that were refused.", &metrics.failed_isr_updates),
    ] {
        page.counter(&format!("kafka_server_replicamanager_{name}_total"), help, counter.get());
    }
}

fn topics(context: &BrokerContext, page: &mut Exposition) {
    type Read = fn(&Counters) -> &Counter;
    let families: [(&str, &str, Read); 10] = [
        ("messagesin", "Records appended.", |one| &one.messages_in),
        ("bytesin", "Bytes of record batches appended.", |one| &one.bytes_in),
        ("bytesout", "Bytes of record batches sent to consumers.", |one| &one.bytes_out),
        ("bytesrejected", "Bytes of record batches that were too large.", |one| &one.bytes_rejected),
        ("totalproducerequests", "Produces, one for each partition of a request.", |one| {
            &one.produce_requests
        }),
        ("totalfetchrequests", "Fetches, one for each partition of a request.", |one| &one.fetch_requests),
        ("failedproducerequests", "Produces that failed here.", |one| &one.failed_produce_requests),
        ("failedfetchrequests", "Fetches that failed here.", |one| &one.failed_fetch_requests),
        ("invalidmessagecrcrecords", "Produces with a damaged batch.", |one| &one.damaged),
        ("invalidmagicnumberrecords", "Produces of an older message format.", |one| &one.invalid_magic),
    ];
    let metrics = &context.shared.metrics;
    for (name, help, read) in families {
        let name = format!("kafka_server_brokertopicmetrics_{name}_total");
        let mut family = page.family(&name, Kind::Counter, &format!("{help} Without a topic: the sum."));
        metrics.topics.each(|topic, counters| {
            let labels = topic.map(|topic| ("topic", topic));
            family.sample(labels.as_slice(), read(counters).get());
        });
    }
    for (name, help, counter) in [
        (
            "replicationbytesin",
            "Bytes of record batches fetched from leaders.",
            &metrics.replication_bytes_in,
        ),
        ("replicationbytesout", "Bytes of record batches sent to followers.", &metrics.replication_bytes_out),
        (
            "reassignmentbytesin",
            "Bytes of record batches fetched because a reassignment adds this broker to the replicas.",
            &metrics.reassignment_bytes_in,
        ),
        (
            "reassignmentbytesout",
            "Bytes of record batches sent to replicas that a reassignment adds.",
            &metrics.reassignment_bytes_out,
        ),
    ] {
        page.counter(&format!("kafka_server_brokertopicmetrics_{name}_total"), help, counter.get());
    }
}

fn waiting(observed: &[(Arc<Partition>, Observation)], page: &mut Exposition) {
    let sum = |of: fn(&Observation) -> usize| observed.iter().map(|(_, one)| of(one)).sum::<usize>();
    let help =
        "What waits: produces for replicas, fetches for data, deletions of records; one for each partition.";
    let mut family = page.family("kafka_server_delayedoperationpurgatory_purgatorysize", Kind::Gauge, help);
    family.sample(&[("delayedoperation", "DeleteRecords")], sum(|one| one.waiting_deletions));
    family.sample(&[("delayedoperation", "Fetch")], sum(|one| one.waiting_fetches));
    family.sample(&[("delayedoperation", "Produce")], sum(|one| one.waiting_produces));
}

fn fetchers(context: &BrokerContext, page: &mut Exposition) {
    let observed = context.control.fetchers.observe();
    let help = "Records that the most distant follower here is behind its leader's high watermark.";
    let mut family = page.family("kafka_server_replicafetchermanager_maxlag", Kind::Gauge, help);
    family.sample(&[("clientid", "Replica")], observed.lag_max);
    let help = "Followed partitions that are not fetched for now, because their last fetch failed.";
    let mut family =
        page.family("kafka_server_replicafetchermanager_failedpartitionscount", Kind::Gauge, help);
    family.sample(&[("clientid", "Replica")], observed.backing_off);
    let help = "Fetchers that a panic ended.";
    let mut family = page.family("kafka_server_replicafetchermanager_deadthreadcount", Kind::Gauge, help);
    family.sample(&[("clientid", "Replica")], observed.dead);
}

/// Moves of replicas between the log directories of this broker, which in Kafka are fetchers too.
fn moves(observed: &ObservedMoves, page: &mut Exposition) {
    let lag_max = observed.lags.iter().map(|(.., lag)| *lag).max().unwrap_or(0);
    let gauges = [
        (
            "maxlag",
            "Records that the copy of the most distant replica that moves between log directories lacks.",
            lag_max,
        ),
        (
            "failedpartitionscount",
            "Moves between log directories that wait, because their last step failed.",
            i64::try_from(observed.failing).unwrap_or(i64::MAX),
        ),
        (
            "deadthreadcount",
            "Moves between log directories that a panic ended.",
            i64::try_from(observed.dead).unwrap_or(i64::MAX),
        ),
    ];
    for (name, help, value) in gauges {
        let name = format!("kafka_server_replicaalterlogdirsmanager_{name}");
        page.family(&name, Kind::Gauge, help).sample(&[("clientid", "ReplicaAlterLogDirs")], value);
    }
}

fn fetch_sessions(context: &BrokerContext, page: &mut Exposition) {
    let (sessions, partitions) = context.fetch_sessions.observe();
    let help = "Incremental fetch sessions of followers and consumers.";
    let name = "kafka_server_fetchsessioncache_numincrementalfetchsessions";
    page.family(name, Kind::Gauge, help).sample(&[], sessions);
    let help = "Partitions that the fetch sessions remember.";
    let name = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached";
    page.family(name, Kind::Gauge, help).sample(&[], partitions);
}

fn logs(context: &BrokerContext, page: &mut Exposition) {
    let help = "Syncs of logs. Milliseconds; quantiles of the last one or two minutes.";
    let mut family = page.family("kafka_log_logflushstats_logflushrateandtimems", Kind::Summary, help);
    context.shared.metrics.log_flushes.expose(&mut family, &[]);
    let directories = context.partitions.directories();
    let help = "Free space: 0 enough, 1 producers are slowed down, 2 producers are refused.";
    let mut family = page.family("zurau_log_directory_space_state", Kind::Gauge, help);
    for directory in &directories {
        let state: u64 = match directory.space {
            Space::Enough => 0,
            Space::Low(_) => 1,
            Space::Exhausted => 2,
        };
        family.sample(&[("logdirectory", &directory.path.display().to_string())], state);
    }
    let cleaner = context.cleaner_status.lock().clone();
    let help = "Compacted logs that cannot be cleaned.";
    let mut family =
        page.family("kafka_log_logcleanermanager_uncleanable_partitions_count", Kind::Gauge, help);
    for (index, directory) in directories.iter().enumerate() {
        let here = |id: &zurau_common::id::TopicPartition| {
            context.partitions.get(&id.topic, id.partition).is_some_and(|one| one.directory() == index)
        };
        let count = cleaner.uncleanable.keys().filter(|id| here(id)).count();
        family.sample(&[("logdirectory", &directory.path.display().to_string())], count);
    }
    let help = "Dirty part of the dirtiest compacted log, in percent.";
    page.gauge("kafka_log_logcleanermanager_max_dirty_percent", help, u64::from(cleaner.max_dirty_percent));
    let help = "Milliseconds since compaction last ended a pass; none before the first.";
    let mut family = page.family("kafka_log_logcleanermanager_time_since_last_run_ms", Kind::Gauge, help);
    if let Some(last) = cleaner.last_run_ms {
        family.sample(&[], (wall_clock_ms() - last).max(0));
    }
}

fn lease(context: &BrokerContext, page: &mut Exposition) {
    let lease = context.shared.lease();
    let help = "Seconds for which leaders here may acknowledge without looking at ZooKeeper again.";
    page.gauge(
        "zurau_lease_remaining_seconds",
        help,
        lease.map_or(0.0, |lease| lease.remaining().as_secs_f64()),
    );
}

fn transactions(context: &BrokerContext, page: &mut Exposition) {
    let help = "Loads of partitions of transaction coordinators.";
    let prefix = "kafka_server_transaction_coordinator_metrics_partition_load_time";
    context.shared.metrics.transaction_loads.expose(page, prefix, help);
    let counts = Handle::current().block_on(context.transactions.count(context, ANSWER_LIMIT));
    let help = "Transactional ids that are coordinated here, by the state of their last transaction.";
    let mut family = page.family("zurau_transactional_ids", Kind::Gauge, help);
    for state in TransactionState::ALL {
        if let Some(counts) = &counts {
            family.sample(&[("state", state.name())], counts.get(&state).copied().unwrap_or(0));
        }
    }
}

/// What a kafka_exporter beside the cluster tells of it.
fn cluster(context: &BrokerContext, page: &mut Exposition) {
    let image = context.metadata.image();
    page.gauge("kafka_brokers", "Brokers that the controller calls alive.", image.brokers.len());
    let mut topics: Vec<_> = image.topics().collect();
    topics.sort_by(|left, right| left.name.cmp(&right.name));
    let mut family = page.family("kafka_topic_partitions", Kind::Gauge, "Partitions of a topic.");
    for topic in topics {
        family.sample(&[("topic", &topic.name)], topic.partitions.len());
    }
}
