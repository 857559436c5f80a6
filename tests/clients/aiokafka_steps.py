"""An application on aiokafka: topics, codecs, idempotence, transactions with their fences, groups.

aiokafka_steps.py BOOTSTRAP
"""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError, ProducerFenced
from steps import expect, step_async

PATIENCE = 30
PER_CODEC = 50
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
bootstrap = sys.argv[1]
stamp = time.time_ns()
source, target, group = f"aio-source-{stamp}", f"aio-target-{stamp}", f"aio-group-{stamp}"


async def with_admin(act):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return await act(admin)
    finally:
        await admin.close()


async def create(admin):
    await admin.create_topics([NewTopic(source, 2, 3), NewTopic(target, 2, 3)])
    await admin.create_partitions({source: NewPartitions(4)})
    deadline = time.monotonic() + PATIENCE
    while True:
        described = await admin.describe_topics([source])
        if len(described[0]["partitions"]) == 4:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"the new partitions do not appear: {described}")
        await asyncio.sleep(0.05)


async def produce(codec, idempotent):
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=idempotent, acks="all"
    )
    await producer.start()
    try:
        sends = [
            await producer.send(source, f"{codec}-{number}".encode() * 5, headers=[("codec", str(codec).encode())])
            for number in range(PER_CODEC)
        ]
        await asyncio.gather(*sends)
    finally:
        await producer.stop()


def reader(*topics, **options):
    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "metadata_max_age_ms": 1000}
    return AIOKafkaConsumer(*topics, **{**settings, **options})


async def read_committed_of_target():
    """What a reader of committed records finds up to the end."""
    consumer = reader(isolation_level="read_committed")
    await consumer.start()
    try:
        partitions = [TopicPartition(target, number) for number in (0, 1)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        values = []
        deadline = time.monotonic() + PATIENCE
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            if time.monotonic() > deadline:
                raise AssertionError(f"the end {ends} is not reached")
            for records in (await consumer.getmany(timeout_ms=300)).values():
                values.extend(record.value for record in records)
        return sorted(values)
    finally:
        await consumer.stop()


async def transactional(name):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{name}-{stamp}")
    await producer.start()
    return producer


async def group_of_two():
    """Two members share the partitions, each record is read once, and what was committed is where the next begins."""
    members = [reader(source, group_id=group, enable_auto_commit=False) for _ in range(2)]
    await asyncio.gather(*(member.start() for member in members))
    try:
        deadline = time.monotonic() + PATIENCE
        while sorted(len(member.assignment()) for member in members) != [2, 2]:
            if time.monotonic() > deadline:
                raise AssertionError(f"assigned: {[member.assignment() for member in members]}")
            await asyncio.gather(*(member.getmany(timeout_ms=100, max_records=1) for member in members))
        for member in members:
            await member.seek_to_beginning()
        total, deadline = 0, time.monotonic() + PATIENCE
        while total < len(CODECS) * PER_CODEC:
            if time.monotonic() > deadline:
                raise AssertionError(f"{total} records were read")
            for found in await asyncio.gather(*(member.getmany(timeout_ms=200) for member in members)):
                total += sum(len(records) for records in found.values())
        expect(total, len(CODECS) * PER_CODEC, "records read by both")
        for member in members:
            await member.commit()
    finally:
        for member in members:
            await member.stop()
    partitions = [TopicPartition(source, number) for number in range(4)]
    after = reader(group_id=group)
    await after.start()
    try:
        after.assign(partitions)
        ends = await after.end_offsets(partitions)
        # Of an empty partition a position may be committed or not.
        committed = {partition: await after.committed(partition) or 0 for partition in partitions}
        expect(committed, ends, "committed offsets")
    finally:
        await after.stop()


async def commit_a_transaction():
    producer = await transactional("writer")
    async with producer.transaction():
        await producer.send_and_wait(target, b"committed", partition=0)
        await producer.send_and_wait(target, b"committed", partition=1)
    await producer.stop()
    expect(await read_committed_of_target(), [b"committed"] * 2, "committed records")


async def abort_a_transaction():
    producer = await transactional("writer")
    await producer.begin_transaction()
    await producer.send_and_wait(target, b"aborted", partition=0)
    await producer.abort_transaction()
    await producer.stop()
    expect(await read_committed_of_target(), [b"committed"] * 2, "committed records")


async def offsets_in_a_transaction():
    """Committed with the transaction, not with an aborted one."""
    inside = f"{group}-inside"
    partition = TopicPartition(source, 0)
    producer = await transactional("transform")
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({partition: 7}, inside)
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send_and_wait(target, b"transformed", partition=0)
        await producer.send_offsets_to_transaction({partition: 5}, inside)
    await producer.stop()
    consumer = reader(group_id=inside)
    await consumer.start()
    try:
        expect(await consumer.committed(partition), 5, "the committed offset")
    finally:
        await consumer.stop()


async def fence_a_producer():
    """The second of the same transactional id fences the first, and its open transaction is aborted."""
    first = await transactional("fenced")
    await first.begin_transaction()
    await first.send_and_wait(target, b"fenced", partition=1)
    second = await transactional("fenced")
    try:
        await first.send_and_wait(target, b"late", partition=1)
        await first.commit_transaction()
    except (ProducerFenced, KafkaError):
        pass
    else:
        raise AssertionError("the first producer still commits")
    finally:
        await first.stop()
    async with second.transaction():
        await second.send_and_wait(target, b"second", partition=1)
    await second.stop()
    expect(await read_committed_of_target(), sorted([b"committed"] * 2 + [b"transformed", b"second"]), "committed")


async def groups_are_listed(admin):
    listed = [entry[0] for entry in await admin.list_consumer_groups()]
    if group not in listed:
        raise AssertionError(f"{group} is not among {listed}")
    offsets = await admin.list_consumer_group_offsets(group)
    expect(sum(entry.offset for entry in offsets.values()), len(CODECS) * PER_CODEC, "offsets of the group")


async def main():
    await step_async("create topics and add partitions", with_admin, create)
    for codec in CODECS:
        await step_async(f"produce {codec}", produce, codec, codec == "lz4")
    await step_async("group of two", group_of_two)
    await step_async("groups and offsets of an admin", with_admin, groups_are_listed)
    await step_async("commit a transaction", commit_a_transaction)
    await step_async("abort a transaction", abort_a_transaction)
    await step_async("offsets in a transaction", offsets_in_a_transaction)
    await step_async("fence a producer", fence_a_producer)
    await step_async("delete topics", with_admin, lambda admin: admin.delete_topics([source, target]))


asyncio.run(main())
