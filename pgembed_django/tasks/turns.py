"""Start due tasks: of each tenant in turn, and of each serial key one at a time.

A lane is a queue's tasks of one priority, with or without serial keys. Nothing here walks over a
task that cannot run now: those for later and suspects are in other indexes, and of a key's tasks
only the first one is looked at. No statement waits for anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import IntegrityError

from pgembed_django.core import database
from pgembed_django.queue.jobs import Claim, Lease
from pgembed_django.queue.jobs.claims import START, STARTED
from pgembed_django.queue.jobs.leases import COLUMNS
from pgembed_django.tasks.table import TASKS

MOST_FOUND_DUE = 500
"""How many tasks whose time has come one look brings forward."""


class Lane(NamedTuple):
    """A queue's tasks of one priority, either those with a serial key or those without."""

    queue: str
    priority: int
    is_serial: bool


class Turn(NamedTuple):
    """A tenant's turn in a lane: up to ``most`` tasks behind where its last turn has ended."""

    tenant: str
    most: int
    run_at: str = "-infinity"
    id: int = 0
    serial: str = ""


class Started(NamedTuple):
    """A task that was started, whose turn it was, and what its function is called with."""

    claim: Claim
    tenant: str
    serial: str | None
    arguments: str
    """As JSON."""
    once: str | None
    created_at: datetime


# As the conditions of the indexes ``pgembed_task_ready`` and ``pgembed_task_serial``.
CLAIMABLE = """status = 'pending'
              AND id > 0
              AND crashes = 0
              AND outages = 0
              AND run_at <= GREATEST(created_at, found_due_at)
              AND serial IS """
READY = CLAIMABLE + "NULL"
SERIAL = CLAIMABLE + "NOT NULL"

# Jumps along the indexes from one priority to the next.
LANES = """
    WITH RECURSIVE lane AS (
        SELECT spec, is_serial, 32768 AS priority
        FROM unnest(%(queues)s::text[]) AS wanted(spec), unnest('{f,t}'::bool[]) AS kind(is_serial)
      UNION ALL
        SELECT lane.spec, lane.is_serial, lower.priority
        FROM lane
        CROSS JOIN LATERAL (
            (SELECT priority::int
            FROM pgembed_task AS task
            WHERE {ready}
              AND NOT lane.is_serial
              AND task.spec = lane.spec
              AND task.priority < lane.priority
            ORDER BY task.priority DESC, tenant, run_at, id
            LIMIT 1)
          UNION ALL
            (SELECT priority::int
            FROM pgembed_task AS task
            WHERE {serial}
              AND lane.is_serial
              AND task.spec = lane.spec
              AND task.priority < lane.priority
            ORDER BY task.priority DESC, tenant, serial, run_at, id
            LIMIT 1)
        ) AS lower
    )
    SELECT spec, priority, is_serial
    FROM lane
    WHERE priority < 32768
"""

# Tasks whose time has come move to the other indexes. There are none mostly.
FIND_DUE = """
    UPDATE pgembed_task AS task
    SET found_due_at = statement_timestamp()
    WHERE task.id = ANY(ARRAY(
        SELECT later.id
        FROM unnest(%(queues)s::text[]) AS wanted(spec)
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_task AS task
            WHERE status = 'pending'
              AND run_at > GREATEST(created_at, found_due_at)
              AND task.spec = wanted.spec
              AND run_at <= statement_timestamp()
            ORDER BY run_at
            LIMIT %(most)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS later
    ))
    RETURNING task.id
"""

# From behind the tenant that was served last to the end, and on from the first one.
TENANTS = """
    WITH RECURSIVE turn AS (
        SELECT %(served)s::text AS tenant, false AS is_round, 0 AS number
      UNION ALL
        SELECT next.tenant, next.is_round, number + 1
        FROM turn
        CROSS JOIN LATERAL (
            (SELECT tenant, turn.is_round
            FROM pgembed_task AS task
            WHERE {claimable}
              AND spec = %(queue)s
              AND priority = %(priority)s
              AND task.tenant > turn.tenant
            ORDER BY {order}
            LIMIT 1)
          UNION ALL
            (SELECT tenant, true
            FROM pgembed_task AS task
            WHERE {claimable}
              AND spec = %(queue)s
              AND priority = %(priority)s
              AND NOT turn.is_round
            ORDER BY {order}
            LIMIT 1)
            LIMIT 1
        ) AS next
        WHERE number < %(most)s
          AND NOT (turn.is_round AND turn.tenant >= %(served)s)
    )
    SELECT tenant
    FROM turn
    WHERE number > 0
      AND NOT (is_round AND tenant > %(served)s)
"""
TENANTS_READY = TENANTS.format(claimable=READY, order="tenant, run_at, id")
TENANTS_SERIAL = TENANTS.format(claimable=SERIAL, order="tenant, serial, run_at, id")

TAKEN = """
    WITH taken AS MATERIALIZED (
        SELECT candidate.id
        FROM unnest(
            %(tenants)s::text[], %(mosts)s::int[], %(run_ats)s::timestamptz[], %(ids)s::bigint[]
        ) AS turn(tenant, most, from_run_at, from_id)
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_task AS task
            WHERE {ready}
              AND spec = %(queue)s
              AND priority = %(priority)s
              AND task.tenant = turn.tenant
              AND (run_at, id) > (turn.from_run_at, turn.from_id)
            ORDER BY run_at, id
            LIMIT turn.most
            FOR UPDATE SKIP LOCKED
        ) AS candidate
    )
""".replace("{ready}", READY)
CHOSEN = "WHERE job.id = ANY(ARRAY(SELECT id FROM taken))"
CALLED = ", tenant, serial, arguments::text, once, created_at"
IN_ORDER = " FROM started AS job ORDER BY priority DESC, run_at, id"
STARTED_IN_ORDER = STARTED + CALLED + ", run_at) SELECT " + COLUMNS + CALLED + IN_ORDER
START_READY = TAKEN + ", started AS (" + START + CHOSEN + STARTED_IN_ORDER

# All that are due, unless there are more than wanted.
ALL_TAKEN = """
    WITH taken AS MATERIALIZED (
        SELECT candidate.id
        FROM unnest(%(queues)s::text[]) AS wanted(spec)
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_task AS task
            WHERE {ready}
              AND task.spec = wanted.spec
            ORDER BY priority DESC, tenant, run_at, id
            LIMIT %(most)s + 1
            FOR UPDATE SKIP LOCKED
        ) AS candidate
    )
""".replace("{ready}", READY)
UNLESS_TOO_MANY = " AND (SELECT count(*) FROM taken) <= %(most)s"
START_ALL = ALL_TAKEN + ", started AS (" + START + CHOSEN + UNLESS_TOO_MANY + STARTED_IN_ORDER

KEY = "pg_try_advisory_xact_lock(hashtextextended(%(queue)s || ' ' || head.serial, 0))"

# Locks the first task of each free key, and what it may collapse with. Keys that run are passed
# over: there are no more of them than workers have places. Whoever may have started a key
# meanwhile cannot be seen here, but from now on nobody else can.
HOLD_KEYS = """
    SELECT candidate.id, other.id
    FROM unnest(%(tenants)s::text[], %(mosts)s::int[], %(serials)s::text[])
        AS turn(tenant, most, served)
    CROSS JOIN LATERAL (
        WITH RECURSIVE head AS (
            SELECT turn.served AS serial, 0::bigint AS id, false AS is_round
          UNION ALL
            SELECT next.serial, next.id, next.is_round
            FROM head
            CROSS JOIN LATERAL (
                (SELECT serial, id, head.is_round
                FROM pgembed_task AS task
                WHERE {serial}
                  AND spec = %(queue)s
                  AND priority = %(priority)s
                  AND tenant = turn.tenant
                  AND task.serial > head.serial
                ORDER BY serial, run_at, id
                LIMIT 1)
              UNION ALL
                (SELECT serial, id, true
                FROM pgembed_task AS task
                WHERE {serial}
                  AND spec = %(queue)s
                  AND priority = %(priority)s
                  AND tenant = turn.tenant
                  AND NOT head.is_round
                ORDER BY serial, run_at, id
                LIMIT 1)
                LIMIT 1
            ) AS next
            WHERE NOT (head.is_round AND head.serial >= turn.served)
        )
        SELECT task.*
        FROM head
        CROSS JOIN LATERAL (
            SELECT id, source_pk, tenant, kind, is_coalesced
            FROM pgembed_task AS task
            WHERE task.id = head.id
              AND status = 'pending'
            OFFSET 0
            FOR UPDATE SKIP LOCKED
        ) AS task
        WHERE head.id > 0
          AND NOT (head.is_round AND head.serial > turn.served)
          AND NOT EXISTS (
              SELECT
              FROM pgembed_task AS other
              WHERE other.status = 'running'
                AND other.spec = %(queue)s
                AND other.serial = head.serial
              OFFSET 0
          )
          AND {key}
        LIMIT turn.most
    ) AS candidate
    LEFT JOIN LATERAL (
        SELECT id
        FROM pgembed_task AS other
        WHERE candidate.is_coalesced
          AND other.is_coalesced
          AND other.status = 'pending'
          AND other.spec = %(queue)s
          AND other.source_pk = candidate.source_pk
          AND other.tenant = candidate.tenant
          AND other.kind = candidate.kind
          AND other.id <> candidate.id
        OFFSET 0
        FOR UPDATE SKIP LOCKED
    ) AS other ON true
""".replace("{serial}", SERIAL).replace("{key}", KEY)

# A statement of its own: it sees what ran until the keys were locked.
REPLACED = """
    WITH gone AS (
        DELETE FROM pgembed_task
        WHERE id = ANY(%(older)s::bigint[])
    )
"""
FREE = """
    WHERE job.id = ANY(%(ids)s::bigint[])
      AND NOT EXISTS (
          SELECT
          FROM pgembed_task AS other
          WHERE other.status = 'running'
            AND other.spec = job.spec
            AND other.serial = job.serial
          OFFSET 0
      )
"""
START_SERIAL = REPLACED + ", started AS (" + START + FREE + STARTED_IN_ORDER

# Zero or less if a task can be claimed now, unless something else keeps it.
NEXT_DUE = """
    SELECT extract(epoch FROM min(due.run_at) - statement_timestamp())::float8
    FROM unnest(%(queues)s::text[]) AS wanted(spec)
    CROSS JOIN LATERAL (
        (SELECT run_at
        FROM pgembed_task AS task
        WHERE {ready}
          AND task.spec = wanted.spec
        ORDER BY priority DESC, tenant, run_at, id
        LIMIT 1)
      UNION ALL
        (SELECT run_at
        FROM pgembed_task AS task
        WHERE {serial}
          AND task.spec = wanted.spec
        ORDER BY priority DESC, tenant, serial, run_at, id
        LIMIT 1)
      UNION ALL
        (SELECT run_at
        FROM pgembed_task AS task
        WHERE status = 'pending'
          AND run_at > GREATEST(created_at, found_due_at)
          AND task.spec = wanted.spec
        ORDER BY run_at
        LIMIT 1)
      UNION ALL
        (SELECT run_at
        FROM pgembed_task AS task
        WHERE status = 'pending'
          AND (crashes > 0 OR outages > 0)
          AND task.spec = wanted.spec
        ORDER BY run_at
        LIMIT 1)
    ) AS due
""".replace("{ready}", READY).replace("{serial}", SERIAL)

LANES = LANES.replace("{ready}", READY).replace("{serial}", SERIAL)


def lanes(queues: Sequence[str], *, using: str) -> list[Lane]:
    """Return the lanes with tasks that can be claimed, once those whose time has come are in."""
    given = list(queues)
    try:
        with database.giving_way(using, pipelined=True, keep_plans=True, flush=False):
            database.send_prepared(using, FIND_DUE, queues=given, most=MOST_FOUND_DUE)
            read = database.send_prepared(using, LANES, queues=given)
    except database.Busy:
        return []  # the table is locked
    return [Lane(*row) for row in read()]


def tenants(lane: Lane, *, served: str, most: int, using: str) -> list[str]:
    """Return up to ``most`` tenants that wait in a lane: first those behind the one ``served``."""
    found = database.by_kept_plan(
        using,
        TENANTS_SERIAL if lane.is_serial else TENANTS_READY,
        flush=False,
        queue=lane.queue,
        priority=lane.priority,
        served=served,
        most=most,
    )
    return [tenant for (tenant,) in found]


def start_all(queues: Sequence[str], *, most: int, lease: Lease, using: str) -> list[Started]:
    """Start all due tasks without a key, if there are no more than ``most``.

    Then it is of no account whose turn it is. Those whose time has come meanwhile are left out, as
    only ``lanes`` finds them.
    """
    rows = database.by_kept_plan(
        using,
        TASKS(START_ALL),
        flush=False,
        queues=list(queues),
        most=most,
        worker=lease.worker_id,
        lease=lease.seconds,
    )
    return _started(rows)


def start(lane: Lane, turns: Collection[Turn], *, lease: Lease, using: str) -> list[Started]:
    """Start due tasks of a lane, in these turns.

    Those without a key come back in the order of time, those with one in that of the walk.
    """
    given: dict[str, Any] = {
        "queue": lane.queue,
        "priority": lane.priority,
        "tenants": [turn.tenant for turn in turns],
        "mosts": database.array([turn.most for turn in turns]),
    }
    by = {"worker": lease.worker_id, "lease": lease.seconds}
    if lane.is_serial:
        return _start_serial(given | {"serials": [turn.serial for turn in turns]}, by, using=using)
    rows = database.by_kept_plan(
        using,
        TASKS(START_READY),
        # A crash of the server may undo the claim. Then the fence no longer matches.
        flush=False,
        run_ats=database.array([turn.run_at for turn in turns]),
        ids=database.array([turn.id for turn in turns]),
        **given,
        **by,
    )
    return _started(rows)


def _start_serial(given: Mapping[str, Any], by: Mapping[str, Any], *, using: str) -> list[Started]:
    try:
        with database.giving_way(using, pipelined=True, keep_plans=True, flush=False):
            held = database.send_prepared(using, HOLD_KEYS, **given)()
            if not held:
                return []
            newest, older = _collapsed(held)
            ids = {"ids": database.array(newest), "older": database.array(older)}
            started = database.send_prepared(using, TASKS(START_SERIAL), **ids, **by)
    except (IntegrityError, database.Busy):
        return []  # a suspect of one of these keys is being started, without the key's lock
    by_id = {one.claim.id: one for one in _started(started())}
    return [by_id[task_id] for task_id in newest if task_id in by_id]


def _collapsed(held: Iterable[tuple[int, int | None]]) -> tuple[list[int], set[int]]:
    """Return the newest task of each key, in the order of keys, and those that it replaces."""
    groups: dict[int, set[int]] = {}
    for head, other in held:
        groups.setdefault(head, {head}).update(() if other is None else {other})
    newest = [max(group) for group in groups.values()]
    return newest, set().union(*groups.values()).difference(newest)


def _started(rows: Iterable[Sequence[Any]]) -> list[Started]:
    return [Started(Claim(*row[:-5]), *row[-5:]) for row in rows]


def next_due_seconds(queues: Sequence[str], *, using: str) -> float | None:
    """Return the seconds until the next task is due: zero or less if one is, None without any."""
    [[seconds]] = database.by_kept_plan(using, NEXT_DUE, flush=False, queues=list(queues))
    return None if seconds is None else float(seconds)
