//! What the controller counts while it works, over all its terms of office, and the page that shows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::instruments::{Counter, Timer};
use zurau_common::id::TopicPartition;
use zurau_common::zk::session_metrics::SessionMetrics;

use crate::action::{Note, Reason};
use crate::outbox::Waiting;
use crate::statistics::Statistics;

/// Of one controller process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    elections: Counter,
    unclean_elections: Counter,
    /// Steps of the machine.
    pub(crate) events: Timer,
    /// What they waited before, in the controller's queues.
    pub(crate) queued: Timer,
    /// In the order of [`Task::ALL`].
    tasks: [Timer; Task::ALL.len()],
    pub(crate) sessions: Arc<SessionMetrics>,
}

/// What Kafka's ControllerStats time, as far as it is done here. Kafka times the work on one event, its writes included; here
/// that is the time from the decision, or the request, until the outcome is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    ControllerChange,
    LeaderElection,
    TopicChange,
    TopicDeletion,
    PartitionReassignment,
    ControlledShutdown,
    IsrChange,
    LeaderAndIsrResponseReceived,
}

impl Task {
    const ALL: [(Self, &'static str, &'static str); 8] = [
        (Self::ControllerChange, "controllerchange", "From taking office to being in charge of the cluster."),
        (
            Self::LeaderElection,
            "leaderelection",
            "Leaders elected because the one before was gone, or did not lead; until they are stored.",
        ),
        (Self::TopicChange, "topicchange", "First leaders of partitions, until they are stored."),
        (Self::TopicDeletion, "topicdeletion", "Removals of deleted topics from ZooKeeper."),
        (
            Self::PartitionReassignment,
            "partitionreassignment",
            "Leaders elected for reassignments, at the begin and the end of each; until they are stored.",
        ),
        (Self::ControlledShutdown, "controlledshutdown", "Requests of brokers that stop."),
        (Self::IsrChange, "isrchange", "Requests of leaders to change ISRs."),
        (
            Self::LeaderAndIsrResponseReceived,
            "leaderandisrresponsereceived",
            "Work on answers of brokers to orders.",
        ),
    ];

    /// `None` for what Kafka counts among balances: who asked for it is not known here.
    fn of(reason: Reason) -> Option<Self> {
        match reason {
            Reason::NewPartition => Some(Self::TopicChange),
            Reason::ControllerStart
            | Reason::BrokerGone
            | Reason::BrokerRestarted
            | Reason::Resigned
            | Reason::Refused
            | Reason::NoAnswer => Some(Self::LeaderElection),
            Reason::Reassignment | Reason::ReassignmentDone => Some(Self::PartitionReassignment),
            // That of the request is told.
            Reason::ControlledShutdown | Reason::Preferred => None,
        }
    }
}

/// How long the writes of partitions took that are reported now.
#[derive(Debug, Default)]
pub(crate) struct Elections(HashMap<TopicPartition, Duration>);

impl Elections {
    pub(crate) fn took(&mut self, partition: &TopicPartition, took: Duration) {
        self.0.insert(partition.clone(), took);
    }
}

impl Metrics {
    /// `elections`: an election that is not among them is counted, but not timed, because its outcome was found later.
    pub(crate) fn count(&self, note: &Note, elections: &Elections) {
        let Note::Elected { partition, reason, recovery, .. } = note else { return };
        self.elections.add(1);
        self.unclean_elections.add(u64::from(*recovery));
        if let Some((task, took)) = Task::of(*reason).zip(elections.0.get(partition)) {
            self.done(task, *took);
        }
    }

    pub(crate) fn done(&self, task: Task, took: Duration) {
        for ((one, ..), timer) in Task::ALL.iter().zip(&self.tasks) {
            if *one == task {
                timer.record(took);
            }
        }
    }
}

/// What the loop in office knows at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct InOffice {
    pub(crate) cluster: Statistics,
    /// Readings, outcomes, answers and requests that wait for the machine.
    pub(crate) waiting_events: usize,
    /// What waits to be sent to each live broker.
    pub(crate) outbox: Vec<Waiting>,
}

/// `in_office`: `None` for a standby, which knows nothing of the cluster.
pub(crate) fn write(metrics: &Metrics, in_office: Option<&InOffice>, page: &mut Exposition) {
    let help = "1 for the active controller, 0 for a standby.";
    page.gauge("kafka_controller_kafkacontroller_activecontrollercount", help, in_office.is_some());
    let standby = InOffice::default();
    // As in Kafka, a standby shows zeros: sums over all controllers are those of the active one.
    let InOffice { cluster, waiting_events, outbox } = in_office.unwrap_or(&standby);
    cluster_numbers(cluster, page);
    let help = "Leaders elected uncleanly by this process: acknowledged records may be lost.";
    let name = "kafka_controller_controllerstats_uncleanleaderelections_total";
    page.counter(name, help, metrics.unclean_elections.get());
    let name = "kafka_controller_controllerstats_leaderelections_total";
    page.counter(name, "Leaders elected by this process.", metrics.elections.get());
    let lately = "Milliseconds; quantiles of the last one or two minutes.";
    for ((_, name, help), timer) in Task::ALL.iter().zip(&metrics.tasks) {
        let name = format!("kafka_controller_controllerstats_{name}rateandtimems");
        timer.expose(&mut page.family(&name, Kind::Summary, &format!("{help} {lately}")), &[]);
    }
    let help = "Readings, outcomes, answers and requests that wait for the controller.";
    page.gauge("kafka_controller_controllereventmanager_eventqueuesize", help, *waiting_events);
    for (name, help, timer) in [
        ("eventqueuetimems", "Waiting of those.", &metrics.queued),
        ("eventqueueprocessingtimems", "Steps of the controller.", &metrics.events),
    ] {
        let name = format!("kafka_controller_controllereventmanager_{name}");
        timer.expose(&mut page.family(&name, Kind::Summary, &format!("{help} {lately}")), &[]);
    }
    let total: usize = outbox.iter().map(|one| one.records).sum();
    let help = "Records that wait to be sent to brokers.";
    page.gauge("kafka_controller_controllerchannelmanager_totalqueuesize", help, total);
    let brokers: Vec<String> = outbox.iter().map(|one| one.broker.to_string()).collect();
    let name = "kafka_controller_controllerchannelmanager_queuesize";
    let mut family = page.family(name, Kind::Gauge, "Records that wait to be sent to a broker.");
    for (one, broker) in outbox.iter().zip(&brokers) {
        family.sample(&[("brokerid", broker)], one.records);
    }
    let help = format!(
        "Requests sent to a broker, repeated ones included, and how long what was sent had waited; of each request the \
         longest. {lately}"
    );
    let name = "kafka_controller_controllerchannelmanager_requestrateandqueuetimems";
    let mut family = page.family(name, Kind::Summary, &help);
    for (one, broker) in outbox.iter().zip(&brokers) {
        one.waited.expose(&mut family, &[("brokerid", broker)]);
    }
}

fn cluster_numbers(cluster: &Statistics, page: &mut Exposition) {
    for (name, help, value) in [
        ("offlinepartitionscount", "Partitions without a leader.", cluster.offline_partitions),
        (
            "preferredreplicaimbalancecount",
            "Partitions not led by their first replica.",
            cluster.preferred_imbalance,
        ),
        ("globaltopiccount", "Topics.", cluster.topics),
        ("globalpartitioncount", "Partitions.", cluster.partitions),
        ("activebrokercount", "Registered brokers.", cluster.live_brokers),
        ("topicstodeletecount", "Topics that are being deleted.", cluster.topics_to_delete),
        ("replicastodeletecount", "Replicas of topics that are being deleted.", cluster.replicas_to_delete),
        (
            "topicsineligibletodeletecount",
            "Topics that may not be deleted although that was asked for.",
            cluster.topics_ineligible_to_delete,
        ),
        (
            "replicasineligibletodeletecount",
            "Replicas of topics that may not be deleted although that was asked for.",
            cluster.replicas_ineligible_to_delete,
        ),
        (
            "controllerstate",
            "Work under way: 0 none, 1 taking office, 2 elections after failures, 3 new topics, 4 deletions, 5 \
             reassignments, 7 preferred leaders, 8 stopping brokers, 9 ISR changes.",
            cluster.doing as usize,
        ),
    ] {
        page.gauge(&format!("kafka_controller_kafkacontroller_{name}"), help, value);
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::id::{BrokerId, LeaderEpoch};

    use super::*;

    #[test]
    fn elections_are_timed_by_their_reason() {
        let metrics = Metrics::default();
        let tp = TopicPartition::new("t", 0);
        let mut elections = Elections::default();
        elections.took(&tp, Duration::from_millis(7));
        let elected = |partition: &TopicPartition, reason, recovery| Note::Elected {
            partition: partition.clone(),
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(3),
            reason,
            recovery,
        };
        let found_later = TopicPartition::new("t", 1);
        for note in [
            elected(&tp, Reason::BrokerGone, true),
            elected(&tp, Reason::NewPartition, false),
            elected(&tp, Reason::NewPartition, false),
            elected(&tp, Reason::Preferred, false),
            elected(&found_later, Reason::BrokerGone, false),
            Note::BrokerDown { broker: BrokerId(1) },
        ] {
            metrics.count(&note, &elections);
        }
        metrics.done(Task::IsrChange, Duration::ZERO);
        let waited = Arc::new(Timer::default());
        waited.record(Duration::from_millis(5));
        let outbox = vec![Waiting { broker: BrokerId(2), records: 4, waited }];
        let mut page = Exposition::default();
        let in_office = InOffice { waiting_events: 3, outbox, ..InOffice::default() };
        write(&metrics, Some(&in_office), &mut page);
        let text = page.into_text();
        for line in [
            "kafka_controller_controllerstats_leaderelections_total 5",
            "kafka_controller_controllerstats_uncleanleaderelections_total 1",
            "kafka_controller_controllerstats_leaderelectionrateandtimems_count 1",
            "kafka_controller_controllerstats_leaderelectionrateandtimems_sum 7",
            "kafka_controller_controllerstats_topicchangerateandtimems_count 2",
            "kafka_controller_controllerstats_isrchangerateandtimems_count 1",
            "kafka_controller_controllerstats_topicdeletionrateandtimems_count 0",
            "kafka_controller_controllereventmanager_eventqueuesize 3",
            "kafka_controller_controllerchannelmanager_totalqueuesize 4",
            "kafka_controller_controllerchannelmanager_queuesize{brokerid=\"2\"} 4",
            "kafka_controller_controllerchannelmanager_requestrateandqueuetimems_sum{brokerid=\"2\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
