"""Count in the database what must be zero after a soak. Each finding names its row."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from benchmarks.soak import actions
from benchmarks.soak.server import POISON, REFUSAL, vector_of
from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, ReplicationSlot, Ripple, StagedVector

USING = "default"
IGNORED = actions.BESIDE
"""A word in texts of poisoned rows, whose good chunks may be embedded at each attempt."""

SHOWN = 20
"""How many findings of one kind are printed."""

CONNECTION_LOST = {None, "57P01", "57P02", "57P03", "08000", "08003", "08006"}
"""The SQLSTATEs that a writer gets if its backend is terminated, or the server restarts."""

Findings = dict[str, list[str]]


def tell(figures: dict[str, Any], found: Findings, *, file: Path | None) -> int:
    """Print the figures, and the counts that must be zero. Return one if any is not."""
    width = max(map(len, (*figures, *found)))
    for name, figure in figures.items():
        print(f"{name:{width}}  {figure}")
    print()
    for name, rows in found.items():
        print(f"{name:{width}}  {len(rows)}")
        for row in rows[:SHOWN]:
            print(f"    {row}")
    if file is not None:
        counts = {name: len(rows) for name, rows in found.items()}
        file.write_text(json.dumps({"figures": figures, "to be zero": counts}, indent=2))
    return 1 if any(found.values()) else 0


def sizes() -> dict[str, int]:
    """Return how many rows there are of each spec, and how many ripples there were."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM pgembed_ripple_id_seq")
        [ripples] = cursor.fetchone() or [0]
    rows = {f"rows of {spec.key}": spec.rows(using=USING).count() for spec in specs.all()}
    return {**rows, "ripples": ripples}


def findings() -> Findings:
    """Return all faults of rows, vectors and jobs, by kind."""
    found: Findings = {
        name: []
        for name in (
            *("lost rows", "stale rows", "wrong vectors", "orphan vectors"),
            *("vectors outside the condition", "poison rows not failed"),
        )
    }
    for spec in specs.all():
        for kind, finding in _of_rows(spec):
            found[kind].append(f"{spec.key} {finding}")
    found["units stuck"] = list(_stuck())
    found["ripples left"] = [str(ripple) for ripple in Ripple.objects.all()]
    found["jobs failed without poison"] = list(_failed())
    found["staged vectors left"] = [str(staged) for staged in _staged()]
    return found


def gaps() -> list[str]:
    """Return the specs that are read from the log with gaps, and slots that are one too many."""
    read = [spec for spec in specs.all() if spec.is_read_from_log]
    noted = ReplicationSlot.objects.all()
    found = [
        f"{slot}: {spec}" for slot in noted for spec in read if slot.specs.get(spec.key) is None
    ]
    return found + [str(slot) for slot in noted[bool(read) :]]


def of_writers(errors: Iterable[Any]) -> list[str]:
    """Return the errors of writers that are our fault."""
    return [
        f"{error.sqlstate} {'in REPEATABLE READ' if error.is_repeatable_read else ''} "
        f"{error.message.strip()}"
        for error in errors
        if not _is_their_own(error)
    ]


def of_transactions(log: str) -> list[str]:
    """Return Postgres's warnings about a BEGIN within a transaction, or a COMMIT without one.

    Such a transaction did not hold its locks until its end.
    """
    return [line for line in log.splitlines() if line.endswith("transaction in progress")]


def _is_their_own(error: Any) -> bool:
    return (
        error.sqlstate in CONNECTION_LOST
        or (error.sqlstate == "40001" and error.is_repeatable_read)
        # Two writers moved rows to the same key.
        or (error.sqlstate == "23505" and "app_page_pkey" in error.message)
    )


def _of_rows(spec: Spec) -> Iterator[tuple[str, str]]:
    space = spaces.active(spec, using=USING)
    stored = defaultdict(list)
    everything = spec.embedding_model._base_manager.order_by("position")
    for chunk in everything.filter(space=space):
        stored[str(chunk.source_id)].append(chunk)
    existing = {str(pk) for pk in spec.model._base_manager.values_list("pk", flat=True)}
    texts = actions.texts_of(spec)
    for source_pk in stored.keys() - texts.keys():
        is_there = source_pk in existing
        yield "vectors outside the condition" if is_there else "orphan vectors", source_pk
    for chunk in everything.exclude(space=space):
        yield "orphan vectors", f"{chunk.source_id} in space {chunk.space_id}"
    open_failures = set(
        Job.objects.filter(spec=spec.key, status="failed", settled_at=None).values_list(
            "source_pk", flat=True
        )
    )
    for source_pk, text in texts.items():
        if POISON in text:
            # The last good vectors of a failed row may stay.
            if source_pk not in open_failures:
                yield "poison rows not failed", source_pk
        else:
            for kind in _of_row(spec, text, stored[source_pk]):
                yield kind, source_pk


def _of_row(spec: Spec, text: str, stored: list[Any]) -> Iterator[str]:
    chunks = spec.chunker.split(text)
    if not stored or any(row.embedding is None for row in stored):
        yield "lost rows"
    elif [bytes(row.chunk_digest) for row in stored] != [chunk.digest for chunk in chunks] or {
        bytes(row.text_digest) for row in stored
    } != {spec.text_digest(text)}:
        yield "stale rows"
    elif not all(
        _is_parallel(row.embedding, vector_of(chunk.text))
        for row, chunk in zip(stored, chunks, strict=True)
    ):
        yield "wrong vectors"


def _is_parallel(stored: Any, expected: list[float]) -> bool:
    length = sum(number**2 for number in expected) ** 0.5
    pairs = zip(stored, expected, strict=True)
    return all(abs(float(number) - other / length) < 1e-4 for number, other in pairs)


def _stuck() -> Iterator[str]:
    for job in Job.objects.filter(status="pending", run_at__lte=Now()):
        yield f"pending: {_told(job)}"
    for job in Job.objects.filter(status="running"):
        yield f"running: {_told(job)}"
    for job in Job.objects.filter(status="pending", run_at__gt=Now()):
        yield f"not due yet: {_told(job)}"


def _failed() -> Iterator[str]:
    for job in Job.objects.filter(status="failed"):
        if REFUSAL not in job.last_error:
            yield f"{_told(job)}: {job.last_error[:200]}"


def _staged() -> Iterable[StagedVector]:
    """Return staged vectors of units without an open failure, whose retry would use them."""
    failure = Job.objects.filter(
        spec=OuterRef("spec"), source_pk=OuterRef("source_pk"), status="failed", settled_at=None
    )
    return StagedVector.objects.exclude(Exists(failure))


def _told(job: Job) -> str:
    return f"job {job.pk}, {job.spec} {job.source_pk}, claims {job.claims}, crashes {job.crashes}"
