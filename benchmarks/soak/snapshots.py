"""Check in a snapshot of the database what must hold at every moment, even during faults.

A trigger enqueues in the writer's own transaction, and vectors commit together with the completion
of their job. So in each snapshot every row is fresh, at work or failed, and vectors without a row
have a job that is about to delete them. This finds every single lost write. The state at the end
does not, as later writes to the same row hide it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from django.db import Error, connection, transaction

from benchmarks.app.models import Article, Note, Page
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job


class Snapshots:
    """Checks snapshot after snapshot. ``found`` holds each fault once."""

    def __init__(self) -> None:
        self.looks = 0
        self.found: set[str] = set()

    def look(self) -> None:
        """Check once, on a new connection, which may be terminated like all others."""
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    for model in (Article, Note, Page):
                        # Lock before taking the snapshot: TRUNCATE empties older snapshots too.
                        cursor.execute(f"LOCK TABLE {model._meta.db_table} IN ACCESS SHARE MODE")
                found = {finding for spec in specs.all() for finding in _wrong(spec)}
            self.found |= found
            self.looks += 1
        except Error:
            """A fault has hit this check. There will be another."""
        finally:
            with contextlib.suppress(Error):
                connection.close()


def _wrong(spec: Spec) -> Iterator[str]:
    jobs = Job.objects.filter(spec=spec.key)
    units = jobs.filter(status__in=["pending", "running"]) | jobs.filter(
        status="failed", settled_at=None
    )
    at_work = set(units.values_list("source_pk", flat=True))
    stored = defaultdict(set)
    chunks = spec.embedding_model._base_manager.filter(embedding__isnull=False)
    for source_pk, digest in chunks.values_list("source_id", "text_digest"):
        stored[source_pk].add(bytes(digest))
    rows = {row.pk: spec.text_digest(spec.text_of(row)) for row in spec.rows()}
    for source_pk, digest in rows.items():
        if str(source_pk) not in at_work and stored[source_pk] != {digest}:
            yield f"{spec.key} {source_pk} is {'stale' if stored[source_pk] else 'lost'}"
    for source_pk, digests in stored.items():
        if digests and source_pk not in rows and str(source_pk) not in at_work:
            yield f"{spec.key} {source_pk} has vectors and no row"
