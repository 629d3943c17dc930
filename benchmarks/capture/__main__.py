"""``python -m benchmarks.capture CAPTURE``: the process that reads, told what to do by its input.

It prints a line when it has done as told. ``catch up``: read all that is committed by now, and
print how many seconds that took. ``stream``: begin to read for good. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial

import django
import psycopg

from benchmarks import captures

SETTINGS = {"SPANS_TABLES": False, "LOGGING_CONFIG": None}


def main(capture: str) -> None:
    """Make the tables of the database that DATABASE_URL names, and do what the input says."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps({**SETTINGS, "CAPTURE": capture})
    django.setup()
    from django.core.management import call_command

    # Import late: our models need Django to be set up.
    from pgembed_django.capture import Streamer

    call_command("migrate", verbosity=0)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        captures.install(connection, capture)
    is_ended = threading.Event()
    streamer = Streamer(using="default", is_stopping=is_ended.is_set)
    streamer.catch_up()  # makes the slot
    tell = partial(print, flush=True)
    tell("ready")
    for line in sys.stdin:
        if line == "stream\n":
            threading.Thread(target=streamer.stream, daemon=True).start()
            tell("begun")
        else:
            started = time.perf_counter()
            assert streamer.catch_up()
            tell(time.perf_counter() - started)
    is_ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
