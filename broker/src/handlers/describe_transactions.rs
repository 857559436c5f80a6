//! DescribeTransactions (65), version 0: the state of transactional ids, from the broker that coordinates them.

use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, TransactionalId as WireTransactionalId,
};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::group_words::{text, wire};
use super::{Call, Starting};
use crate::transactions::Transaction;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DescribeTransactionsRequest| async move {
        let context = &call.context;
        let mut states = Vec::with_capacity(request.transactional_ids.len());
        for id in request.transactional_ids {
            let found = context.transactions.describe(context, &text(&id)).await;
            states.push(respond(id, found));
        }
        DescribeTransactionsResponse::default().with_transaction_states(states)
    })
}

fn respond(id: WireTransactionalId, found: Result<Transaction, Rejection>) -> TransactionState {
    let state = TransactionState::default().with_transactional_id(id);
    let transaction = match found {
        Ok(transaction) => transaction,
        Err(rejection) => return state.with_error_code(rejection.code()),
    };
    let mut topics: Vec<TopicData> = Vec::new();
    for partition in &transaction.partitions {
        match topics.last_mut().filter(|topic| *topic.topic.0 == *partition.topic) {
            Some(topic) => topic.partitions.push(partition.partition),
            None => topics.push(
                TopicData::default()
                    .with_topic(to_wire_topic(&partition.topic))
                    .with_partitions(vec![partition.partition]),
            ),
        }
    }
    state
        .with_transaction_state(wire(transaction.state.name()))
        .with_transaction_timeout_ms(transaction.timeout_ms)
        .with_transaction_start_time_ms(transaction.started_ms)
        .with_producer_id(transaction.producer.id.into())
        .with_producer_epoch(transaction.producer.epoch)
        .with_topics(topics)
}

#[cfg(test)]
mod tests {
    use zurau_common::id::TopicPartition;

    use super::*;
    use crate::coordinator::Producer;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::transactions::TransactionState as State;

    #[test]
    fn a_transaction_is_shown_with_its_partitions_by_topic() {
        let partitions = [("b", 1), ("a", 2), ("a", 0)];
        let transaction = Transaction {
            producer: Producer { id: 7, epoch: 3 },
            previous: Producer { id: -1, epoch: -1 },
            next_id: None,
            is_version_2: true,
            timeout_ms: 60_000,
            state: State::PrepareCommit,
            partitions: partitions.map(|(topic, number)| TopicPartition::new(topic, number)).into(),
            updated_ms: 9,
            started_ms: 8,
        };
        let id = || WireTransactionalId(wire("t"));
        let shown = respond(id(), Ok(transaction));
        let topics: Vec<(&str, &[i32])> =
            shown.topics.iter().map(|topic| (topic.topic.as_str(), &*topic.partitions)).collect();
        assert_eq!(topics, [("a", &[0, 2][..]), ("b", &[1][..])]);
        assert_eq!((shown.transaction_state.as_str(), shown.error_code), ("PrepareCommit", 0));
        let unknown = respond(id(), Err(Rejection::TransactionalIdNotFound));
        assert_eq!(unknown.error_code, 105);
        assert_every_version_encodes::<DescribeTransactionsRequest>(|_| {
            let states = vec![shown.clone(), unknown.clone()];
            DescribeTransactionsResponse::default().with_transaction_states(states)
        });
    }
}
