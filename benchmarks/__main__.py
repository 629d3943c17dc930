"""``python -m benchmarks NAME``. Each NAME is a module with ``add_arguments`` and ``run``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from types import ModuleType

BENCHMARKS = {
    "capture": "The write-ahead log: rows that become jobs, memory, and unrelated writes.",
    "chaos": "Kills and races: what is lost, stale, orphaned or stuck, compared with peers.",
    "chunking": "How fast texts are cut, and how many chunks stay the same after an edit.",
    "idle": "How much an idle transaction elsewhere slows down the claim.",
    "latency": "The time from a commit to its vector, compared with a hand-written loop and pgai.",
    "models": "A worker beside its model's own encode, and queries beside a backfill.",
    "pipeline": "Rows embedded a second, compared with pgai and a hand-written script.",
    "providers": "Requests and bytes for 1,000 rows; base64 compared with JSON floats.",
    "queue": "Jobs a second of one worker process, compared with other queues.",
    "ripples": "An author of 100,000 stories is renamed: its writer, the worker, and other writes.",
    "scale": "Claims, reconciling, memory and locks, from a thousand rows to a million.",
    "search-latency": "How long hybrid searches take, compared with hand-written SQL.",
    "search-quality": "Judged questions: recall, MRR and nDCG of each mode.",
    "sizing": "Workers, batches, time-outs and disk, from milliseconds per text.",
    "soak": "Everything at once, for a while, and then nothing may be lost, stale or stuck.",
    "storage": "Disk space of vectors and their index, compared with the formulas.",
    "swap": "A change of model under load: what searches find meanwhile, and what it costs.",
    "tasks": "Tasks drained, started, enqueued and claimed, compared with other queues.",
    "throughput": "How many rows a worker stores a second when embedding costs nothing.",
    "workers": "One, two and four workers on a slow provider.",
    "write": "What a save costs its writer, compared with other triggers.",
}


def _module(name: str) -> ModuleType:
    return import_module(f"benchmarks.{name.replace('-', '.')}")


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark. Return zero if it reached its bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, description in BENCHMARKS.items():
        module = _module(name)
        module.add_arguments(names.add_parser(name, help=description, description=module.__doc__))
    options = parser.parse_args(arguments)
    return int(_module(options.name).run(options))


if __name__ == "__main__":
    sys.exit(main())
