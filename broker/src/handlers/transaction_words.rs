//! Words that the handlers of the transaction APIs share.

use kafka_protocol::messages::ProducerId;
use zurau_common::rejection::Rejection;

use crate::coordinator::Producer;

pub(super) fn producer(id: ProducerId, epoch: i16) -> Producer {
    Producer { id: id.0, epoch }
}

/// PRODUCER_FENCED came late: clients of older versions know INVALID_PRODUCER_EPOCH instead.
pub(super) fn in_version(rejection: Rejection, knows_fenced: bool) -> Rejection {
    match rejection {
        Rejection::ProducerFenced if !knows_fenced => Rejection::InvalidProducerEpoch,
        other => other,
    }
}
