//! Words of the APIs that write in transactions: whose transaction it is, and whether its coordinator knows that the
//! partition is part of it before the first record goes there (KIP-890, TXN-01, TXN-02).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::ProduceRequest;
use tokio::time::Instant;
use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::rejection::Rejection;

use crate::context::BrokerContext;
use crate::coordinator::setting;
use crate::log::{BatchHeader, Verification};
use crate::partition::ProduceRejection;
use crate::shared::wall_clock_ms;
use crate::verifier::Claim;

/// How long a request waits for the coordinator's answer at most. The requests behind it on the connection wait too,
/// which keeps the order of a producer.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

/// A partition of a request.
type PartitionOf = (TopicName, i32);

/// What each partition's append has to show, or why it must not be tried.
pub(super) type Verified = HashMap<PartitionOf, Result<Verification, Rejection>>;

/// Who writes in a transaction, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) transactional_id: Arc<str>,
    /// Id and epoch.
    pub(super) producer: (i64, i16),
    /// The sequence of the first record for each partition; −1 for a coordinator's.
    pub(super) sequences: BTreeMap<PartitionOf, i32>,
    /// The client knows TRANSACTION_ABORTABLE.
    pub(super) may_abort: bool,
}

/// What a produce request writes in a transaction, if anything.
///
/// # Errors
/// Transactional records without a transactional id, or of two producers.
pub(super) fn opening_of(request: &ProduceRequest, may_abort: bool) -> Result<Option<Opening>, Rejection> {
    let mut producer = None;
    let mut sequences = BTreeMap::new();
    for topic in &request.topic_data {
        for partition in &topic.partition_data {
            let header = partition.records.as_deref().and_then(|records| BatchHeader::parse(records).ok());
            let Some(header) = header.filter(|header| header.is_transactional() && header.has_producer())
            else {
                continue;
            };
            let this = (header.producer_id, header.producer_epoch);
            if *producer.get_or_insert(this) != this {
                return Err(Rejection::InvalidProducerIdMapping);
            }
            sequences.insert((TopicName::from(topic.name.as_str()), partition.index), header.base_sequence);
        }
    }
    let Some(producer) = producer else { return Ok(None) };
    let id = request.transactional_id.as_ref().ok_or(Rejection::TransactionalIdAuthorizationFailed)?;
    Ok(Some(Opening { transactional_id: id.as_str().into(), producer, sequences, may_abort }))
}

/// Asks the coordinator where that is needed. Nothing is said of partitions that are not hosted here.
pub(super) async fn verify(context: &BrokerContext, opening: &Opening, limit: Instant) -> Verified {
    let is_on: bool =
        setting(&context.topic_configs.broker_config().settings, "transaction.partition.verification.enable");
    let mut known = HashMap::new();
    let mut claimed = Vec::new();
    for (at, sequence) in &opening.sequences {
        let Some(partition) = context.partitions.get(&at.0, at.1) else { continue };
        if !is_on {
            known.insert(at.clone(), Ok(Verification::NotAsked));
            continue;
        }
        let begun = partition.begin_verification(opening.producer, *sequence, wall_clock_ms(), limit).await;
        if let Ok(Some(_)) = begun {
            claimed.push(TopicPartition::new(Arc::clone(&at.0), at.1));
        }
        known.insert(at.clone(), begun.map(Verification::Asked));
    }
    if claimed.is_empty() {
        return known;
    }
    let (transactional_id, producer) = (Arc::clone(&opening.transactional_id), opening.producer);
    let claim = Claim { transactional_id, producer, partitions: claimed.clone() };
    let verdict = context.verifier.verify(context, claim, limit).await;
    for partition in claimed {
        let refused = match &verdict {
            Ok(answered) => answered.refused.get(&partition).copied().or_else(|| {
                let epoch = answered.coordinator_epoch?;
                is_outdated(context, &partition, (producer.0, epoch)).then_some(Rejection::NotCoordinator)
            }),
            Err(rejection) => Some(*rejection),
        };
        if let Some(rejection) = refused {
            known.insert((partition.topic, partition.partition), Err(opening.told(rejection)));
        }
    }
    known
}

/// Whether a newer coordinator than the one that answered has ended a transaction of the producer on the partition.
fn is_outdated(context: &BrokerContext, at: &TopicPartition, (producer_id, epoch): (i64, i32)) -> bool {
    let partition = context.partitions.get(&at.topic, at.partition);
    let believes = partition.and_then(|one| one.with_log(|log| log.believes_coordinator(producer_id, epoch)));
    believes == Some(false)
}

impl Opening {
    /// In words that the client knows.
    fn told(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::TransactionAbortable if !self.may_abort => Rejection::InvalidTxnState,
            other => other,
        }
    }
}

/// Why a produce is refused. What may succeed later is told as NOT_ENOUGH_REPLICAS: old clients retry that, and do not
/// ask for new metadata first.
pub(super) fn refusal(rejection: Rejection) -> ProduceRejection {
    match rejection {
        Rejection::InvalidTxnState => ProduceRejection {
            message: Some("the partition was not added to the transaction".to_owned()),
            ..rejection.into()
        },
        Rejection::ConcurrentTransactions
        | Rejection::NetworkException
        | Rejection::CoordinatorLoadInProgress
        | Rejection::CoordinatorNotAvailable
        | Rejection::NotCoordinator => ProduceRejection {
            message: Some(format!(
                "it could not be verified that the partition is part of the transaction: {rejection}"
            )),
            ..Rejection::NotEnoughReplicas.into()
        },
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::TransactionalId;
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    use kafka_protocol::protocol::StrBytes;
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::log::test_batches::{BatchSpec, batch};

    fn request(transactional_id: Option<&'static str>, records: Vec<Bytes>) -> ProduceRequest {
        let partitions = records.into_iter().zip(0..).map(|(records, number)| {
            PartitionProduceData::default().with_index(number).with_records(Some(records))
        });
        let topic = TopicProduceData::default()
            .with_name(to_wire_topic("t"))
            .with_partition_data(partitions.collect());
        ProduceRequest::default()
            .with_transactional_id(transactional_id.map(|id| TransactionalId(StrBytes::from_static_str(id))))
            .with_topic_data(vec![topic])
    }

    fn records(producer: (i64, i16, i32), transactional: bool) -> Bytes {
        batch(&BatchSpec { producer: Some(producer), transactional, ..BatchSpec::default() })
    }

    #[test]
    fn transactional_records_need_one_producer_and_its_transactional_id() {
        let (plain, first, other) =
            (records((7, 0, 0), false), records((7, 0, 5), true), records((8, 0, 0), true));
        let opening = |id, records| opening_of(&request(id, records), true);
        assert_eq!(opening(None, vec![plain.clone(), Bytes::from_static(b"no batch")]), Ok(None));
        assert_eq!(
            opening(None, vec![plain.clone(), first.clone()]),
            Err(Rejection::TransactionalIdAuthorizationFailed)
        );
        assert_eq!(opening(Some("x"), vec![first.clone(), other]), Err(Rejection::InvalidProducerIdMapping));
        let found = opening(Some("x"), vec![plain, first]).unwrap().unwrap();
        assert_eq!((&*found.transactional_id, found.producer), ("x", (7, 0)));
        assert_eq!(found.sequences, BTreeMap::from([(("t".into(), 1), 5)]));
    }

    #[test]
    fn refusals_are_told_as_the_client_knows_them() {
        let opening = |may_abort| Opening {
            may_abort,
            ..opening_of(&request(Some("x"), vec![records((7, 0, 0), true)]), true).unwrap().unwrap()
        };
        let rows = [
            (Rejection::TransactionAbortable, true, Rejection::TransactionAbortable),
            (Rejection::TransactionAbortable, false, Rejection::InvalidTxnState),
            (Rejection::NotCoordinator, true, Rejection::NotEnoughReplicas),
            (Rejection::NetworkException, false, Rejection::NotEnoughReplicas),
            (Rejection::ConcurrentTransactions, true, Rejection::NotEnoughReplicas),
            (Rejection::InvalidProducerEpoch, true, Rejection::InvalidProducerEpoch),
            (Rejection::InvalidProducerIdMapping, true, Rejection::InvalidProducerIdMapping),
        ];
        for (rejection, may_abort, expected) in rows {
            assert_eq!(refusal(opening(may_abort).told(rejection)).rejection, expected, "{rejection:?}");
        }
    }
}
