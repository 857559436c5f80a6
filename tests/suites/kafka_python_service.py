"""The module `test.service` of kafka-python's tests, which its source distribution lacks: a broker that somebody else
runs (`KAFKA_URI`) needs nothing of it, and no broker can be started through it."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def nothing(self, *_arguments, **_options):
        pass

    open = close = stop = dump_logs = wait_for = nothing


class SpawnedService:
    def __init__(self, *_arguments, **_options):
        raise RuntimeError("these tests run against a broker that is there already: set KAFKA_URI")
