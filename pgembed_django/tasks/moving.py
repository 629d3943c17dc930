"""Move over from another queue, such as Celery's: ``OPTIONS["move"]`` names the stage.

Stage       written to   run by
both        both         both; a task must bear that, as it must bear a second attempt
shadow      both         the other queue; here they are claimed, and nothing is executed
postgres    Postgres     Postgres; the other consumer is idle

Outcomes are recorded by key, for ``embed_tasks compare``. Each stage can be taken back: a task is
left to the other queue only if its copy there is known to have been sent, and the other consumer
leaves a task alone only if it has not been left to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.module_loading import import_string

from pgembed_django.core import database
from pgembed_django.core.coroutines import entered
from pgembed_django.models import Task as TaskRow
from pgembed_django.models import TaskOutcome
from pgembed_django.tasks import results
from pgembed_django.tasks.declaration import Task
from pgembed_django.tasks.enqueueing import Call
from pgembed_django.tasks.errors import Again

STAGES = ("both", "shadow", "postgres")
HERE = "postgres"
THERE = "other"

ENQUEUED, SENT = "enqueued", "sent"
SUCCEEDED, FAILED, SHADOWED = "succeeded", "failed", "shadowed"

SEND_SECONDS = 60.0
"""How long a task's copy may take to be sent. After that, Postgres runs the task in the shadow,
too: the process that was to send the copy has died."""

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A stage, and the dotted path of what sends a task to the other queue.

    It is called as ``send(path, args, kwargs, key)``, after the commit, and must hand all four to
    ``consume`` on the other side.
    """

    stage: str
    send: str = ""

    @property
    def writes_both(self) -> bool:
        """Whether tasks are sent to the other queue as well."""
        return self.stage in ("both", "shadow")


def of(backend: Any) -> Move | None:
    """Return a backend's move, if it is under way."""
    given = backend.options.get("move")
    return Move(**given) if given else None


def problems(backend: Any) -> Iterator[tuple[str, str]]:
    """Yield ``(what is wrong, what to do)`` of the option."""
    given = backend.options.get("move")
    if not given:
        return
    if not isinstance(given, Mapping) or not {*given} <= {"stage", "send"}:
        yield f'OPTIONS["move"] is {given!r}.', 'Set it to {"stage": "both", "send": "a.path"}.'
    elif given.get("stage") not in STAGES:
        yield f"The stage is {given.get('stage')!r}.", f"Choose one of: {', '.join(STAGES)}."
    elif Move(**given).writes_both and not given.get("send"):
        yield f"In the stage {given['stage']}, nothing sends to the other queue.", 'Set "send".'


def key_of(task_id: int, *, tenant: str, once: str | None) -> str:
    """Return the name of a call, the same at each attempt and in both queues."""
    return f"{quote(tenant, safe='')}:{once}" if once else f"task-{task_id}"


def hand_over(move: Move, task: Any, task_id: int, call: Call, *, using: str) -> None:
    """Send a task that was just enqueued to the other queue, too, once the caller commits.

    Not if it was enqueued under its key before. Tasks that coalesce stay here, as the other queue
    could not replace what it has.
    """
    path = task.module_path
    keys = task.keys(*call) if isinstance(task, Task) else {}
    key = key_of(task_id, tenant=keys.get("tenant", ""), once=keys.get("once"))
    known = TaskOutcome.objects.using(using).filter(key=key, outcome=ENQUEUED)
    tasks = TaskRow.objects.using(using).filter(pk=task_id)
    if created_at := tasks.values_list("created_at", flat=True).first():
        known = known.filter(ended_at__gte=created_at)  # of this task, not of one before
    if not move.writes_both or keys.get("coalesce") or known.exists():
        return
    note(key, path, ENQUEUED, consumer=HERE, using=using)

    def send() -> None:
        import_string(move.send)(path, call.args, call.kwargs, key)
        note(key, path, SENT, consumer=HERE, using=using)

    # robust: the task is committed, and Postgres runs it if it was not sent.
    transaction.on_commit(send, using=using, robust=True)


def note(
    key: str, path: str, outcome: str, *, consumer: str, using: str, result: Any = None
) -> None:
    """Record what has become of a task."""
    digest = ""
    if outcome == SUCCEEDED and result is not None:
        said = json.dumps(result, sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode()).hexdigest()
    row = TaskOutcome(key=key, consumer=consumer, function=path, outcome=outcome, digest=digest)
    TaskOutcome.objects.using(using).bulk_create([row])


@contextmanager
def noting(key: str, path: str, *, consumer: str, using: str) -> Iterator[list[Any]]:
    """Record the outcome of what runs inside. Put its result into the list."""
    results: list[Any] = []
    try:
        yield results
    except Again as again:
        raise RetryAsked(again.seconds) from None
    except BaseException:
        note(key, path, FAILED, consumer=consumer, using=using)
        raise
    result = results[0] if results else None
    note(key, path, SUCCEEDED, consumer=consumer, using=using, result=result)


class NotYet(Exception):
    """The copy of a task may not have been sent yet: look again in a moment."""


class RetryAsked(Exception):
    """A task that runs in the other queue asks it for another run, in so many ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"another run was asked for, in {seconds:g} s")
        self.seconds = seconds


def is_left_to_other(move: Move, key: str, path: str, *, since: datetime, using: str) -> bool:
    """Return whether the other queue runs a task, as its copy is there. Records that.

    ``since``: when it was enqueued. An earlier task may have had the same key.

    Raises:
        NotYet: it is not known yet.
    """
    if move.stage != "shadow":
        return False
    noted = TaskOutcome.objects.using(using).filter(key=key, consumer=HERE, ended_at__gte=since)
    known = {one.outcome: one for one in noted}
    if ENQUEUED not in known:
        return False  # enqueued in another stage, or by what is not handed over
    if SENT not in known:
        waited = timezone.now() - known[ENQUEUED].ended_at
        if waited.total_seconds() < SEND_SECONDS:
            raise NotYet
        return False
    note(key, path, SHADOWED, consumer=HERE, using=using)
    return True


def consume(path: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: str) -> Any:
    """Run a task that has come from the other queue. Call it there, with what ``send`` was given.

    Does nothing in the stage ``postgres``, or once the move is over, unless the task has been left
    to the other queue before. Returns what the task returns.

    Raises:
        RetryAsked: it has called ``context.retry()``.
    """
    task = results.declared(path)
    backend = task.get_backend()
    using, move = backend.database, of(backend)
    if not (move and move.writes_both):
        noted = TaskOutcome.objects.using(using).filter(key=key)
        last = noted.filter(outcome=ENQUEUED).aggregate(at=Max("ended_at"))["at"]
        # Not of an earlier task with this key.
        noted = noted.filter(ended_at__gte=last) if last else noted
        done = {*noted.values_list("consumer", "outcome")}
        if (HERE, SHADOWED) not in done or (THERE, SUCCEEDED) in done:
            return None
    given = [*args]
    if task.takes_context:
        tenant = task.keys(args, kwargs)["tenant"] if isinstance(task, Task) else ""
        given.insert(0, OtherContext(key=key, tenant=tenant, using=using))
    with noting(key, path, consumer=THERE, using=using) as returned:
        returned.append(task.call(*given, **kwargs))
    return returned[0]


@dataclass(frozen=True, slots=True)
class OtherContext:
    """What a task with ``takes_context`` is given by the other consumer."""

    key: str
    tenant: str
    using: str
    attempt: int = 1
    is_canceled: bool = False

    def check(self) -> None:
        """Do nothing: nobody cancels it here."""

    @contextmanager
    def completing(self, *, result: Any = None) -> Iterator[None]:
        """Commit what is written inside at once. There is no task's end to commit with it."""
        with transaction.atomic(using=self.using, durable=True):
            yield

    @asynccontextmanager
    async def acompleting(self, *, result: Any = None) -> AsyncIterator[None]:
        """Do the same in an async function."""
        async with entered(self.completing(result=result)):
            yield

    def retry(self, *, at: datetime | None = None, in_seconds: float = 0) -> None:
        """End this run. ``consume`` raises ``RetryAsked``."""
        raise Again(at, in_seconds)


# Compare


@dataclass(frozen=True, slots=True)
class Difference:
    """What the two consumers do not agree on, for one key."""

    key: str
    function: str
    what: str


COMPARE = """
    SELECT key, max(function), what
    FROM (
        SELECT
            key,
            max(function) AS function,
            max(ended_at) FILTER (WHERE outcome = 'enqueued') AS enqueued_at,
            count(*) FILTER (WHERE consumer = 'postgres' AND outcome = 'succeeded') AS here,
            count(*) FILTER (WHERE consumer = 'other' AND outcome = 'succeeded') AS there,
            bool_or(consumer = 'postgres' AND outcome = 'shadowed') AS shadowed,
            bool_or(consumer = 'postgres' AND outcome = 'failed') AS failed_here,
            bool_or(consumer = 'other' AND outcome = 'failed') AS failed_there,
            count(DISTINCT NULLIF(digest, '')) AS digests
        FROM pgembed_taskoutcome
        WHERE ended_at >= statement_timestamp() - %(since)s * interval '1 second'
        GROUP BY key
    ) AS task
    CROSS JOIN LATERAL (
        SELECT 'missing in postgres'
        WHERE here = 0 AND NOT shadowed AND NOT failed_here
      UNION ALL
        SELECT 'missing in the other queue' WHERE there = 0 AND NOT failed_there
      UNION ALL
        SELECT 'doubled in postgres' WHERE here > 1
      UNION ALL
        SELECT 'doubled in the other queue' WHERE there > 1
      UNION ALL
        SELECT 'differing results' WHERE digests > 1
      UNION ALL
        SELECT 'failed in postgres only' WHERE failed_here AND here = 0 AND there > 0
      UNION ALL
        SELECT 'failed in the other queue only' WHERE failed_there AND there = 0 AND here > 0
    ) AS difference(what)
    WHERE enqueued_at < statement_timestamp() - %(settled)s * interval '1 second'
    GROUP BY key, what
    ORDER BY key, what
    LIMIT %(limit)s
"""


def compare(*, since: float, settled: float, limit: int, using: str) -> list[Difference]:
    """Return what the consumers do not agree on, of tasks enqueued in the last ``since`` seconds.

    Those of the last ``settled`` seconds are left out: they may still run.
    """
    given = {"since": since, "settled": settled, "limit": limit}
    return [Difference(*row) for row in database.rows(using, COMPARE, **given)]


def prune(*, kept_seconds: float, using: str) -> int:
    """Delete outcomes that are older than this."""
    before = Now() - timedelta(seconds=kept_seconds)
    return database.delete(TaskOutcome.objects.using(using).filter(ended_at__lt=before))
