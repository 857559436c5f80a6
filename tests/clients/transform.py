"""Reads numbers, writes them doubled, and commits both in transactions, until SIGTERM; then checks what came out.

transform.py BOOTSTRAP INPUT OUTPUT PARTITIONS PROGRESS_FILE
    one thread fills INPUT, a process of its own transforms; a line is added to PROGRESS_FILE for each committed
    transaction; every seventh is aborted on purpose. Ends well if each number is in OUTPUT exactly once for readers of
    committed records.

The transforming process gives up when a client gets no answer, and is started again (supervised.py says why).
"""

import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from positions import begin_at
from supervised import gets_on, give_up, is_worker, supervise, work

RATE = 150
DEADLINE = 120
# Longer than a session and an election.
ANSWER_LIMIT = 15
# One for each broker that is killed, and one more.
RESTARTS = 4
bootstrap, source, target, partitions, progress_path = sys.argv[1:6]
partitions = int(partitions)
stopping = threading.Event()
filled = {"count": 0, "done": False, "failures": []}


def fill():
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def delivered(error, _message):
        if error is not None:
            filled["failures"].append(str(error))

    while not stopping.is_set():
        number = filled["count"]
        producer.produce(source, value=str(number), partition=number % partitions, on_delivery=delivered)
        filled["count"] += 1
        producer.poll(1 / RATE)
    if producer.flush(DEADLINE):
        filled["failures"].append("not delivered in time")
    filled["done"] = True


def new_producer():
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "transform",
            "transaction.timeout.ms": 30000,
            "linger.ms": 2,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
        }
    )
    retry(lambda: producer.init_transactions(ANSWER_LIMIT))
    return producer


def retry(act):
    """Repeats what was answered with an error that may be repeated; without an answer there is a new process."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return act()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError._TIMED_OUT:
                give_up(error)
            if not error.retriable() or time.monotonic() > deadline:
                raise


def committed(consumer):
    wanted = [TopicPartition(source, number) for number in range(partitions)]
    return retry(lambda: consumer.committed(wanted, timeout=ANSWER_LIMIT))


def rewind(consumer):
    """Reads again what was not committed. A partition that was taken away meanwhile is read by its next owner."""
    for position in committed(consumer):
        try:
            offset = position.offset if position.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(TopicPartition(source, position.partition, offset))
        except KafkaException as failure:
            if failure.args[0].code() not in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                raise


def transform(producer, consumer, messages, aborts):
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, value=str(2 * int(message.value())), partition=message.partition())
    if aborts:
        retry(lambda: producer.abort_transaction(ANSWER_LIMIT))
        return rewind(consumer)
    positions = [at for at in consumer.position(consumer.assignment()) if at.offset >= 0]
    group = consumer.consumer_group_metadata()
    retry(lambda: producer.send_offsets_to_transaction(positions, group, ANSWER_LIMIT))
    retry(lambda: producer.commit_transaction(ANSWER_LIMIT))


def take(consumer, assigned):
    begin_at(consumer, retry(lambda: consumer.committed(assigned, timeout=ANSWER_LIMIT)))


def run(progress):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "transform",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 10000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    consumer.subscribe([source], on_assign=take)
    producer = new_producer()
    transactions = 0
    stop_at = None
    silent_since = time.monotonic()
    while True:
        gets_on()
        if filled["done"]:
            stop_at = stop_at or time.monotonic() + DEADLINE
            if time.monotonic() > stop_at:
                give_up(f"{committed(consumer)} is committed of {filled['count']} within {DEADLINE} s")
            if sum(max(0, at.offset) for at in committed(consumer)) == filled["count"]:
                break
        messages = consumer.consume(num_messages=30, timeout=0.2)
        messages = [message for message in messages if message.error() is None]
        if not messages:
            if time.monotonic() > silent_since + 2 * ANSWER_LIMIT and not filled["done"]:
                give_up("nothing comes")
            continue
        silent_since = time.monotonic()
        transactions += 1
        try:
            transform(producer, consumer, messages, transactions % 7 == 0)
            progress.write(f"{transactions} {len(messages)}\n")
        except KafkaException as failure:
            error = failure.args[0]
            print(f"transaction {transactions}: {error}", flush=True)
            if error.txn_requires_abort():
                retry(lambda: producer.abort_transaction(ANSWER_LIMIT))
            else:
                producer = new_producer()
            rewind(consumer)


def check():
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(target, number, OFFSET_BEGINNING) for number in range(partitions)])
    seen, ends = [], set()
    deadline = time.monotonic() + DEADLINE
    while len(ends) < partitions or len(seen) < filled["count"]:
        if time.monotonic() > deadline:
            sys.exit(f"{len(seen)} of {filled['count']} numbers came within {DEADLINE} s")
        for message in consumer.consume(num_messages=1000, timeout=0.2):
            if message.error() is None:
                seen.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    consumer.close()
    twice = len(seen) - len(set(seen))
    if sorted(seen) != [2 * number for number in range(filled["count"])]:
        sys.exit(f"{len(seen)} numbers of {filled['count']}, {twice} more than once")
    print(f"{len(seen)} numbers, their sum {sum(seen)}")


def count_is_known(line):
    filled["count"] = int(line)
    filled["done"] = True


def worker():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(progress_path, "a", buffering=1) as progress:
        run(progress)


if is_worker():
    work(worker, 2 * ANSWER_LIMIT, count_is_known)
signal.signal(signal.SIGTERM, lambda _signal, _frame: stopping.set())
filling = threading.Thread(target=fill)
filling.start()
supervise(RESTARTS, lambda: filled["count"] if filled["done"] else None)
filling.join()
if filled["failures"]:
    sys.exit(f"the input is not right: {filled['failures'][:5]}")
check()
