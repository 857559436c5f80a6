"""Consumes every partition of a topic from the beginning until SIGTERM and notes what it sees.

consume_history.py BOOTSTRAP TOPIC PARTITIONS HISTORY_FILE

A line of the history is `time_ms partition offset value`. A hole, a repetition or a step back ends the script with an
error.
"""

import signal
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

bootstrap, topic, partitions, path = sys.argv[1:5]
history = open(path, "w", buffering=1)
stopping = False


def stop(_signal, _frame):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": "not-used",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "retry.backoff.ms": 50,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 5000,
    }
)
consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(int(partitions))])
next_offset = {partition: 0 for partition in range(int(partitions))}
# What a client meets while a broker is down; librdkafka goes on by itself.
passing = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
while not stopping:
    for message in consumer.consume(num_messages=1000, timeout=0.1):
        error = message.error()
        if error is not None:
            if error.code() in passing:
                continue
            sys.exit(f"consuming {topic} failed: {error}")
        partition, offset = message.partition(), message.offset()
        if offset != next_offset[partition]:
            sys.exit(f"{topic}-{partition}: offset {offset} came when {next_offset[partition]} was due")
        next_offset[partition] = offset + 1
        history.write(f"{int(time.time() * 1000)} {partition} {offset} {message.value().decode()}\n")
history.close()
