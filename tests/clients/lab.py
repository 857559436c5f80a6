"""A client of the fault lab: does one job until SIGTERM and records what it asked and what it was answered.

lab.py ROLE NAME BOOTSTRAP HISTORY_FILE SEED TOPIC PARTITIONS [OUTPUT_TOPIC OUTPUT_PARTITIONS]

Roles: `write` (idempotent, acks=all, unique values), `read` (all partitions from the start, again from time to time),
`group` (one member of the group `lab-group`), `transform` (reads TOPIC in a group and writes OUTPUT_TOPIC, in
transactions, some of which it aborts), `everything` (reads TOPIC to its end and stops). The form of the history is that
of the checker (tests/src/checker/history.rs). What a client cannot know is recorded as `info`: after retries almost
every error leaves it open whether an earlier attempt was stored. A member of a group that gets no answer is started
again (supervised.py says why).
"""

import json
import os
import random
import signal
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from positions import begin_at
from supervised import gets_on, is_worker, supervise, work

role, name, bootstrap, path, seed, topic, partitions = sys.argv[1:8]
partitions = int(partitions)
random.seed(f"{seed} {name}")
history = open(path, "a", buffering=1)
stopping = False
# A member's next poll does not go on where its last one ended, nor does a new process where another was.
is_elsewhere = True

COMMON = {
    "bootstrap.servers": bootstrap,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.timeout.ms": 10000,
    "socket.connection.setup.timeout.ms": 5000,
}
WRITES_A_SECOND = 150
WAITING_WRITES_MAX = 2000
# How long a transaction may stay undecided while brokers are gone before the client gives its producer up.
DECISION_LIMIT_S = 30
# How long a member of a group may get nothing done: there is always something to read while the writers are at work.
STANDSTILL_LIMIT_S = 45
RESTARTS_MAX = 100


def stop(_signal, _frame):
    global stopping
    stopping = True


def note(operation):
    history.write(json.dumps(operation) + "\n")


def done(start, outcome, steps, transaction=False):
    end = time.time_ns()
    note({"process": name, "start": start, "end": end, "outcome": outcome, "transaction": transaction, "steps": steps})


def complain(what):
    print(f"{time.time():.3f} {what}", flush=True)


def send_step(key, value, offset):
    return {"send": {"key": key, "value": value, "offset": offset}}


def write():
    def delivered(start, key, value):
        def callback(error, message):
            if error is None:
                done(start, "ok", [send_step(key, value, message.offset())])
            else:
                complain(f"{key} {value}: {error}")
                done(start, "info", [send_step(key, value, None)])

        return callback

    producer, began, sent = None, time.monotonic(), 0
    while not stopping:
        if producer is None:
            producer = Producer(
                {**COMMON, "acks": "all", "enable.idempotence": True, "linger.ms": 2, "delivery.timeout.ms": 120000}
            )
        due = int((time.monotonic() - began) * WRITES_A_SECOND)
        while sent < due and len(producer) < WAITING_WRITES_MAX:
            partition, value = random.randrange(partitions), f"{name}-{sent}"
            key = f"{topic}-{partition}"
            note({"process": name, "intent": value, "key": key})
            try:
                producer.produce(
                    topic, value=value, partition=partition, on_delivery=delivered(time.time_ns(), key, value)
                )
            except KafkaException as error:
                # The producer has failed for good; what it still holds is reported to the callbacks.
                complain(f"a new producer is needed: {error}")
                producer.flush(30)
                producer = None
                break
            finally:
                sent += 1
        # While the cluster is away nothing is made up for later: the queue is bounded, the rate is not.
        began = max(began, time.monotonic() - sent / WRITES_A_SECOND - 1)
        if producer is not None:
            producer.poll(0.01)
    if producer is not None:
        left = producer.flush(100)
        if left:
            sys.exit(f"{left} records are undecided")


def records_of(messages):
    """The records by partition, and the errors that do not pass by themselves."""
    found = {}
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                sys.exit(f"a position is out of range: {error}")
            complain(f"poll: {error}")
            continue
        key = f"{message.topic()}-{message.partition()}"
        found.setdefault(key, []).append([message.offset(), message.value().decode()])
    return found


def consumer(group, **more):
    return Consumer(
        {
            **COMMON,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "isolation.level": "read_committed",
            **more,
        }
    )


def from_the_start():
    return [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]


def read():
    reader, again = consumer("not-used"), time.monotonic()
    while not stopping:
        if again <= time.monotonic():
            reader.assign(from_the_start())
            done(time.time_ns(), "ok", [{"seek": True}])
            again = time.monotonic() + random.uniform(5, 15)
        start = time.time_ns()
        if found := records_of(reader.consume(num_messages=500, timeout=0.1)):
            done(start, "ok", [{"poll": found}])
    reader.close()


def moved(_consumer, _partitions):
    global is_elsewhere
    is_elsewhere = True


def polled(found):
    """The steps of a poll, in which the member may have moved before any record came."""
    global is_elsewhere
    steps = [{"seek": True}] if is_elsewhere else []
    is_elsewhere = False
    return [*steps, {"poll": found}]


def group():
    member = consumer("lab-group", **{"auto.offset.reset": "earliest", "session.timeout.ms": 6000})
    member.subscribe([topic], on_assign=moved, on_revoke=moved, on_lost=moved)
    while not stopping:
        start = time.time_ns()
        if found := records_of(member.consume(num_messages=200, timeout=0.1)):
            gets_on()
            done(start, "ok", polled(found))
            try:
                member.commit(asynchronous=False)
            except KafkaException as error:
                complain(f"commit: {error}")
    member.close()


def everything():
    reader = consumer("not-used", **{"enable.partition.eof": True})
    reader.assign(from_the_start())
    done(time.time_ns(), "ok", [{"seek": True}])
    at_end = set()
    while len(at_end) < partitions and not stopping:
        start = time.time_ns()
        messages = reader.consume(num_messages=1000, timeout=0.5)
        for message in messages:
            if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
        if found := records_of([message for message in messages if message.error() is None]):
            done(start, "ok", [{"poll": found}])
    reader.close()


class Transformer:
    """One life of a transactional client: ends when its producer or its place in the group is lost."""

    def __init__(self, output, output_partitions):
        self.output, self.output_partitions = output, output_partitions
        self.producer = Producer(
            {**COMMON, "transactional.id": f"lab-{name}", "transaction.timeout.ms": 30000, "linger.ms": 2}
        )
        self.producer.init_transactions(DECISION_LIMIT_S)
        self.member = consumer("lab-transform", **{"auto.offset.reset": "earliest", "session.timeout.ms": 6000})
        self.member.subscribe([topic], on_assign=self.take, on_revoke=moved, on_lost=moved)

    def take(self, member, assigned):
        moved(member, assigned)
        begin_at(member, member.committed(assigned, timeout=DECISION_LIMIT_S))

    def close(self):
        self.member.close()

    def step(self):
        start = time.time_ns()
        messages = [message for message in self.member.consume(num_messages=50, timeout=0.2) if message.error() is None]
        if not messages:
            return
        gets_on()
        steps = polled(records_of(messages))
        outcome = "info"
        try:
            outcome = self.transact(messages, steps)
        finally:
            done(start, outcome, steps, transaction=True)
        if outcome != "ok":
            raise Given("a transaction was not committed")

    def transact(self, messages, steps):
        global counter
        self.producer.begin_transaction()
        for message in messages:
            counter += 1
            value = f"{message.value().decode()}>{name}.{os.getpid()}.{counter}"
            partition = message.partition() % self.output_partitions
            key = f"{self.output}-{partition}"
            note({"process": name, "intent": value, "key": key})
            step = send_step(key, value, None)
            steps.append(step)
            self.producer.produce(self.output, value=value, partition=partition, on_delivery=remember(step))
        try:
            if random.random() < 0.1:
                self.producer.abort_transaction(DECISION_LIMIT_S)
                return "fail"
            positions = self.member.position(self.member.assignment())
            self.producer.send_offsets_to_transaction(
                positions, self.member.consumer_group_metadata(), DECISION_LIMIT_S
            )
        except KafkaException as error:
            return self.give_up(error)
        return self.commit()

    def commit(self):
        deadline = time.monotonic() + DECISION_LIMIT_S
        while True:
            try:
                self.producer.commit_transaction(10)
                return "ok"
            except KafkaException as error:
                complain(f"commit: {error}")
                if error.args[0].txn_requires_abort():
                    return self.give_up(error)
                if not error.args[0].retriable() or deadline < time.monotonic():
                    return "info"

    def give_up(self, error):
        complain(f"transaction: {error}")
        if not error.args[0].txn_requires_abort():
            return "info"
        try:
            self.producer.abort_transaction(DECISION_LIMIT_S)
            return "fail"
        except KafkaException as second:
            complain(f"abort: {second}")
            return "info"


class Given(Exception):
    """This life of the client is over."""


counter = 0


def remember(step):
    def callback(error, message):
        if error is None:
            step["send"]["offset"] = message.offset()

    return callback


def transform():
    output, output_partitions = sys.argv[8], int(sys.argv[9])
    while not stopping:
        life = None
        try:
            life = Transformer(output, output_partitions)
            while not stopping:
                life.step()
        except (KafkaException, Given) as error:
            complain(f"a new life: {error}")
        finally:
            if life is not None:
                life.close()
            moved(None, None)


def supervised(body):
    if is_worker():
        # Told by a line, not by the signal, which the worker gets as well when a whole group of processes does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        work(body, STANDSTILL_LIMIT_S, lambda _line: stop(None, None))
    supervise(RESTARTS_MAX, lambda: "stop" if stopping else None)


signal.signal(signal.SIGTERM, stop)
if role in ("group", "transform"):
    supervised({"group": group, "transform": transform}[role])
else:
    {"write": write, "read": read, "everything": everything}[role]()
history.close()
