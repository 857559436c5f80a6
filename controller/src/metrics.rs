//! What the controller counts while it works, over all its terms of office, and the page that shows it.

use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::instruments::{Counter, Timer};
use zurau_common::id::BrokerId;

use crate::action::Note;
use crate::statistics::Statistics;

/// Of one controller process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) elections: Counter,
    pub(crate) unclean_elections: Counter,
    /// Steps of the machine.
    pub(crate) events: Timer,
}

impl Metrics {
    pub(crate) fn count(&self, note: &Note) {
        if let Note::Elected { recovery, .. } = note {
            self.elections.add(1);
            self.unclean_elections.add(u64::from(*recovery));
        }
    }
}

/// What the loop in office knows at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InOffice {
    pub(crate) cluster: Statistics,
    /// Readings, outcomes and answers that wait for the machine.
    pub(crate) waiting_events: usize,
    /// Records that wait to be sent to each live broker.
    pub(crate) outbox: Vec<(BrokerId, usize)>,
}

/// `in_office`: `None` for a standby, which knows nothing of the cluster.
pub(crate) fn write(metrics: &Metrics, in_office: Option<&InOffice>, page: &mut Exposition) {
    let help = "1 for the active controller, 0 for a standby.";
    page.gauge("kafka_controller_kafkacontroller_activecontrollercount", help, in_office.is_some());
    let standby = InOffice::default();
    // As in Kafka, a standby shows zeros: sums over all controllers are those of the active one.
    let InOffice { cluster, waiting_events, outbox } = in_office.unwrap_or(&standby);
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
    ] {
        page.gauge(&format!("kafka_controller_kafkacontroller_{name}"), help, value);
    }
    let help = "Leaders elected uncleanly by this process: acknowledged records may be lost.";
    let name = "kafka_controller_controllerstats_uncleanleaderelections_total";
    page.counter(name, help, metrics.unclean_elections.get());
    let name = "kafka_controller_controllerstats_leaderelections_total";
    page.counter(name, "Leaders elected by this process.", metrics.elections.get());
    let help = "Readings, outcomes and answers that wait for the controller.";
    page.gauge("kafka_controller_controllereventmanager_eventqueuesize", help, *waiting_events);
    let help = "Steps of the controller. Milliseconds; quantiles of the last one or two minutes.";
    let name = "kafka_controller_controllereventmanager_eventqueueprocessingtimems";
    metrics.events.expose(&mut page.family(name, Kind::Summary, help), &[]);
    let total: usize = outbox.iter().map(|(_, waiting)| waiting).sum();
    let help = "Records that wait to be sent to brokers.";
    page.gauge("kafka_controller_controllerchannelmanager_totalqueuesize", help, total);
    let name = "kafka_controller_controllerchannelmanager_queuesize";
    let mut family = page.family(name, Kind::Gauge, "Records that wait to be sent to a broker.");
    for (broker, waiting) in outbox {
        family.sample(&[("brokerid", &broker.to_string())], *waiting);
    }
}
