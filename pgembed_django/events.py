"""Events: each is logged, and sent as a signal.

An event has a stable name, a constant text, and values to fill in. Metrics and traces are
receivers of ``happened``. Without receivers, an event costs only a check of the log level.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING

from django.dispatch import Signal

logger = logging.getLogger("pgembed_django")

happened = Signal(use_caching=True)
"""Sent with the event as ``sender``, its ``fields``, and ``about``: objects that are not logged.

Receivers run in the worker's threads, so they must be quick. Their errors are logged, not raised.
"""

ALL: dict[str, Event] = {}


@dataclass(frozen=True, eq=False)
class Event:
    """A kind of event. Its text is a %-format string with the names of its fields."""

    name: str
    level: int
    text: str
    means: str = ""
    """What an operator should know. Events that have it are public, the others may change."""


def tell(
    event: Event, /, *, about: object = None, is_logged: bool = True, **fields: str | float | None
) -> None:
    """Log an event, with its values in the text and as fields, and send the signal.

    Never pass source texts, vectors, headers or keys. ``is_logged``: False if the log has it.
    """
    if is_logged and logger.isEnabledFor(event.level):
        values = ({name: _shown(value) for name, value in fields.items()},) if fields else ()
        extra = {"event": event.name, **fields}
        logger.log(event.level, event.text, *values, extra=extra, stacklevel=2)
    happened.send_robust(event, about=about, fields=fields)


def in_a_line(said: str) -> str:
    """Return a text as one line, without what a terminal would take for commands."""
    if said.isprintable():
        return said
    return " ".join("".join(one if one.isprintable() else " " for one in said).split())


def _shown(value: str | float | None) -> str | float | None:
    """Return a value for the log, where several lines would look like several events.

    The field itself keeps the original value.
    """
    return in_a_line(value) if isinstance(value, str) else value


class LogOnce:
    """Logs a lasting problem once, not each time it recurs: the problems, with their reasons."""

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}

    def is_new(self, what: Hashable, reason: str) -> bool:
        """Note why something fails. Return whether this reason is new, and so should be logged."""
        before = self._reasons.get(what)
        self._reasons[what] = reason
        return reason != before

    def clear(self, what: Hashable) -> None:
        """Note that something works again: its next failure is new."""
        self._reasons.pop(what, None)


def _event(name: str, level: int, text: str, means: str = "") -> Event:
    event = Event(f"pgembed.{name}", level, text, means)
    ALL[event.name] = event
    return event


# The worker

WORKER_STARTED = _event("worker_started", INFO, "Worker %(worker)s works on %(specs)s")
WORKER_PROGRESS = _event(
    "worker_progress",
    INFO,
    "Completed %(jobs)d jobs in the last %(seconds).0f s, holds %(holds)d",
)
WORKER_STOPPING = _event("worker_stopping", INFO, "Stopping: finishing what is in flight")
WORKER_RECYCLED = _event("worker_recycled", INFO, "Stopping, to be restarted: %(reason)s")
WORKER_ENDED = _event("worker_ended", INFO, "Worker %(worker)s has ended after %(jobs)d jobs")
WORKER_STUCK = _event(
    "worker_stuck",
    ERROR,
    "The worker's loop has been stuck for %(seconds).0f s in %(where)s",
    means="The worker's loop has not moved for PGEMBED_STUCK_SECONDS. `where` is the line of code.",
)
WORKER_GAVE_UP = _event(
    "worker_gave_up",
    ERROR,
    "Gave up after %(seconds).0f s in %(where)s, for %(spec)s %(source_pk)s",
    means="A stuck worker gave its jobs back and ends. Names the row whose code it ran, if any.",
)
WORKER_MOVED = _event("worker_moved", WARNING, "The worker's loop moves again")
HEARTBEAT_FILE_LOST = _event(
    "heartbeat_file_lost", ERROR, "Cannot touch the heartbeat file %(path)s: %(error)s"
)
PAGE_FAILED = _event("page_failed", WARNING, "A request to the worker's port failed: %(error)s")
MODEL_NOT_LOADED = _event("model_not_loaded", WARNING, "Cannot load %(space)s yet: %(error)s")
DATABASE_LOST = _event(
    "database_lost",
    WARNING,
    "Lost the database, trying again in %(seconds).1f s: %(error)s",
    means="The database cannot be reached. It is tried again after `seconds`.",
)
DATABASE_REFUSES = _event(
    "database_refuses",
    WARNING,
    "The database cannot work at present, trying again in %(seconds).1f s: %(error)s",
)
DATABASE_BACK = _event(
    "database_back",
    INFO,
    "The database is back",
    means="The database can be reached again, or works again.",
)
STORING_ALONE = _event(
    "storing_alone",
    WARNING,
    "The storing thread's connection is lost or cannot be opened, the main one stores for now: "
    "%(error)s",
)
STATEMENT_CANCELED = _event(
    "statement_canceled", WARNING, "A statement was canceled, trying again soon: %(error)s"
)
CHORE_CANCELED = _event(
    "chore_canceled", WARNING, "Maintenance (%(chore)s) was given up, trying again later: %(error)s"
)
CHORE_CUT_OFF = _event(
    "chore_cut_off",
    WARNING,
    "Maintenance (%(chore)s) lost the database, trying again in %(seconds).1f s: %(error)s",
)
CHORE_REFUSED = _event(
    "chore_refused",
    ERROR,
    "Maintenance (%(chore)s) of %(spec)s failed, trying again later: %(error)s",
)

# Its listener

LISTENER_UP = _event("listener_up", DEBUG, "Listening for notifications")
LISTENER_DEAF = _event(
    "listener_deaf",
    WARNING,
    "Notifications do not arrive, polling instead: is there a pooler?",
    means="Notifications do not arrive, so the worker polls. A pooler swallows them.",
)
LISTENER_FAILED = _event(
    "listener_failed", WARNING, "Cannot listen for notifications, polling instead: %(error)s"
)
LISTENER_LOST = _event("listener_lost", WARNING, "Lost the connection that listens: %(error)s")

# Jobs

JOBS_CLAIMED = _event("jobs_claimed", DEBUG, "Claimed %(count)d jobs in %(milliseconds).0f ms")
JOBS_COMPLETED = _event(
    "jobs_completed",
    DEBUG,
    "Stored %(embedded)d new chunks of %(count)d rows in %(milliseconds).0f ms, reused %(reused)d",
)
TASKS_COMPLETED = _event("tasks_completed", DEBUG, "Completed %(count)d tasks")
JOB_RETRIED = _event(
    "job_retried",
    INFO,
    "%(spec)s %(source_pk)s is tried again (attempt %(attempts)d): %(signature)s",
)
JOB_FAILED = _event(
    "job_failed",
    WARNING,
    "%(spec)s %(source_pk)s has failed: %(signature)s",
    means="A job has failed for good: an open failure.",
)
JOB_RELEASED = _event("job_released", DEBUG, "Gave %(spec)s %(source_pk)s back: %(result)s")
LEASES_LOST = _event("leases_lost", INFO, "Lost the leases of %(count)d jobs")
LEASE_EXPIRED = _event(
    "lease_expired",
    WARNING,
    "The lease of %(spec)s %(source_pk)s ran out (crash %(crashes)d): %(result)s",
    means="A worker was lost with the job, which is pending again (`requeued`) or has failed.",
)
JOBS_WITHOUT_SPEC = _event(
    "jobs_without_spec", WARNING, "Failed %(count)d jobs of specs that no longer exist"
)
GAPS_FOUND = _event(
    "gaps_found",
    INFO,
    "Found %(count)d gaps of %(spec)s",
    means="The reconciler has queued rows with missing, stale or orphaned vectors.",
)

# Tasks

TASK_FAILED_LATE = _event(
    "task_failed_late", ERROR, "%(function)s %(job_id)d had completed, and then failed: %(error)s"
)
TASK_TIMED_OUT = _event(
    "task_timed_out", WARNING, "%(function)s %(job_id)d did not end within %(seconds)g s"
)
CHILD_DIED = _event("child_died", ERROR, "The child process %(pid)d died: %(error)s")

# Providers

BATCH_EMBEDDED = _event(
    "batch_embedded",
    DEBUG,
    "Embedded %(chunks)d chunks of %(rows)d rows in %(milliseconds).0f ms with %(model)s",
)
BATCH_FAILED = _event(
    "batch_failed",
    INFO,
    "%(refused)d of %(chunks)d chunks of %(rows)d rows were not embedded with %(model)s",
)
TEXTS_CUT = _event(
    "texts_cut",
    WARNING,
    "%(rows)d rows have chunks that did not fit %(model)s as a whole (was_cut), "
    "for example %(spec)s %(source_pk)s",
)
PROVIDER_PAUSED = _event(
    "provider_paused",
    WARNING,
    "Provider %(provider)s is paused for %(seconds).1f s: %(error)s",
    means="A provider is out of reach. Nothing is sent to it for `seconds`.",
)
PROVIDER_BACK = _event(
    "provider_back",
    INFO,
    "Provider %(provider)s answers again",
    means="A provider answers again.",
)
DIGEST_UNKNOWN = _event(
    "digest_unknown", WARNING, "Cannot read the digest of %(provider)s's model: %(error)s"
)

# Spaces

SPACE_OPENED_ELSEWHERE = _event(
    "space_opened_elsewhere", DEBUG, "Another worker opened the space of %(spec)s first"
)
SPACE_NOT_REOPENED = _event(
    "space_not_reopened",
    WARNING,
    "The settings of %(spec)s declare %(space)s, which is retired: another model is searched, or "
    "is being built to be. To use this one: manage.py %(way)s",
)
SPACE_ACTIVATED = _event(
    "space_activated",
    INFO,
    "Searches now use %(space)s",
    means="Searches use a new space from now on.",
)
SPACE_HELD_UP = _event(
    "space_held_up",
    WARNING,
    "Too many failed rows are missing in %(space)s to search it: %(count)d. Mend and retry them, "
    "dismiss them, or run manage.py embed_spaces activate %(number)s",
    means="More than 1 % of the rows failed in the new space, so the old one is still searched.",
)
MODEL_EXCHANGED = _event(
    "model_exchanged",
    ERROR,
    "Nothing is embedded in %(space)s of %(spec)s: %(error)s",
    means="The server has another model than the one that made the space.",
)
MODEL_BACK = _event("model_back", INFO, "The model of %(space)s of %(spec)s is back")
SPACE_PRUNED = _event("space_pruned", INFO, "Pruned %(space)s")
TRIGGERS_AMISS = _event(
    "triggers_amiss",
    WARNING,
    "Triggers of %(spec)s are %(states)s, so writes may be missed: run manage.py check "
    "--database %(database)s",
    means="A spec's triggers are missing, outdated or disabled, so writes may be missed.",
)
TRIGGERS_RENEWED = _event(
    "triggers_renewed",
    WARNING,
    "A column of %(spec)s has taken another's name, and is watched from now on. To embed what its "
    "rows hold already, run manage.py embed_reconcile --deep",
)
NUMBERS_CAUGHT_UP = _event(
    "numbers_caught_up",
    WARNING,
    "The sequences of %(tables)s were behind the ids of their rows, and now continue after them",
)
SPEC_SET_ASIDE = _event(
    "spec_set_aside",
    ERROR,
    "%(spec)s is set aside, because its tables are not as this code declares them: %(error)s",
    means="A spec's tables are not as this code declares them. The others are worked on.",
)
SPEC_TAKEN_UP = _event("spec_taken_up", INFO, "%(spec)s is worked on again")
SPEC_RENAMED = _event(
    "spec_renamed", INFO, "%(spec)s is the new name of %(former)s, and keeps its vectors and jobs"
)
INDEX_STARTED = _event("index_started", INFO, "Building the index %(index)s")
INDEX_BUILT = _event("index_built", INFO, "Built the index %(index)s in %(seconds).0f s")
INDEX_POSTPONED = _event(
    "index_postponed",
    WARNING,
    "Building or dropping an index is postponed, something is in its way: %(error)s",
)
INDEX_REFUSED = _event(
    "index_refused",
    WARNING,
    "This role may not build or drop the index %(index)s: %(error)s. Let the worker's role own the "
    "table, or run embed_worker --drain as the role that does",
    means="The worker's role does not own the table: searches go on without the index.",
)

# The write-ahead log

CAPTURE_STARTED = _event(
    "capture_started", INFO, "Reading changes from the write-ahead log, by the slot %(slot)s"
)
CAPTURE_REFUSED = _event(
    "capture_refused",
    ERROR,
    "Changes cannot be read from the write-ahead log of %(database)s, trying again: %(error)s",
    means='Rows with capture="wal" or "message" are not embedded meanwhile. Nothing is lost.',
)
SLOT_MADE = _event(
    "slot_made",
    WARNING,
    "Made the replication slot %(slot)s",
    means="There was none, or it was lost. All rows of the specs that need it are compared.",
)
CAPTURE_LOST = _event(
    "capture_lost",
    WARNING,
    "The changes of %(spec)s are no longer published as they were: all rows will be compared",
)
COMPARING_ALL = _event(
    "comparing_all", INFO, "All rows of %(spec)s are compared, as changes may have been missed"
)
MESSAGE_IGNORED = _event(
    "message_ignored",
    WARNING,
    "A message in the write-ahead log was ignored, as no trigger of ours writes such: %(text)s",
)

# Search

QUERY_NOT_EMBEDDED = _event(
    "query_not_embedded",
    WARNING,
    "A query was not embedded by %(model)s: %(error)s",
    means="Searches are answered by words alone. Logged every few seconds while that lasts.",
)
NOT_RERANKED = _event(
    "not_reranked",
    WARNING,
    "Passages were not scored by the reranker %(reranker)s: %(error)s",
    means="Searches keep the order of the fusion. Logged every few seconds while that lasts.",
)
