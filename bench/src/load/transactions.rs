//! The transactions of one producer: what is between two batches, asked of the coordinator while the lanes rest.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest, ProducerId,
    TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::kafka::{Connection, KafkaClient, topic_name};

use super::Plan;
use crate::batch::Writer;

const PATIENCE: Duration = Duration::from_secs(20);
const KEY_TYPE_TRANSACTION: i8 = 1;
/// What passes by itself: the coordinator loads, is looked for, or still writes the markers of the last transaction.
const TRANSIENT: [i16; 4] = [14, 15, 16, 51];

pub(super) struct Transactions {
    coordinator: Connection,
    id: TransactionalId,
    producer: (i64, i16),
    topic: String,
    partitions: Vec<i32>,
    length: Duration,
    /// When the open one began, after the start.
    began: Option<Duration>,
    is_over: bool,
}

/// Asks for a producer id and epoch.
pub(super) fn producer_id(client: &mut KafkaClient, id: Option<&TransactionalId>) -> Result<(i64, i16)> {
    let address = match id {
        Some(id) => coordinator(client, id)?,
        None => client.any_address()?,
    };
    let request = InitProducerIdRequest::default()
        .with_transactional_id(id.cloned())
        .with_transaction_timeout_ms(60_000);
    retry("InitProducerId", || {
        let answer = client.call(&address, 2, &request)?;
        Ok((answer.error_code, (answer.producer_id.0, answer.producer_epoch)))
    })
}

fn coordinator(client: &mut KafkaClient, id: &TransactionalId) -> Result<String> {
    let address = client.any_address()?;
    let request =
        FindCoordinatorRequest::default().with_key(id.0.clone()).with_key_type(KEY_TYPE_TRANSACTION);
    retry("FindCoordinator", || {
        let answer = client.call(&address, 3, &request)?;
        Ok((answer.error_code, format!("{}:{}", answer.host.as_str(), answer.port)))
    })
}

fn retry<T>(what: &str, mut ask: impl FnMut() -> Result<(i16, T)>) -> Result<T> {
    let start = Instant::now();
    loop {
        match ask()? {
            (0, answer) => return Ok(answer),
            (error, _) if TRANSIENT.contains(&error) && start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(1));
            }
            (error, _) => bail!("{what}: error {error}"),
        }
    }
}

impl Transactions {
    /// What a plan with transactions needs before its first batch; `None` for one without.
    pub(super) fn begin(client: &mut KafkaClient, plan: &Plan) -> Result<Option<Self>> {
        let Some(length) = plan.transaction else { return Ok(None) };
        let id = plan.transactional_id.clone().context("transactions without a transactional id")?;
        let id = TransactionalId(StrBytes::from_string(id));
        let producer = producer_id(client, Some(&id))?;
        let coordinator = Connection::open(&coordinator(client, &id)?)?;
        Ok(Some(Self {
            coordinator,
            id,
            producer,
            topic: plan.topic.clone(),
            partitions: (0..plan.partitions).collect(),
            length,
            began: None,
            is_over: false,
        }))
    }

    pub(super) fn writer(&self) -> Writer {
        Writer { number: 0, idempotent: Some(self.producer), transactional: true }
    }

    /// Whether the last one has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends the open transaction when its time has come and nothing is in flight, and begins the next one. Says
    /// whether batches may be sent.
    pub(super) fn step(&mut self, elapsed: Duration, in_flight: bool, is_last: bool) -> Result<bool> {
        match self.began {
            Some(began) if !is_last && elapsed < began + self.length => return Ok(true),
            Some(_) if in_flight => return Ok(false),
            Some(_) => self.commit()?,
            None => {}
        }
        self.began = None;
        self.is_over = is_last;
        if !is_last {
            self.add_partitions()?;
            self.began = Some(elapsed);
        }
        Ok(!is_last)
    }

    fn add_partitions(&mut self) -> Result<()> {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(topic_name(&self.topic))
            .with_partitions(self.partitions.clone());
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.id.clone())
            .with_v3_and_below_producer_id(ProducerId(self.producer.0))
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![topic]);
        let coordinator = &mut self.coordinator;
        retry("AddPartitionsToTxn", || {
            let answer = coordinator.call(3, &request)?;
            let results = &answer.results_by_topic_v3_and_below;
            let codes = results.iter().flat_map(|topic| &topic.results_by_partition);
            let worst = codes.map(|result| result.partition_error_code).find(|code| *code != 0);
            Ok((worst.unwrap_or_default(), ()))
        })
    }

    fn commit(&mut self) -> Result<()> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(true);
        let coordinator = &mut self.coordinator;
        retry("EndTxn", || Ok((coordinator.call(3, &request)?.error_code, ())))
    }
}
