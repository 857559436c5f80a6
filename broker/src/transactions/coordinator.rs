//! The transaction coordinators of this broker.

use zurau_common::config::Settings;

use crate::coordinator::CoordinatorTopic;

/// All coordinators of this broker.
#[derive(Debug)]
pub(crate) struct TransactionCoordinator {
    pub(crate) topic: CoordinatorTopic,
}

impl TransactionCoordinator {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { topic: CoordinatorTopic::transaction_state(settings) }
    }
}
