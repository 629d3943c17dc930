"""Read open failures: their kinds, and the ids of one kind in batches.

A kind is a spec and an error's signature. No query reads all failures: it jumps along an index
from one kind to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgembed_django import database
from pgembed_django.ops.queue import FAILING, Count

MAX_COUNT = 10_000
MAX_KINDS = 200
"""How many kinds per spec are looked for. Kinds of the ``RECENT`` latest failures are added."""

RECENT = 1000

OF_EACH_KIND = """,
    kind AS (
        SELECT failing.spec, lowest.signature, 1 AS number
        FROM failing
        CROSS JOIN LATERAL (
            SELECT signature
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND pgembed_job.spec = failing.spec
            ORDER BY signature
            LIMIT 1
        ) AS lowest
        WHERE %(specs)s::text[] IS NULL
           OR failing.spec = ANY(%(specs)s::text[])
      UNION ALL
        SELECT kind.spec, following.signature, kind.number + 1
        FROM kind
        CROSS JOIN LATERAL (
            SELECT signature
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND pgembed_job.spec = kind.spec
              AND pgembed_job.signature > kind.signature
            ORDER BY signature
            LIMIT 1
        ) AS following
        WHERE kind.number < %(max_kinds)s
    ),
    recent AS (
        SELECT spec, signature
        FROM (
            SELECT spec, signature
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
            ORDER BY finished_at DESC, id DESC
            LIMIT %(recent)s
        ) AS latest
        WHERE %(specs)s::text[] IS NULL
           OR spec = ANY(%(specs)s::text[])
    ),
    chosen AS MATERIALIZED (
        SELECT found.spec, found.signature, latest.id, latest.finished_at, latest.last_error
        FROM (
            SELECT spec, signature FROM kind
          UNION
            SELECT spec, signature FROM recent
        ) AS found
        CROSS JOIN LATERAL (
            SELECT id, finished_at, last_error
            FROM pgembed_job AS job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND job.spec = found.spec
              AND job.signature = found.signature
            ORDER BY finished_at DESC, id DESC
            LIMIT 1
        ) AS latest
        ORDER BY latest.finished_at DESC
        LIMIT %(limit)s + 1
    )
    SELECT
        chosen.spec,
        chosen.signature,
        counted.count,
        earliest.finished_at,
        chosen.finished_at,
        chosen.last_error,
        chosen.id,
        (SELECT max(number) FROM kind)
    FROM chosen
    CROSS JOIN LATERAL (
        SELECT finished_at
        FROM pgembed_job AS job
        WHERE status = 'failed'
          AND settled_at IS NULL
          AND job.spec = chosen.spec
          AND job.signature = chosen.signature
        -- Backwards along the same index.
        ORDER BY finished_at, id
        LIMIT 1
    ) AS earliest
    CROSS JOIN LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM pgembed_job AS job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND job.spec = chosen.spec
              AND job.signature = chosen.signature
            -- Ordered as in the index: else the planner reads the whole table if failures are many.
            ORDER BY finished_at DESC, id DESC
            LIMIT %(max_count)s
        ) AS counted
    ) AS counted
    ORDER BY counted.count DESC, chosen.finished_at DESC
"""
KINDS = "WITH RECURSIVE" + FAILING + OF_EACH_KIND

NEXT = """
    SELECT id, finished_at::text
    FROM pgembed_job
    WHERE status = 'failed'
      AND settled_at IS NULL
      AND (finished_at, id) < (%(before)s::timestamptz, %(id)s)
      AND (%(specs)s::text[] IS NULL OR spec = ANY(%(specs)s::text[]))
      AND (%(source_pks)s::text[] IS NULL OR source_pk = ANY(%(source_pks)s::text[]))
    ORDER BY pgembed_job.finished_at DESC, id DESC
    LIMIT %(limit)s
"""

NEXT_OF_KIND = """
    SELECT id, finished_at::text
    FROM pgembed_job
    WHERE status = 'failed'
      AND settled_at IS NULL
      AND spec = %(spec)s
      AND signature = %(signature)s
      AND (finished_at, id) < (%(before)s::timestamptz, %(id)s)
      AND (%(source_pks)s::text[] IS NULL OR source_pk = ANY(%(source_pks)s::text[]))
    ORDER BY pgembed_job.finished_at DESC, id DESC
    LIMIT %(limit)s
"""

# As text, which has the offset: with USE_TZ off a time is naive, and one hour a year is ambiguous.
NOW = "SELECT statement_timestamp()::text"
MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """The open failures of one spec with one signature. ``sample`` is the latest error."""

    spec: str
    signature: str
    count: Count
    first_at: datetime
    last_at: datetime
    sample: str
    sample_id: int
    """The id of the job with this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKinds:
    """Kinds of open failures, the largest first. ``is_whole``: there are no other kinds."""

    kinds: tuple[FailureKind, ...]
    is_whole: bool


def failure_kinds(
    *,
    using: str,
    specs: Sequence[str] | None = None,
    limit: int = 20,
    max_count: int = MAX_COUNT,
) -> FailureKinds:
    """Return the most recent kinds of open failures, the largest first, in one query.

    ``limit`` bounds the number of kinds. Counting each of them, up to ``max_count``, takes most of
    the time.
    """
    rows = database.rows(
        using,
        KINDS,
        specs=None if specs is None else list(specs),
        limit=limit,
        max_count=max_count,
        max_kinds=MAX_KINDS,
        recent=RECENT,
    )
    kinds = [
        FailureKind(
            spec=spec,
            signature=signature,
            count=Count(number, number >= max_count),
            first_at=first_at,
            last_at=last_at,
            sample=sample,
            sample_id=sample_id,
        )
        for spec, signature, number, first_at, last_at, sample, sample_id, _ in rows
    ]
    is_whole = len(rows) <= limit and not any(row[-1] >= MAX_KINDS for row in rows[:1])
    if len(kinds) > limit:
        kinds.remove(min(kinds, key=lambda kind: kind.last_at))
    return FailureKinds(kinds=tuple(kinds), is_whole=is_whole)


def failure_batches(
    *,
    using: str,
    specs: Sequence[str] | None = None,
    signature: str | None = None,
    source_pks: Sequence[str] | None = None,
    size: int = 1000,
) -> Iterator[list[int]]:
    """Yield the ids of open failures in batches, the latest first. None means any.

    The caller may retry a batch before it asks for the next one: failures that happen after the
    first call are left out. ``signature`` needs ``specs``.
    """
    pks = None if source_pks is None else list(source_pks)
    [[now]] = database.rows(using, NOW)
    chosen: list[dict[str, Any]]
    if signature is None:
        chosen = [{"specs": None if specs is None else list(specs)}]
        statement = NEXT
    else:
        chosen = [{"spec": spec, "signature": signature} for spec in specs or ()]
        statement = NEXT_OF_KIND
    for which in chosen:
        before, last_id = now, MAX_ID
        while rows := database.rows(
            using, statement, **which, source_pks=pks, before=before, id=last_id, limit=size
        ):
            last_id, before = rows[-1]
            yield [job_id for job_id, _ in rows]
