"""``python -m benchmarks.peers NAME HANDLER JOBS SECONDS fill|drain``: one contender, one step."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from benchmarks.queue.handler import Handler

MODULES = {
    "ours": "ours",
    "bare claim and delete": "bare",
    "no queue: threads alone": "threads",
    "pgqueuer": "with_pgqueuer",
    "procrastinate": "with_procrastinate",
    "django-ox": "with_django_ox",
    "django-tasks-db": "with_django_tasks_db",
    "Celery with Redis": "with_celery",
}


def main(name: str, handler: str, jobs: str, seconds: str, step: str) -> None:
    """Do one step, on the database that DATABASE_URL names."""
    module = import_module(f"benchmarks.peers.{MODULES[name]}")
    count = min(int(jobs), getattr(module, "MOST_JOBS", int(jobs)))
    if step == "fill":
        module.fill(os.environ["DATABASE_URL"], count)
        return
    handled = Handler(sleeps=handler == "sleep")
    handled.tell_and_exit_after(float(seconds), jobs=count)
    module.drain(os.environ["DATABASE_URL"], handled)


if __name__ == "__main__":
    main(*sys.argv[1:])
