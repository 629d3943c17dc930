"""Check in a snapshot of the database what must hold at every moment, even during faults.

A trigger enqueues in the writer's own transaction, or leaves a ripple on another table, and vectors
commit together with the completion of their job. So in each snapshot every row is fresh, at work,
failed, or about to be enqueued by a ripple, and vectors without a row have a job or a ripple that
is about to delete them. This finds every single lost write. The state at the end does not, as later
writes to the same row hide it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from django.db import Error, connection, transaction

from benchmarks.app.models import Article, Note, Page
from benchmarks.related.models import Comment, Essay
from benchmarks.soak.actions import texts_of
from benchmarks.soak.spanning import Through
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, Ripple

TRUNCATED = (Article, Note, Page, Through, Comment, Essay)
"""In the order in which writers come to them."""


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
                    for model in TRUNCATED:
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
    at_work = set(units.values_list("source_pk", flat=True)) | set(_rippled(spec))
    stored = defaultdict(set)
    chunks = spec.embedding_model._base_manager.filter(embedding__isnull=False)
    for source_pk, digest in chunks.values_list("source_id", "text_digest"):
        stored[str(source_pk)].add(bytes(digest))
    rows = {source_pk: spec.text_digest(text) for source_pk, text in texts_of(spec).items()}
    for source_pk in rows.keys() - at_work:
        if stored[source_pk] != {rows[source_pk]}:
            yield f"{spec.key} {source_pk} is {'stale' if stored[source_pk] else 'lost'}"
    for source_pk in stored.keys() - rows.keys() - at_work:
        if stored[source_pk]:
            yield f"{spec.key} {source_pk} has vectors and no row"


def _rippled(spec: Spec) -> Iterator[str]:
    """Yield the units that ripples are still to be expanded to."""
    keys = defaultdict(list)
    for ripple in Ripple.objects.filter(spec=spec.key):
        keys[ripple.path, ripple.cursor].append(ripple.key)
    for (path, cursor), of_path in keys.items():
        units = spec.model._base_manager.all()
        units = units.filter(**{f"{path}__in": of_path}) if path else units
        units = units.filter(pk__gt=cursor) if cursor is not None else units
        yield from map(str, units.values_list("pk", flat=True))
