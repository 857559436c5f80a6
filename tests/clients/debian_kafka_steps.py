"""An application on kafka-python 2.0.2, which speaks the protocol of 2020: topics, codecs, groups, lags.

debian_kafka_steps.py BOOTSTRAP
"""

import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata
from steps import expect, step

PATIENCE = 20
PER_CODEC = 100
CODECS = (None, "gzip")
bootstrap = sys.argv[1].split(",")
topic, group = f"old-{time.time_ns()}", f"old-group-{time.time_ns()}"
partitions = [TopicPartition(topic, number) for number in range(4)]


def create(admin):
    admin.create_topics([NewTopic(topic, 2, 3, topic_configs={"retention.ms": "3600000"})])
    admin.create_partitions({topic: NewPartitions(4)})


def configs(admin):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "7200000"})])
    found = {entry[0]: entry[1] for answer in admin.describe_configs([resource]) for entry in answer.resources[0][4]}
    expect(found["retention.ms"], "7200000", "retention.ms")


def produce(codec):
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, acks="all")
    sent = [
        producer.send(topic, f"{codec}-{number}".encode() * 5, key=str(number).encode(), headers=[("h", b"1")])
        for number in range(PER_CODEC)
    ]
    for future in sent:
        future.get(PATIENCE)
    producer.close()


def consumer(**options):
    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    return KafkaConsumer(**{**settings, **options})


def read(reader):
    wanted, found, deadline = len(CODECS) * PER_CODEC, 0, time.monotonic() + PATIENCE
    while found < wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"{found} of {wanted} records were read")
        for records in reader.poll(timeout_ms=300).values():
            found += len(records)
            expect({record.headers[0] for record in records}, {("h", b"1")}, "headers")
    expect(found, wanted, "records")


def read_assigned():
    reader = consumer()
    reader.assign(partitions)
    read(reader)
    reader.close()


def read_in_a_group():
    reader = consumer(group_id=group)
    reader.subscribe([topic])
    read(reader)
    reader.commit()
    reader.close()


def committed_offsets(admin):
    reader = consumer(group_id=group)
    ends = reader.end_offsets(partitions)
    expect(sum(ends.values()), len(CODECS) * PER_CODEC, "the ends of the partitions")
    expect({partition: reader.committed(partition) or 0 for partition in partitions}, ends, "committed offsets")
    listed = admin.list_consumer_group_offsets(group)
    expect({partition: listed[partition].offset for partition in partitions if ends[partition]},
           {partition: end for partition, end in ends.items() if end}, "offsets that an admin lists")
    reader.commit({partitions[0]: OffsetAndMetadata(1, "moved back")})
    expect(reader.committed(partitions[0], metadata=True), OffsetAndMetadata(1, "moved back"), "moved back")
    reader.close()


def offsets_by_time():
    reader = consumer()
    found = reader.offsets_for_times({partition: 0 for partition in partitions})
    firsts = reader.beginning_offsets(partitions)
    expect({partition: entry.offset for partition, entry in found.items() if entry},
           {partition: firsts[partition] for partition, entry in found.items() if entry}, "offsets by time")
    reader.close()


def groups(admin):
    if (group, "consumer") not in admin.list_consumer_groups():
        raise AssertionError("the group is not listed")
    described = admin.describe_consumer_groups([group])[0]
    expect((described.error_code, described.state), (0, "Empty"), "the group")
    expect(admin.delete_consumer_groups([group])[0][1].errno, 0, "deleting the group")


def main():
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    step("create a topic and add partitions", create, admin)
    step("alter and describe configs", configs, admin)
    for codec in CODECS:
        step(f"produce {codec}", produce, codec)
    step("read assigned partitions", read_assigned)
    step("read in a group", read_in_a_group)
    step("committed offsets", committed_offsets, admin)
    step("offsets by time", offsets_by_time)
    step("list, describe and delete the group", groups, admin)
    step("delete the topic", admin.delete_topics, [topic])
    admin.close()


main()
