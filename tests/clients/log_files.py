"""What the test of the broker's own files needs of independent code.

log_files.py create BOOTSTRAP TOPIC KEY=VALUE...        creates a topic of one partition with these configs
log_files.py delete BOOTSTRAP TOPIC OFFSET              deletes the records below the offset; prints the low watermark
log_files.py read FILE                                  prints `codec offset timestamp value` for each record of a .log file

Creating and deleting is confluent-kafka's (librdkafka), reading is kafka-python's record parser.
"""

import sys

TIMEOUT = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def create(bootstrap, topic, *configs):
    from confluent_kafka.admin import AdminClient, NewTopic

    config = dict(config.split("=", 1) for config in configs)
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    # The client must live until its futures are done.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([new]).values():
        future.result(timeout=TIMEOUT)


def delete(bootstrap, topic, offset):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, int(offset))]).values():
        print(future.result(timeout=TIMEOUT).low_watermark)


def read(path):
    from kafka.record import MemoryRecords

    with open(path, "rb") as file:
        records = MemoryRecords(file.read())
    batch = records.next_batch()
    while batch is not None:
        if not batch.validate_crc():
            sys.exit(f"log_files.py: {path}: a batch with a wrong CRC")
        codec = CODECS[batch.compression_type]
        for record in batch:
            print(codec, record.offset, record.timestamp, record.value.decode())
        batch = records.next_batch()


{"create": create, "delete": delete, "read": read}[sys.argv[1]](*sys.argv[2:])
