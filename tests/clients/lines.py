"""Moves a text file through a topic's partition 0, one record a line.

lines.py produce CLIENT BOOTSTRAP TOPIC COMPRESSION FILE
    acks=all; ends with an error unless every line is acknowledged at its line number.
lines.py consume CLIENT BOOTSTRAP TOPIC COUNT
    writes COUNT records, each with a newline, to standard output; ends with an error when an offset is missing.

CLIENT is confluent or kafka-python. No consumer group is used.
"""

import sys
import time

DEADLINE = 120


def fail(message):
    sys.exit(f"lines.py: {message}")


def produce_confluent(bootstrap, topic, compression, lines):
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "compression.type": compression,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100000,
        }
    )
    offsets = []

    def delivered(error, message):
        if error is not None:
            fail(f"delivery failed: {error}")
        offsets.append(message.offset())

    for line in lines:
        while True:
            try:
                producer.produce(topic, value=line, partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(DEADLINE)
    if left:
        fail(f"{left} records were not delivered within {DEADLINE} s")
    return offsets


def produce_kafka_python(bootstrap, topic, compression, lines):
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        compression_type=None if compression == "none" else compression,
        linger_ms=5,
        batch_size=256 * 1024,
    )
    futures = [producer.send(topic, value=line, partition=0) for line in lines]
    producer.flush(timeout=DEADLINE)
    offsets = [future.get(timeout=DEADLINE).offset for future in futures]
    producer.close()
    return offsets


def consume_confluent(bootstrap, topic, count):
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + DEADLINE
    seen = 0
    while seen < count:
        if time.monotonic() > deadline:
            fail(f"only {seen} of {count} records within {DEADLINE} s")
        for message in consumer.consume(num_messages=10000, timeout=1.0):
            if message.error() is not None:
                fail(f"consuming failed: {message.error()}")
            yield message.offset(), message.value()
            seen += 1
    consumer.close()


def consume_kafka_python(bootstrap, topic, count):
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), group_id=None, auto_offset_reset="earliest", check_crcs=True
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    deadline = time.monotonic() + DEADLINE
    seen = 0
    while seen < count:
        if time.monotonic() > deadline:
            fail(f"only {seen} of {count} records within {DEADLINE} s")
        for records in consumer.poll(timeout_ms=1000, max_records=10000).values():
            for record in records:
                yield record.offset, record.value
                seen += 1
    consumer.close()


def main():
    verb, client, bootstrap, topic, argument = sys.argv[1:6]
    if verb == "produce":
        with open(sys.argv[6], "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        produce = {"confluent": produce_confluent, "kafka-python": produce_kafka_python}[client]
        offsets = produce(bootstrap, topic, argument, lines)
        if offsets != list(range(len(lines))):
            fail(f"{len(lines)} lines got {len(offsets)} offsets, from {offsets[:1]} to {offsets[-1:]}, not contiguous")
    elif verb == "consume":
        consume = {"confluent": consume_confluent, "kafka-python": consume_kafka_python}[client]
        expected = 0
        for offset, value in consume(bootstrap, topic, int(argument)):
            if offset != expected:
                fail(f"offset {offset} follows {expected - 1}")
            sys.stdout.buffer.write(value + b"\n")
            expected += 1
        if expected != int(argument):
            fail(f"{expected} records were read, {argument} expected")
    else:
        fail(f"unknown verb {verb}")


main()
