//! Asks transaction coordinators whether partitions are part of a transaction that is going on, or to add them to it for
//! clients that leave this to the partition's leader (KIP-890).
//!
//! One question at a time to each coordinator, which carries whatever was asked meanwhile: many producers cost few
//! requests. A question that is not answered in time is a network error to whoever asked, who has appended nothing.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::AddPartitionsToTxnResult;
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_COORDINATOR_EPOCH, get_i32, to_wire_topic};
use zurau_common::wire::peer::Peer;

use crate::context::BrokerContext;

/// The newest version that the wire crate and Kafka 3.9 carry; v4 was the first for brokers.
const ADD_PARTITIONS_VERSION: i16 = 5;
/// How long an answer may take, and a connection.
const PATIENCE: Patience =
    Patience { usual: Duration::from_secs(5), after_silence: Duration::from_millis(500) };
/// Transactions in one request.
const TRANSACTIONS_PER_REQUEST: usize = 256;
/// Questions that wait for one coordinator; more askers wait outside.
const QUESTIONS_WAITING: usize = 1_024;
/// A coordinator that nobody asked for so long is hung up on.
const IDLE: Duration = Duration::from_secs(300);

/// How long an answer is awaited.
#[derive(Debug, Clone, Copy)]
struct Patience {
    usual: Duration,
    /// Of a coordinator that did not answer the last question: those who ask are held up one after another (a produce
    /// also holds up what is behind it on its connection), and may well ask again.
    after_silence: Duration,
}

/// A producer says that these partitions are part of its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) transactional_id: Arc<str>,
    /// Id and epoch.
    pub(crate) producer: (i64, i16),
    pub(crate) partitions: Vec<TopicPartition>,
    /// The partitions are to be added if they are not there.
    pub(crate) adds: bool,
}

/// What a coordinator says of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The partitions that are not in the transaction, and why.
    pub(crate) refused: HashMap<TopicPartition, Rejection>,
    /// The coordinator's; `None` from one that does not tell.
    pub(crate) coordinator_epoch: Option<i32>,
}

/// What a coordinator says, or why it says nothing.
pub(crate) type Verdict = Result<Answered, Rejection>;

#[derive(Debug)]
struct Question {
    claim: Claim,
    answer: oneshot::Sender<Verdict>,
}

/// The connections to all coordinators, by address.
#[derive(Debug, Default)]
pub(crate) struct TransactionVerifier {
    coordinators: Mutex<HashMap<String, mpsc::Sender<Question>>>,
}

impl TransactionVerifier {
    /// Asks the coordinator of the transactional id. The answer is there at `limit`.
    ///
    /// # Errors
    /// Of all partitions alike: `CoordinatorNotAvailable`, `NetworkException`, or what the coordinator says.
    pub(crate) async fn verify(&self, context: &BrokerContext, claim: Claim, limit: Instant) -> Verdict {
        let address =
            coordinator(context, &claim.transactional_id).ok_or(Rejection::CoordinatorNotAvailable)?;
        let questions = self.questions_to(address);
        let (answer, answered) = oneshot::channel();
        let asked = async {
            let question = Question { claim, answer };
            questions.send(question).await.map_err(|_| Rejection::NetworkException)?;
            answered.await.unwrap_or(Err(Rejection::NetworkException))
        };
        timeout_at(limit, asked).await.unwrap_or(Err(Rejection::NetworkException))
    }

    fn questions_to(&self, address: String) -> mpsc::Sender<Question> {
        let mut coordinators = self.coordinators.lock();
        if let Some(questions) = coordinators.get(&address).filter(|questions| !questions.is_closed()) {
            return questions.clone();
        }
        coordinators.retain(|_, questions| !questions.is_closed());
        let (questions, receiver) = mpsc::channel(QUESTIONS_WAITING);
        tokio::spawn(ask_one_after_another(address.clone(), receiver, PATIENCE));
        coordinators.insert(address, questions.clone());
        questions
    }
}

/// Where the coordinator of a transactional id answers other brokers.
fn coordinator(context: &BrokerContext, transactional_id: &str) -> Option<String> {
    let topic = &context.transactions.offices.topic;
    let number = topic.partition_of(context, transactional_id);
    let image = context.metadata.image();
    let leader: BrokerId = image.partition(topic.name, number)?.leader?;
    let address = image.brokers.get(&leader)?.address(&context.config.inter_broker_listener_name)?;
    Some(format!("{}:{}", address.host, address.port))
}

async fn ask_one_after_another(address: String, mut questions: mpsc::Receiver<Question>, patience: Patience) {
    let mut peer: Option<Peer> = None;
    let mut limit = patience.usual;
    let mut waiting: VecDeque<Question> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match timeout(IDLE, questions.recv()).await {
                Ok(Some(question)) => waiting.push_back(question),
                _ => return,
            }
        }
        while waiting.len() < TRANSACTIONS_PER_REQUEST
            && let Ok(question) = questions.try_recv()
        {
            waiting.push_back(question);
        }
        waiting.retain(|question| !question.answer.is_closed());
        let asking = take_distinct(&mut waiting);
        if asking.is_empty() {
            continue;
        }
        let claims = asking.iter().map(|question| &question.claim);
        let answered = ask(&mut peer, &address, claims, limit).await;
        limit = if answered.is_ok() { patience.usual } else { patience.after_silence };
        for question in asking {
            let verdict = match &answered {
                Ok(response) => verdict(&question.claim, response),
                Err(rejection) => Err(*rejection),
            };
            // Whoever asked may be gone.
            let _ = question.answer.send(verdict);
        }
    }
}

/// Questions for one request: of each transactional id the first, because an answer names nothing else.
fn take_distinct(waiting: &mut VecDeque<Question>) -> Vec<Question> {
    let mut ids = BTreeSet::new();
    let (now, later) = waiting
        .drain(..)
        .partition::<Vec<_>, _>(|question| ids.insert(Arc::clone(&question.claim.transactional_id)));
    waiting.extend(later);
    now
}

async fn ask(
    peer: &mut Option<Peer>,
    address: &str,
    claims: impl Iterator<Item = &Claim>,
    limit: Duration,
) -> Result<AddPartitionsToTxnResponse, Rejection> {
    let request = AddPartitionsToTxnRequest::default().with_transactions(claims.map(transaction).collect());
    if peer.as_ref().is_none_or(Peer::is_closed) {
        let connected = Peer::connect(address, "transaction-verifier", limit).await;
        *peer = Some(connected.map_err(|reason| {
            debug!(address, "the transaction coordinator cannot be reached: {reason:#}");
            Rejection::NetworkException
        })?);
    }
    let Some(connected) = peer else { return Err(Rejection::NetworkException) };
    connected.call_within(limit, ADD_PARTITIONS_VERSION, &request).await.map_err(|reason| {
        debug!(address, %reason, "the transaction coordinator does not answer");
        // A late answer must not hold up the next question.
        *peer = None;
        Rejection::NetworkException
    })
}

fn transaction(claim: &Claim) -> AddPartitionsToTxnTransaction {
    let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
    for TopicPartition { topic, partition } in &claim.partitions {
        let name = to_wire_topic(topic);
        match topics.iter_mut().find(|known| known.name == name) {
            Some(known) => known.partitions.push(*partition),
            None => topics
                .push(AddPartitionsToTxnTopic::default().with_name(name).with_partitions(vec![*partition])),
        }
    }
    AddPartitionsToTxnTransaction::default()
        .with_transactional_id(TransactionalId(StrBytes::from_string(claim.transactional_id.to_string())))
        .with_producer_id(claim.producer.0.into())
        .with_producer_epoch(claim.producer.1)
        .with_verify_only(!claim.adds)
        .with_topics(topics)
}

/// What the answer says of a claim. A partition that it does not name is not verified.
fn verdict(claim: &Claim, response: &AddPartitionsToTxnResponse) -> Verdict {
    match Rejection::from_code(response.error_code) {
        // This broker's fault, of which the client should not hear.
        Some(Rejection::ClusterAuthorizationFailed) => return Err(Rejection::InvalidTxnState),
        Some(rejection) => return Err(rejection),
        None => {}
    }
    let is_asked =
        |result: &&AddPartitionsToTxnResult| result.transactional_id.as_str() == &*claim.transactional_id;
    let result = response.results_by_transaction.iter().find(is_asked);
    let code_of = |asked: &TopicPartition| {
        let topic = result?.topic_results.iter().find(|topic| topic.name.as_str() == &*asked.topic)?;
        let found =
            topic.results_by_partition.iter().find(|found| found.partition_index == asked.partition)?;
        Some(found.partition_error_code)
    };
    let refused = claim.partitions.iter().filter_map(|asked| {
        let rejection = match code_of(asked).map(Rejection::from_code) {
            Some(None) => return None,
            // What producers expect of a leader.
            Some(Some(Rejection::ProducerFenced)) => Rejection::InvalidProducerEpoch,
            Some(Some(rejection)) => rejection,
            None => Rejection::NetworkException,
        };
        Some((asked.clone(), rejection))
    });
    let told = result.map(|result| get_i32(&result.unknown_tagged_fields, TAG_COORDINATOR_EPOCH));
    let coordinator_epoch = told.and_then(Result::ok).flatten();
    Ok(Answered { refused: refused.collect(), coordinator_epoch })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::add_partitions_to_txn_response::{
        AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
    };

    use zurau_common::wire::control::put_i32;

    use super::*;

    fn claim(transactional_id: &str) -> Claim {
        let partitions = [("a", 0), ("b", 1), ("a", 2)];
        let partitions = partitions.map(|(topic, number)| TopicPartition::new(topic, number)).into();
        Claim { transactional_id: transactional_id.into(), producer: (7, 3), partitions, adds: false }
    }

    fn response(codes: [i16; 2]) -> AddPartitionsToTxnResponse {
        let partition = |(number, code)| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(number)
                .with_partition_error_code(code)
        };
        let topic = AddPartitionsToTxnTopicResult::default()
            .with_name(to_wire_topic("a"))
            .with_results_by_partition([(0, codes[0]), (2, codes[1])].map(partition).into());
        let result = AddPartitionsToTxnResult::default()
            .with_transactional_id(TransactionalId(StrBytes::from_static_str("x")))
            .with_topic_results(vec![topic]);
        AddPartitionsToTxnResponse::default().with_results_by_transaction(vec![result])
    }

    #[test]
    fn a_claim_names_each_topic_once() {
        let asked = transaction(&claim("x"));
        let topics: Vec<_> =
            asked.topics.iter().map(|topic| (topic.name.as_str(), topic.partitions.clone())).collect();
        assert_eq!(topics, [("a", vec![0, 2]), ("b", vec![1])]);
        assert!(asked.verify_only && !transaction(&Claim { adds: true, ..claim("x") }).verify_only);
        assert_eq!((asked.producer_id.0, asked.producer_epoch), (7, 3));
    }

    #[test]
    fn partitions_that_are_not_in_the_transaction_are_named() {
        let verdict = verdict(&claim("x"), &response([0, Rejection::ProducerFenced.code()])).unwrap();
        let expected = HashMap::from([
            (TopicPartition::new("a", 2), Rejection::InvalidProducerEpoch),
            (TopicPartition::new("b", 1), Rejection::NetworkException),
        ]);
        assert_eq!(verdict.refused, expected, "what is not named is not verified");
    }

    #[test]
    fn the_epoch_of_the_coordinator_is_heard() {
        let mut response = response([0, 0]);
        assert_eq!(verdict(&claim("x"), &response).unwrap().coordinator_epoch, None);
        let tags = &mut response.results_by_transaction[0].unknown_tagged_fields;
        put_i32(tags, TAG_COORDINATOR_EPOCH, 7);
        assert_eq!(verdict(&claim("x"), &response).unwrap().coordinator_epoch, Some(7));
    }

    #[test]
    fn an_answer_about_nobody_verifies_nothing() {
        assert_eq!(verdict(&claim("y"), &response([0, 0])).unwrap().refused.len(), 3);
        let rows = [
            (Rejection::ClusterAuthorizationFailed, Rejection::InvalidTxnState),
            (Rejection::NotCoordinator, Rejection::NotCoordinator),
        ];
        for (told, expected) in rows {
            let refused = response([0, 0]).with_error_code(told.code());
            assert_eq!(verdict(&claim("x"), &refused), Err(expected));
        }
    }

    #[tokio::test]
    async fn a_silent_coordinator_holds_nobody_up_for_long_twice() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let patience = Patience { usual: Duration::from_secs(2), after_silence: Duration::from_millis(20) };
        let (questions, receiver) = mpsc::channel(1);
        tokio::spawn(ask_one_after_another(address, receiver, patience));
        let started = Instant::now();
        // As from one connection: each is asked when the one before is answered.
        for _ in 0..20 {
            let (answer, answered) = oneshot::channel();
            questions.send(Question { claim: claim("x"), answer }).await.unwrap();
            assert_eq!(answered.await.unwrap(), Err(Rejection::NetworkException));
        }
        let took = started.elapsed();
        assert!(patience.usual <= took && took < 5 * patience.usual, "{took:?}");
    }

    #[test]
    fn one_request_holds_a_transactional_id_once() {
        let question = |id: &str| Question { claim: claim(id), answer: oneshot::channel().0 };
        let mut waiting: VecDeque<Question> = ["x", "y", "x", "z"].map(question).into();
        let ids = |asking: Vec<Question>| -> Vec<String> {
            asking.iter().map(|question| question.claim.transactional_id.to_string()).collect()
        };
        assert_eq!(ids(take_distinct(&mut waiting)), ["x", "y", "z"]);
        assert_eq!(ids(take_distinct(&mut waiting)), ["x"]);
    }
}
