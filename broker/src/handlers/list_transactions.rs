//! ListTransactions (66), versions 0-1: the transactional ids that this broker coordinates.
//!
//! Filters are by state, by producer id, and since v1 by how long the transaction has been open. A state that does not
//! exist is named in the answer and fits nothing.

use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, TransactionalId as WireTransactionalId,
};
use zurau_common::rejection::Rejection;

use super::group_words::wire;
use super::{Call, Starting};
use crate::transactions::{ListFilter, Listing, TransactionState};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ListTransactionsRequest| async move {
        let context = &call.context;
        let listed = context.transactions.list(context, &filter(&request)).await;
        respond(&request, listed)
    })
}

fn filter(request: &ListTransactionsRequest) -> ListFilter {
    ListFilter {
        states: request.state_filters.iter().map(ToString::to_string).collect(),
        producer_ids: request.producer_id_filters.iter().map(|id| id.0).collect(),
        duration_ms: request.duration_filter,
    }
}

fn respond(
    request: &ListTransactionsRequest,
    listed: Result<Vec<Listing>, Rejection>,
) -> ListTransactionsResponse {
    let listings = match listed {
        Ok(listings) => listings,
        Err(rejection) => return ListTransactionsResponse::default().with_error_code(rejection.code()),
    };
    let unknown = request.state_filters.iter().filter(|name| !TransactionState::is_name(name)).cloned();
    let states = listings.into_iter().map(|listing| {
        ListedTransaction::default()
            .with_transactional_id(WireTransactionalId(wire(&listing.id)))
            .with_producer_id(listing.producer_id.into())
            .with_transaction_state(wire(listing.state.name()))
    });
    ListTransactionsResponse::default()
        .with_unknown_state_filters(unknown.collect())
        .with_transaction_states(states.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn unknown_states_are_named() {
        let names = ["Ongoing", "Dead", "Sleeping"].map(wire).to_vec();
        let request = ListTransactionsRequest::default().with_state_filters(names);
        let listing = Listing { id: "t".into(), producer_id: 7, state: TransactionState::Ongoing };
        let response = respond(&request, Ok(vec![listing]));
        assert_eq!(response.unknown_state_filters, [wire("Sleeping")]);
        assert_eq!(response.transaction_states[0].transaction_state, wire("Ongoing"));
        assert_eq!(filter(&request).duration_ms, -1);
        let refused = respond(&request, Err(Rejection::CoordinatorLoadInProgress));
        assert_eq!(refused.error_code, 14);
        for response in [response, refused] {
            assert_every_version_encodes::<ListTransactionsRequest>(|_| response.clone());
        }
    }
}
