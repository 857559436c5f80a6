"""A client in a process of its own that gives up when it gets no answer, and is started again, as a supervisor would:
librdkafka from 2.10 on may wait for ever for a coordinator that has left the metadata (it keeps the handle of the removed
broker), and some of its calls outlast the limit that they are given.

The script is started with its own arguments and `worker`. What goes wrong otherwise ends the script as well.
"""

import os
import subprocess
import sys
import threading
import time
import traceback

from confluent_kafka import KafkaException

GAVE_UP = 75
last = {"sign of life": time.monotonic()}


def is_worker():
    return sys.argv[-1] == "worker"


def gets_on():
    last["sign of life"] = time.monotonic()


def give_up(why):
    """Ends without the clients' clean-up, which may wait for ever as well."""
    print(f"{time.time():.3f} giving up: {why}", flush=True)
    os._exit(GAVE_UP)


def watch(limit):
    while time.monotonic() < last["sign of life"] + limit:
        time.sleep(0.5)
    give_up(f"no sign of life for {limit} s")


def work(body, limit, told=lambda line: None):
    """Does the work; `told` gets what the supervisor says, who ends this process by ending itself."""

    def listen():
        while line := sys.stdin.readline():
            told(line.strip())
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=watch, args=(limit,), daemon=True).start()
    try:
        body()
    except KafkaException as failure:
        traceback.print_exc()
        give_up(failure)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def supervise(restarts, news):
    """Starts the worker, and again when it gives up; tells each the line that `news` returns once it is not None."""
    for _ in range(1 + restarts):
        worker = subprocess.Popen([sys.executable, *sys.argv, "worker"], stdin=subprocess.PIPE, text=True)
        told = False
        while worker.poll() is None:
            if not told and (line := news()) is not None:
                told = True
                try:
                    print(line, file=worker.stdin, flush=True)
                except BrokenPipeError:
                    pass
            time.sleep(0.05)
        if worker.returncode == 0:
            return
        print(f"{time.time():.3f} the worker ended with {worker.returncode}", flush=True)
        if worker.returncode != GAVE_UP:
            break
    os._exit(1)
