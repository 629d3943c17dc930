"""django-ox: ten attempts with its own backoff. It takes over locks after the lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.chaos.contenders import base


class Contender(base.Contender):
    OPEN = "SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')"
    GIVEN_UP = "SELECT count(*) FROM django_ox_oxtask WHERE status = 'FAILED'"

    def __init__(self) -> None:
        super().__init__()
        from benchmarks.peers import project

        project.set_up(
            self.url,
            apps=["django_ox"],
            backend="django_ox.backend.OxBackend",
            MAX_ATTEMPTS=10,
            LOCK_TIMEOUT=base.LEASE_SECONDS,
            BACKOFF_INITIAL=1,
        )

    def prepare(self) -> None:
        super().prepare()
        from benchmarks.peers import project

        project.migrate()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        from django.db import transaction

        with transaction.atomic():
            yield

    def execute(self, statement: str, *parameters: object) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    def enqueue(self, key: int) -> None:
        from benchmarks.chaos.contenders import ox_tasks

        ox_tasks.embed.enqueue(key)

    def work(self) -> None:
        from django.core.management import call_command

        call_command("ox_worker", concurrency=base.AT_ONCE, interval=0.5)
