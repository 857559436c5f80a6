"""An application on confluent-kafka 1.7.0 over Debian's librdkafka 2.0.2: topics, codecs, a transaction, groups.

debian_confluent_steps.py BOOTSTRAP
"""

import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from steps import expect, step

PATIENCE = 20
PER_CODEC = 100
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
bootstrap = sys.argv[1]
topic, group = f"old-{time.time_ns()}", f"old-group-{time.time_ns()}"
count = len(CODECS) * PER_CODEC


def done(futures):
    for future in futures.values():
        future.result(PATIENCE)


def create(admin):
    done(admin.create_topics([NewTopic(topic, 2, 3)], operation_timeout=PATIENCE))
    done(admin.create_partitions([NewPartitions(topic, 4)], operation_timeout=PATIENCE))


def configs(admin):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"retention.ms": "7200000"})
    done(admin.alter_configs([resource]))
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    for future in described.values():
        expect(future.result(PATIENCE)["retention.ms"].value, "7200000", "retention.ms")


def produce(codec):
    problems = []
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True})
    for number in range(PER_CODEC):
        producer.produce(
            topic, f"{codec}-{number}" * 5, key=str(number), headers={"h": "1"},
            on_delivery=lambda error, _message: error and problems.append(str(error)),
        )
    expect(producer.flush(PATIENCE), 0, "records that were not delivered")
    expect(problems, [], "problems")


def consumer(name, **options):
    settings = {
        "bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }
    return Consumer({**settings, **options})


def read(reader, wanted):
    found, deadline = [], time.monotonic() + PATIENCE
    while len(found) < wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(found)} of {wanted} records were read")
        for message in reader.consume(100, 0.3):
            expect(message.error(), None, "an error of the consumer")
            found.append(message)
    return found


def read_in_a_group(strategy):
    name = f"{group}-{strategy}"
    reader = consumer(name, **{"partition.assignment.strategy": strategy})
    reader.subscribe([topic])
    expect({message.headers()[0] for message in read(reader, count)}, {("h", b"1")}, "headers")
    reader.commit(asynchronous=False)
    reader.close()
    after = consumer(name)
    partitions = [TopicPartition(topic, number) for number in range(4)]
    committed = {found.partition: max(found.offset, 0) for found in after.committed(partitions, PATIENCE)}
    ends = {found.partition: after.get_watermark_offsets(found, PATIENCE)[1] for found in partitions}
    expect(committed, ends, "committed offsets")
    after.close()


def transaction():
    """What is aborted is not read, and offsets are committed with the rest."""
    inside = f"{group}-inside"
    reader = consumer(inside)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, "aborted")
    producer.flush(PATIENCE)
    producer.abort_transaction(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, "committed")
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], reader.consumer_group_metadata(), PATIENCE)
    producer.commit_transaction(PATIENCE)
    expect(reader.committed([TopicPartition(topic, 0)], PATIENCE)[0].offset, 5, "the committed offset")
    reader.close()
    after = consumer(f"{group}-after", **{"isolation.level": "read_committed"})
    after.subscribe([topic])
    values = [message.value() for message in read(after, count + 1)]
    expect((values.count(b"committed"), values.count(b"aborted")), (1, 0), "records of the transactions")
    after.close()


def groups(admin):
    listed = {entry.id: entry.state for entry in admin.list_groups(timeout=PATIENCE)}
    expect(listed.get(f"{group}-range"), "Empty", "the state of the group")


def main():
    admin = AdminClient({"bootstrap.servers": bootstrap})
    step("create a topic and add partitions", create, admin)
    step("alter and describe configs", configs, admin)
    for codec in CODECS:
        step(f"produce {codec}", produce, codec)
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        step(f"read in a group, {strategy}", read_in_a_group, strategy)
    step("transactions", transaction)
    step("list groups", groups, admin)
    step("delete the topic", lambda: done(admin.delete_topics([topic], operation_timeout=PATIENCE)))


main()
