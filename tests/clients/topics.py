"""Creates, grows, describes and deletes topics with one client.

topics.py CLIENT BOOTSTRAP create TOPIC PARTITIONS REPLICAS
topics.py CLIENT BOOTSTRAP grow TOPIC PARTITIONS
topics.py CLIENT BOOTSTRAP describe TOPIC       prints `partition leader replicas isr` a line
topics.py CLIENT BOOTSTRAP delete TOPIC
topics.py CLIENT BOOTSTRAP refused TOPIC PARTITIONS REPLICAS ERROR
    ends with an error unless creating is refused with the error of this Kafka name, e.g. INVALID_PARTITIONS

CLIENT is confluent or kafka-python.
"""

import sys

TIMEOUT = 30


class Confluent:
    def __init__(self, bootstrap):
        from confluent_kafka.admin import AdminClient

        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    @staticmethod
    def wait(futures):
        for future in futures.values():
            future.result(timeout=TIMEOUT)

    def create(self, topic, partitions, replicas):
        from confluent_kafka.admin import NewTopic

        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas)
        self.wait(self.admin.create_topics([new], operation_timeout=20, request_timeout=25))

    def grow(self, topic, partitions):
        from confluent_kafka.admin import NewPartitions

        new = NewPartitions(topic, partitions)
        self.wait(self.admin.create_partitions([new], operation_timeout=20, request_timeout=25))

    def delete(self, topic):
        self.wait(self.admin.delete_topics([topic], operation_timeout=20, request_timeout=25))

    def describe(self, topic):
        found = self.admin.list_topics(topic, timeout=TIMEOUT).topics[topic]
        if found.error is not None:
            sys.exit(f"topics.py: {topic}: {found.error}")
        for one in found.partitions.values():
            yield one.id, one.leader, one.replicas, one.isrs

    def refusal(self, topic, partitions, replicas):
        from confluent_kafka import KafkaException

        try:
            self.create(topic, partitions, replicas)
        except KafkaException as error:
            return error.args[0].name()
        return None


class KafkaPython:
    def __init__(self, bootstrap):
        from kafka.admin import KafkaAdminClient

        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))

    def create(self, topic, partitions, replicas):
        new = {topic: {"num_partitions": partitions, "replication_factor": replicas}}
        self.admin.create_topics(new, timeout_ms=20000)

    def grow(self, topic, partitions):
        self.admin.create_partitions({topic: partitions}, timeout_ms=20000)

    def delete(self, topic):
        self.admin.delete_topics([topic], timeout_ms=20000)

    def describe(self, topic):
        found = self.admin.describe_topics([topic])[0]
        if found["error_code"]:
            sys.exit(f"topics.py: {topic}: error {found['error_code']}")
        for one in found["partitions"]:
            yield one["partition_index"], one["leader_id"], one["replica_nodes"], one["isr_nodes"]

    def refusal(self, topic, partitions, replicas):
        from kafka.errors import KafkaError

        try:
            self.create(topic, partitions, replicas)
        except KafkaError as error:
            return getattr(error, "message", None) or type(error).__name__
        return None


def main():
    client, bootstrap, verb, topic = sys.argv[1:5]
    admin = {"confluent": Confluent, "kafka-python": KafkaPython}[client](bootstrap)
    numbers = [int(text) for text in sys.argv[5:7]]
    if verb == "create":
        admin.create(topic, *numbers)
    elif verb == "grow":
        admin.grow(topic, *numbers)
    elif verb == "delete":
        admin.delete(topic)
    elif verb == "describe":
        for partition, leader, replicas, isr in sorted(admin.describe(topic)):
            print(partition, leader, ",".join(map(str, replicas)), ",".join(map(str, sorted(isr))))
    elif verb == "refused":
        found = admin.refusal(topic, *numbers)
        if found != sys.argv[7]:
            sys.exit(f"topics.py: creating {topic} gave {found}, not {sys.argv[7]}")
    else:
        sys.exit(f"topics.py: unknown verb {verb}")


main()
