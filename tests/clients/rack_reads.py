"""Reads a topic's partition 0 with a rack and tells from whom (KIP-392).

rack_reads.py BOOTSTRAP TOPIC RACK COUNT BROKER
    ends well once COUNT records were read, without a hole, and the client says that it fetches from BROKER.
"""

import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

DEADLINE = 60
bootstrap, topic, rack, count, broker = sys.argv[1:6]
fetched_from = []


def statistics(text):
    partitions = json.loads(text)["topics"].get(topic, {}).get("partitions", {})
    if "0" in partitions:
        fetched_from.append(partitions["0"]["broker"])


consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": "not-used",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "client.rack": rack,
        "fetch.wait.max.ms": 100,
        "statistics.interval.ms": 100,
        "stats_cb": statistics,
    }
)
consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
deadline = time.monotonic() + DEADLINE
expected = 0
while expected < int(count) or not fetched_from or fetched_from[-1] != int(broker):
    if time.monotonic() > deadline:
        sys.exit(f"{expected} of {count} records, fetched from {fetched_from[-5:]}, within {DEADLINE} s")
    for message in consumer.consume(num_messages=1000, timeout=0.1):
        if message.error() is not None:
            sys.exit(f"consuming failed: {message.error()}")
        if message.offset() != expected:
            sys.exit(f"offset {message.offset()} came when {expected} was due")
        expected += 1
consumer.close()
