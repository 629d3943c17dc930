"""Tasks with schedules. No worker of other tests imports this module, or runs them."""

from __future__ import annotations

from datetime import timedelta

from pgembed_django.tasks import task
from tests.app.models import Note


@task(every=timedelta(minutes=5))
def tick() -> None:
    """Write a note every five minutes."""
    Note.objects.create(body="tick")


@task(every="30 3 * * *", attempts=1)
def nightly() -> None:
    """Fail every night."""
    raise ValueError("not tonight")
