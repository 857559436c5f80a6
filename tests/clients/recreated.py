"""Goes on with a topic that is deleted and created again under a running producer and consumer.

recreated.py CLIENT BOOTSTRAP TOPIC
    CLIENT is confluent or kafka-python. Ends well if the consumer reads again what is produced afterwards. From where it
    goes on is the client's own rule: kafka-python, as Java's client, goes to where its old position and the log part.
"""

import sys
import time

client, bootstrap, topic = sys.argv[1:4]
RECORDS = 20
LIMIT = 60


class Confluent:
    def __init__(self):
        from confluent_kafka import Consumer, Producer
        from confluent_kafka.admin import AdminClient

        common = {"bootstrap.servers": bootstrap, "topic.metadata.refresh.interval.ms": 1000}
        self.producer = Producer({**common, "acks": "all"})
        group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self.consumer = Consumer({**common, **group})
        self.consumer.subscribe([topic])
        self.admin = AdminClient(common)

    def produce(self, value):
        failed = []
        self.producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
        self.producer.flush(LIMIT)
        return not failed

    def poll(self):
        message = self.consumer.poll(0.2)
        return [message.value().decode()] if message is not None and message.error() is None else []

    def delete(self):
        for future in self.admin.delete_topics([topic], operation_timeout=30).values():
            future.result(LIMIT)

    def create(self):
        from confluent_kafka.admin import NewTopic

        for future in self.admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=30).values():
            future.result(LIMIT)


class KafkaPython:
    def __init__(self):
        from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

        common = {"bootstrap_servers": bootstrap}
        self.producer = KafkaProducer(acks="all", metadata_max_age_ms=1000, **common)
        self.consumer = KafkaConsumer(
            topic,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
            **common,
        )
        self.admin = KafkaAdminClient(**common)

    def produce(self, value):
        from kafka.errors import KafkaError

        try:
            self.producer.send(topic, value.encode()).get(timeout=LIMIT)
            return True
        except KafkaError:
            return False

    def poll(self):
        found = self.consumer.poll(timeout_ms=200)
        return [record.value.decode() for records in found.values() for record in records]

    def delete(self):
        self.admin.delete_topics([topic], timeout_ms=30000)

    def create(self):
        from kafka.admin import NewTopic

        self.admin.create_topics([NewTopic(topic, 1, 3)], timeout_ms=30000)


def write(value, deadline):
    """Again and again until it is stored: the client may still know the topic that is gone."""
    while not clients.produce(value):
        if time.monotonic() > deadline:
            sys.exit(f"{value} is not stored within {LIMIT} s")


def read_everything():
    deadline = time.monotonic() + LIMIT
    wanted = {f"old-{number}" for number in range(RECORDS)}
    for value in sorted(wanted):
        write(value, deadline)
    read = set()
    while not wanted <= read:
        read.update(clients.poll())
        if time.monotonic() > deadline:
            sys.exit(f"{len(read & wanted)} of {RECORDS} records are read within {LIMIT} s")


def go_on():
    deadline = time.monotonic() + LIMIT
    number = 0
    while not any(value.startswith("new-") for value in clients.poll()):
        write(f"new-{number}", deadline)
        number += 1
        if time.monotonic() > deadline:
            sys.exit(f"none of {number} records of the new topic is read within {LIMIT} s")


clients = {"confluent": Confluent, "kafka-python": KafkaPython}[client]()
read_everything()
clients.delete()
clients.create()
go_on()
