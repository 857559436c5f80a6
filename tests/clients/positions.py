"""Where a consumer begins in the partitions that it is given."""

from confluent_kafka import OFFSET_BEGINNING, KafkaException


def begin_at(consumer, committed):
    """Takes the partitions over from what is committed, which the caller has asked for: librdkafka (2.16) begins at the
    earliest record instead when the assignment changes while an open transaction keeps the answer to its own question away
    (UNSTABLE_OFFSET_COMMIT)."""
    for at in committed:
        if at.error is not None:
            raise KafkaException(at.error)
        at.offset = at.offset if at.offset >= 0 else OFFSET_BEGINNING
    consumer.assign(committed)
