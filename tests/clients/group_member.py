"""A member of a group of the consumer protocol (KIP-848): reads until SIGTERM, commits what it has read, then leaves.

group_member.py BOOTSTRAP GROUP TOPIC HISTORY_FILE [INSTANCE_ID]

TOPIC beginning with ^ is a regular expression. The topic's records are read one by one; a line of the history is one of
    assigned TIME PARTITION        before the first read of it
    read TIME PARTITION OFFSET VALUE
    committed TIME PARTITION OFFSET    the commit was acknowledged
    revoked TIME PARTITION         after the last read of it
TIME is in nanoseconds of the machine's monotonic clock, which all processes share.
"""

import signal
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException

bootstrap, group, topic, path = sys.argv[1:5]
history = open(path, "w", buffering=1)
stopping = False
# What was read and not committed, by topic and partition.
positions = {}


def note(*words):
    kind, rest = words[0], words[1:]
    history.write(" ".join(str(word) for word in (kind, time.monotonic_ns(), *rest)) + "\n")


def stop(_signal, _frame):
    global stopping
    stopping = True


def commit(consumer):
    """A commit that fails is made again with the next one; what it covers may be read twice."""
    from confluent_kafka import TopicPartition

    if not positions:
        return
    offsets = [TopicPartition(name, number, offset) for (name, number), offset in positions.items()]
    try:
        for done in consumer.commit(offsets=offsets, asynchronous=False):
            if done.error is None:
                note("committed", f"{done.topic}-{done.partition}", done.offset)
                if positions.get((done.topic, done.partition)) == done.offset:
                    del positions[(done.topic, done.partition)]
    except KafkaException as problem:
        print(f"a commit failed: {problem}", file=sys.stderr)


def assigned(_consumer, partitions):
    for partition in partitions:
        note("assigned", f"{partition.topic}-{partition.partition}")


def revoked(consumer, partitions):
    commit(consumer)
    lost(consumer, partitions)


def lost(_consumer, partitions):
    for partition in partitions:
        positions.pop((partition.topic, partition.partition), None)
        note("revoked", f"{partition.topic}-{partition.partition}")


signal.signal(signal.SIGTERM, stop)
settings = {
    "bootstrap.servers": bootstrap,
    "group.id": group,
    "group.protocol": "consumer",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 5000,
}
if 5 < len(sys.argv):
    settings["group.instance.id"] = sys.argv[5]
consumer = Consumer(settings)
consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
# What a client meets while a broker is down; librdkafka goes on by itself.
passing = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    # A topic that is just being made.
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
while not stopping:
    messages = consumer.consume(num_messages=50, timeout=0.1)
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() in passing:
                continue
            sys.exit(f"consuming {topic} failed: {error}")
        place = f"{message.topic()}-{message.partition()}"
        note("read", place, message.offset(), message.value().decode())
        positions[(message.topic(), message.partition())] = message.offset() + 1
    if messages:
        commit(consumer)
consumer.close()
history.close()
