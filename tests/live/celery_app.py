"""The queue that is moved from: Celery over Redis, set up not to lose what a killed worker had."""

from __future__ import annotations

import os
from typing import Any

import django
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

app = Celery("moving", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1:1"))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    # How soon Redis hands on what a killed worker had.
    broker_transport_options={
        "visibility_timeout": 3,
        "polling_interval": 0.1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    broker_connection_retry_on_startup=True,
)


@app.task(name="run")
def run(*message: Any) -> None:
    """Run a task that was sent by ``send``."""
    from pgembed_django.tasks import moving

    moving.consume(*message)


def send(*message: Any) -> None:
    """Send a task to Celery."""
    run.delay(*message)
