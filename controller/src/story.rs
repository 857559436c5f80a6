//! The log as a readable story: one line per transition, with partition and epoch.

use tracing::{debug, info, warn};

use crate::action::Note;

pub(crate) fn tell(note: &Note) {
    match note {
        Note::Elected { partition, leader, leader_epoch, reason, recovery: false } => {
            info!(%partition, %leader, %leader_epoch, ?reason, "leader elected");
        }
        Note::Elected { partition, leader, leader_epoch, reason, recovery: true } => {
            warn!(%partition, %leader, %leader_epoch, ?reason, "leader elected UNCLEANLY: acknowledged records may be lost");
        }
        Note::Offline { partition, why } => warn!(%partition, "partition is offline: {why}"),
        Note::IsrStored { partition, isr, elr, partition_epoch } => {
            info!(%partition, ?isr, ?elr, %partition_epoch, "ISR stored");
        }
        Note::ProposalRefused { partition, broker, rejection } => {
            info!(%partition, %broker, "ISR change refused: {rejection}");
        }
        Note::TopicNamed { topic, topic_id } => info!(%topic, %topic_id, "topic has its id"),
        Note::TopicRemoved { topic } => info!(%topic, "topic removed"),
        Note::Rejected { subject, why } => warn!("{subject}: {why}"),
        Note::BrokerUp { broker, broker_epoch } => info!(%broker, %broker_epoch, "broker is alive"),
        Note::BrokerDown { broker } => info!(%broker, "broker is gone"),
        Note::TookOffice { epoch, brokers, partitions } => {
            info!(%epoch, brokers, partitions, "active controller has read the cluster and is in charge");
        }
        Note::WaitingForBrokers { registered, named } => {
            info!(
                registered,
                named, "fewer than half of the brokers are registered; waiting for one session timeout"
            );
            debug!("elections now would move everything after an outage");
        }
    }
}
