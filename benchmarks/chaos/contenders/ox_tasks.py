"""The task of django-ox."""

from __future__ import annotations

import os

from django.tasks import task

from benchmarks.chaos.contenders import base


@task
def embed(key: int) -> None:
    """Embed one row."""
    base.handle(os.environ["DATABASE_URL"], key)
