"""Begins a transaction, writes one record in it, and goes away without an end: open_transaction.py BOOTSTRAP TOPIC ID."""

import os
import sys

from confluent_kafka import Producer

bootstrap, topic, transactional_id = sys.argv[1:]
producer = Producer({
    "bootstrap.servers": bootstrap,
    "transactional.id": transactional_id,
    "transaction.timeout.ms": 300_000,
})
producer.init_transactions(60)
producer.begin_transaction()
producer.produce(topic, b"never committed", partition=0)
if producer.flush(60) != 0:
    sys.exit("the record was not acknowledged")
print("open", flush=True)
# No clean end: that would abort the transaction.
os._exit(0)
