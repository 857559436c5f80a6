"""Sums numbers per key with quixstreams, exactly once, and starts again in the middle with an empty disk.

quixstreams_sums.py BOOTSTRAP, with STATE_DIRECTORY in the environment

The application reads the first half, ends, and is started again without its files: the sums so far come back from the
changelog topic. Every sum must have been written once, in order, for readers of committed records.
"""

import json
import os
import pathlib
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from quixstreams import Application
from quixstreams.models import TopicConfig
from steps import expect, step

KEYS = ("a", "b", "c")
PER_HALF = 30
PATIENCE = 60
bootstrap, states = sys.argv[1], pathlib.Path(os.environ["STATE_DIRECTORY"])
stamp = time.time_ns()
source, target, group = f"numbers-{stamp}", f"sums-{stamp}", f"summing-{stamp}"


def fill(first):
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + PER_HALF):
        producer.produce(source, key=KEYS[number % len(KEYS)], value=json.dumps(number))
    expect(producer.flush(PATIENCE), 0, "records that were not delivered")


def application(state):
    application = Application(
        broker_address=bootstrap, consumer_group=group, processing_guarantee="exactly-once", state_dir=state,
        auto_offset_reset="earliest", commit_interval=0.2, loglevel="INFO",
    )
    wanted = TopicConfig(num_partitions=3, replication_factor=3)
    numbers = application.topic(source, value_deserializer="json", key_deserializer="str", config=wanted)
    sums = application.topic(target, value_serializer="json", key_serializer="str", config=wanted)

    def add(number, state):
        total = state.get("total", 0) + number
        state.set("total", total)
        return total

    application.dataframe(numbers).apply(add, stateful=True).to_topic(sums)
    return application


def run(state):
    application(states / state).run(count=PER_HALF, timeout=PATIENCE)


def half(number):
    fill(number * PER_HALF)
    run(f"state-{number}")
    expect(committed_sums(), sums_of((number + 1) * PER_HALF), "the sums")


def sums_of(count):
    """The sums after each number, per key."""
    sums = {key: [] for key in KEYS}
    for number in range(count):
        mine = sums[KEYS[number % len(KEYS)]]
        mine.append((mine[-1] if mine else 0) + number)
    return sums


def committed_sums():
    settings = {"bootstrap.servers": bootstrap, "group.id": f"{group}-check", "enable.auto.commit": False}
    settings |= {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(target, number, 0) for number in range(3)])
    sums, at_end, deadline = {key: [] for key in KEYS}, set(), time.monotonic() + PATIENCE
    while len(at_end) < 3:
        if time.monotonic() > deadline:
            raise AssertionError("the end of the sums is not reached")
        for message in consumer.consume(100, 0.3):
            if message.error():
                at_end.add(message.partition())
            else:
                sums[message.key().decode()].append(json.loads(message.value()))
    consumer.close()
    return sums


def main():
    # It makes its topics when it is built.
    step("create topics", application, states / "state-0")
    step("sum the first half", half, 0)
    step("sum the rest from the changelog", half, 1)


main()
