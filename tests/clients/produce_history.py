"""Produces unique values with acks=all until SIGTERM and notes each acknowledgement as it comes.

produce_history.py BOOTSTRAP TOPIC PARTITIONS RATE NAME HISTORY_FILE

A line of the history is `time_ms partition offset value`. A record that fails for good ends the script with an error:
the producer is idempotent and retries for two minutes, so nothing that the tests do may make it give up.
"""

import signal
import sys
import time

from confluent_kafka import Producer

bootstrap, topic, partitions, rate, name, path = sys.argv[1:7]
partitions, rate = int(partitions), float(rate)
history = open(path, "w", buffering=1)
stopping = False
failures = []


def stop(_signal, _frame):
    global stopping
    stopping = True


def delivered(error, message):
    if error is not None:
        failures.append(f"{message.topic()}-{message.partition()} {message.value()}: {error}")
        return
    now = int(time.time() * 1000)
    history.write(f"{now} {message.partition()} {message.offset()} {message.value().decode()}\n")


signal.signal(signal.SIGTERM, stop)
producer = Producer(
    {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": 120000,
        "linger.ms": 2,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 200,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 5000,
        "queue.buffering.max.messages": 1000000,
    }
)
start = time.monotonic()
sent = 0
while not stopping:
    due = int((time.monotonic() - start) * rate)
    while sent < due:
        value = f"{name}-{sent:09d}".encode()
        try:
            producer.produce(topic, value=value, partition=sent % partitions, on_delivery=delivered)
        except BufferError:
            break
        sent += 1
    producer.poll(0.005)
left = producer.flush(100)
history.close()
if failures or left:
    sys.exit(f"{len(failures)} of {sent} records failed, {left} are undecided: {failures[:5]}")
print(f"{sent} records were acknowledged")
