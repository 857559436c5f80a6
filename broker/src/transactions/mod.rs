//! Transactions: which of them are open, and what becomes of the partitions in them.

mod coordinator;

pub(crate) use coordinator::TransactionCoordinator;
