//! Words of the APIs that write in transactions: whose transaction it is, and whether its coordinator knows that the
//! partition is part of it before the first record goes there (KIP-890, TXN-01, TXN-02).
//!
//! For clients of version 2 the partition is not only looked for but added. Their next transaction may begin while the
//! markers of the one before are written: then its coordinator is asked again for a while, so that the client does not
//! have to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::ProduceRequest;
use tokio::time::Instant;
use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::rejection::Rejection;

use crate::context::BrokerContext;
use crate::coordinator::setting;
use crate::log::{Asking, BatchHeader, PartitionLog, Verification, VerificationGuard};
use crate::partition::ProduceRejection;
use crate::shared::wall_clock_ms;
use crate::verifier::Claim;

/// How long a request waits for the coordinator's answer at most. The requests behind it on the connection wait too,
/// which keeps the order of a producer.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a request of version 2 waits for the markers of the transaction before, and for how long at a time.
const MARKERS_WAIT_MAX: Duration = Duration::from_millis(100);
const MARKERS_PAUSE: Duration = Duration::from_millis(5);

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
    pub(super) client: TransactionClient,
}

/// What a client knows of transactions, by the version of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TransactionClient {
    /// TRANSACTION_ABORTABLE.
    pub(super) may_abort: bool,
    /// It leaves it to the partition's leader to add the partition to the transaction (version 2 of KIP-890).
    pub(super) leaves_adding: bool,
}

/// What a produce request writes in a transaction, if anything.
///
/// # Errors
/// Transactional records without a transactional id, or of two producers.
pub(super) fn opening_of(
    request: &ProduceRequest,
    client: TransactionClient,
) -> Result<Option<Opening>, Rejection> {
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
    Ok(Some(Opening { transactional_id: id.as_str().into(), producer, sequences, client }))
}

/// Asks the coordinator where that is needed. Nothing is said of partitions that are not hosted here.
pub(super) async fn verify(context: &BrokerContext, opening: &Opening, limit: Instant) -> Verified {
    let markers_limit = limit.min(Instant::now() + MARKERS_WAIT_MAX);
    let mut known = HashMap::new();
    let mut wanted: Vec<&PartitionOf> = opening.sequences.keys().collect();
    loop {
        known.extend(ask(context, opening, &wanted, limit).await);
        let is_early =
            |at: &&PartitionOf| matches!(known.get(*at), Some(Err(Rejection::ConcurrentTransactions)));
        wanted.retain(is_early);
        if wanted.is_empty() || !opening.client.leaves_adding || markers_limit <= Instant::now() {
            return known;
        }
        tokio::time::sleep(MARKERS_PAUSE).await;
    }
}

async fn ask(
    context: &BrokerContext,
    opening: &Opening,
    wanted: &[&PartitionOf],
    limit: Instant,
) -> Verified {
    let adds = opening.client.leaves_adding;
    let is_on: bool =
        setting(&context.topic_configs.broker_config().settings, "transaction.partition.verification.enable");
    let mut known = HashMap::new();
    let mut claimed = Vec::new();
    for at in wanted {
        let Some(partition) = context.partitions.get(&at.0, at.1) else { continue };
        if !is_on && !adds {
            known.insert((*at).clone(), Ok(Verification::NotAsked));
            continue;
        }
        let asking = Asking { producer: opening.producer, sequence: opening.sequences[*at], adds };
        let begun = partition.begin_verification(asking, wall_clock_ms(), limit).await;
        if let Ok(Some(guard)) = begun {
            claimed.push((TopicPartition::new(Arc::clone(&at.0), at.1), guard));
        }
        known.insert((*at).clone(), begun.map(Verification::Asked));
    }
    if claimed.is_empty() {
        return known;
    }
    let (transactional_id, producer) = (Arc::clone(&opening.transactional_id), opening.producer);
    let partitions = claimed.iter().map(|(partition, _)| partition.clone()).collect();
    let claim = Claim { transactional_id, producer, partitions, adds };
    let verdict = context.verifier.verify(context, claim, limit).await;
    for (partition, guard) in claimed {
        let refused = match &verdict {
            Ok(answered) => answered.refused.get(&partition).copied().or_else(|| {
                let epoch = answered.coordinator_epoch?;
                is_outdated(context, &partition, (producer.0, epoch)).then_some(Rejection::NotCoordinator)
            }),
            Err(rejection) => Some(*rejection),
        };
        // The marker of the transaction before came while the coordinator was asked.
        let is_overtaken = || adds && !is_current(context, &partition, (producer.0, guard));
        let refused = refused.or_else(|| is_overtaken().then_some(Rejection::ConcurrentTransactions));
        if let Some(rejection) = refused {
            known.insert((partition.topic, partition.partition), Err(opening.told(rejection)));
        }
    }
    known
}

fn is_current(
    context: &BrokerContext,
    at: &TopicPartition,
    (producer_id, guard): (i64, VerificationGuard),
) -> bool {
    in_log(context, at, |log| log.is_current_verification(producer_id, guard)) == Some(true)
}

/// Whether a newer coordinator than the one that answered has ended a transaction of the producer on the partition.
fn is_outdated(context: &BrokerContext, at: &TopicPartition, (producer_id, epoch): (i64, i32)) -> bool {
    in_log(context, at, |log| log.believes_coordinator(producer_id, epoch)) == Some(false)
}

/// What the partition's log says; `None` where there is none.
fn in_log(
    context: &BrokerContext,
    at: &TopicPartition,
    ask: impl FnOnce(&PartitionLog) -> bool,
) -> Option<bool> {
    context.partitions.get(&at.topic, at.partition)?.with_log(|log| ask(log))
}

impl Opening {
    /// In words that the client knows.
    fn told(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::TransactionAbortable if !self.client.may_abort => Rejection::InvalidTxnState,
            other => other,
        }
    }
}

/// Why a produce is refused. What may succeed later is told as NOT_ENOUGH_REPLICAS: old clients retry that, and do not
/// ask for new metadata first. Clients of version 2 know what it means that the transaction before is not complete.
pub(super) fn refusal(rejection: Rejection, client: TransactionClient) -> ProduceRejection {
    match rejection {
        Rejection::ConcurrentTransactions if client.leaves_adding => rejection.into(),
        Rejection::InvalidTxnState => ProduceRejection {
            message: Some("the partition was not added to the transaction".to_owned()),
            ..rejection.into()
        },
        Rejection::ConcurrentTransactions
        | Rejection::NetworkException
        | Rejection::CoordinatorLoadInProgress
        | Rejection::CoordinatorNotAvailable
        | Rejection::NotCoordinator
        | Rejection::OperationNotAttempted => ProduceRejection {
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

    fn client(may_abort: bool, leaves_adding: bool) -> TransactionClient {
        TransactionClient { may_abort, leaves_adding }
    }

    fn records(producer: (i64, i16, i32), transactional: bool) -> Bytes {
        batch(&BatchSpec { producer: Some(producer), transactional, ..BatchSpec::default() })
    }

    #[test]
    fn transactional_records_need_one_producer_and_its_transactional_id() {
        let (plain, first, other) =
            (records((7, 0, 0), false), records((7, 0, 5), true), records((8, 0, 0), true));
        let opening = |id, records| opening_of(&request(id, records), client(true, false));
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
        let opening = |client| {
            opening_of(&request(Some("x"), vec![records((7, 0, 0), true)]), client).unwrap().unwrap()
        };
        let (old, newer, newest) = (client(false, false), client(true, false), client(true, true));
        let rows = [
            (Rejection::TransactionAbortable, newer, Rejection::TransactionAbortable),
            (Rejection::TransactionAbortable, old, Rejection::InvalidTxnState),
            (Rejection::NotCoordinator, newer, Rejection::NotEnoughReplicas),
            (Rejection::NetworkException, old, Rejection::NotEnoughReplicas),
            (Rejection::ConcurrentTransactions, newer, Rejection::NotEnoughReplicas),
            (Rejection::ConcurrentTransactions, newest, Rejection::ConcurrentTransactions),
            (Rejection::OperationNotAttempted, newest, Rejection::NotEnoughReplicas),
            (Rejection::InvalidProducerEpoch, newer, Rejection::InvalidProducerEpoch),
            (Rejection::InvalidProducerIdMapping, newer, Rejection::InvalidProducerIdMapping),
        ];
        for (rejection, client, expected) in rows {
            let told = refusal(opening(client).told(rejection), client);
            assert_eq!(told.rejection, expected, "{rejection:?}");
        }
    }
}
