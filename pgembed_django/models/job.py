"""The job table: which units to embed, which worker holds each, and how often it failed.

Each partial index enforces one rule or serves one query. No index has the lease's time, and pages
are left half empty, so that a heartbeat is a HOT update.
"""

from __future__ import annotations

import enum

from django.contrib.postgres.fields import ArrayField
from django.db import connections, models, router
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from pgembed_django import conf
from pgembed_django.core import postgres
from pgembed_django.models.fixtures import NotFromFixtures

PENDING = Q(status="pending")
READY = PENDING & Q(id__gt=0)
"""Pending jobs, by the condition of the index of lanes. ``id > 0`` is always true.

Only queries that walk a lane have ``id > 0``. A query for one unit's pending job leaves it out.
Else Postgres might choose this index when it believes the queue to be nearly empty, and read a
whole lane for one unit.
"""
RUNNING = Q(status="running")
OPEN_FAILURE = Q(status="failed", settled_at__isnull=True)
DISMISSED = Q(status="dismissed", settled_at__isnull=True)
UNSETTLED = Q(status__in=["failed", "dismissed"], settled_at__isnull=True)
"""Open and dismissed failures. The reconciler leaves their units alone while they are parked."""
ENDED = Q(status="succeeded") | Q(settled_at__isnull=False)
SUSPECT = Q(crashes__gt=0) | Q(outages__gt=0)
"""Jobs with which a worker died or a provider went down. They are claimed alone."""


class Ending(enum.StrEnum):
    """What became of a running job that has not succeeded."""

    REQUEUED = enum.auto()
    """It is pending again."""
    FAILED = enum.auto()
    """It is an open failure."""
    SUPERSEDED = enum.auto()
    """A newer job of its unit was pending, and goes on in its place."""
    CANCELED = enum.auto()
    """A person asked for its end, and it is gone."""
    LOST = enum.auto()
    """Not done: another worker holds it, it is gone, or its lease was renewed just before."""
    BUSY = enum.auto()
    """Not done yet: an open transaction has locked it or its unit's pending job. Try again."""


class Queued(NotFromFixtures):
    """A row that workers claim: what the queue reads and writes of it, whatever its kind."""

    class Status(models.TextChoices):
        PENDING = "pending", _("pending")
        RUNNING = "running", _("running")
        SUCCEEDED = "succeeded", _("succeeded")
        FAILED = "failed", _("failed")
        DISMISSED = "dismissed", _("dismissed")

    id = models.BigAutoField(primary_key=True)
    status = models.TextField(choices=Status, db_default=Status.PENDING)
    priority = models.SmallIntegerField(db_default=0)
    is_awaited = models.BooleanField(
        db_default=True,
        help_text=_("Somebody waits for it: nothing but a schedule or a repair has asked for it."),
    )
    claims = models.IntegerField(
        db_default=0, help_text=_("How often it was started. The fencing token of the claim.")
    )
    attempts = models.SmallIntegerField(db_default=0, help_text=_("Failures that count."))
    crashes = models.SmallIntegerField(db_default=0, help_text=_("Leases that ran out."))
    outages = models.SmallIntegerField(
        db_default=0, help_text=_("How often its provider went down while it ran.")
    )
    parkings = models.SmallIntegerField(
        db_default=0, help_text=_("How often its unit has failed for good before.")
    )
    items_done = models.IntegerField(
        db_default=0, help_text=_("How many of its parts are done. Of a text: its chunks.")
    )
    items_total = models.IntegerField(db_default=0, help_text=_("How many parts it has."))
    last_error = models.TextField(db_default="", blank=True)
    signature = models.TextField(
        db_default="",
        blank=True,
        help_text=_("Of a failure: what errors of its kind have in common."),
    )
    run_at = models.DateTimeField(
        db_default=Now(), help_text=_("Not before this time. Of a failure: parked until.")
    )
    # No foreign key, so that worker rows can be added and deleted without locking any job.
    worker_id = models.BigIntegerField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    traceparent = models.TextField(  # noqa: DJ001 - NULL takes no room in the row
        null=True, blank=True, help_text=_("The trace that it was enqueued in (W3C).")
    )

    class Meta:
        abstract = True


class Job(Queued):
    """A job to embed one unit, ``(spec, source_pk)``. It is kept for a while after it has ended.

    While one is pending or runs that somebody waits for, its row is stale.
    """

    class Kind(models.TextChoices):
        WRITE = "write", _("write")
        RIPPLE = "ripple", _("related change")
        RECONCILER = "reconciler", _("reconciler")
        BACKFILL = "backfill", _("backfill")
        MANUAL_RETRY = "manual_retry", _("manual retry")

        @property
        def is_awaited(self) -> bool:
            """Whether somebody waits for such jobs."""
            return self in CHANGES

        def priority(self, of_spec: int) -> int:
            """Return the priority of such jobs, given that of their spec (-100 to 100)."""
            return of_spec + LANES[self]

    spec = models.TextField()
    source_pk = models.TextField()
    kind = models.TextField(choices=Kind, db_default=Kind.WRITE)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        # Jobs are never edited by hand. People can view them, and settle failures.
        default_permissions = ["view"]
        permissions = [
            ("retry_job", "Can retry failed jobs"),
            ("dismiss_job", "Can dismiss failed jobs"),
            ("operate_job", "Can re-embed, pause, resume, release and probe"),
        ]
        # sql/job_is_possible_v1.sql constrains the columns of a single job.
        constraints = [
            models.UniqueConstraint(
                fields=["spec", "source_pk"],
                condition=PENDING,
                name="pgembed_one_pending_per_unit",
            ),
            models.UniqueConstraint(
                fields=["spec", "source_pk"],
                condition=RUNNING,
                name="pgembed_one_running_per_unit",
            ),
            models.UniqueConstraint(
                fields=["spec", "source_pk"],
                condition=UNSETTLED,
                name="pgembed_one_open_failure_per_unit",
            ),
        ]
        indexes = [
            # The claim walks one lane, a spec's jobs of one priority, in the order of run_at.
            models.Index(
                F("spec"),
                F("priority").desc(),
                F("run_at"),
                F("id"),
                condition=READY,
                name="pgembed_job_ready",
            ),
            models.Index(
                fields=["spec", "run_at"],
                condition=PENDING & SUSPECT,
                name="pgembed_job_suspect",
            ),
            models.Index(
                F("finished_at").desc(),
                F("id").desc(),
                condition=OPEN_FAILURE,
                name="pgembed_job_open_failure",
            ),
            # A query for kinds of failures jumps from one signature to the next.
            models.Index(
                F("spec"),
                F("signature"),
                F("finished_at").desc(),
                F("id").desc(),
                condition=OPEN_FAILURE,
                name="pgembed_job_failure_kind",
            ),
            models.Index(
                fields=["finished_at"],
                condition=ENDED,
                name="pgembed_job_retention",
            ),
            models.Index(
                fields=["run_at"],
                condition=DISMISSED,
                name="pgembed_job_dismissed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.spec} {self.source_pk}"


CHANGES = (Job.Kind.WRITE, Job.Kind.RIPPLE, Job.Kind.MANUAL_RETRY)
"""The kinds of jobs that somebody waits for: until one has succeeded, its row is stale."""

LANES = {
    Job.Kind.WRITE: 0,
    Job.Kind.MANUAL_RETRY: 0,
    Job.Kind.RIPPLE: -500,
    Job.Kind.RECONCILER: -1000,
    Job.Kind.BACKFILL: -2000,
}
"""What a kind adds to its spec's priority: writes and requests of people come first."""


class Ripple(NotFromFixtures):
    """A change of rows of another table that texts of a spec are made of, yet to be expanded.

    It is of the units that the lookup ``path`` finds with ``key``; of all if ``path`` is empty.
    ``enqueue`` leaves some whose path is ``pk``.
    Triggers only insert here, and no index is unique but that of the ids: writers never wait.
    """

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    path = models.TextField()
    key = models.TextField()
    cursor = models.TextField(  # noqa: DJ001 - NULL is "from the start", "" a key
        null=True, help_text=_("The key of the last unit that it was expanded to.")
    )
    units = models.BigIntegerField(
        db_default=0, help_text=_("How many units it was expanded to so far.")
    )
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.spec} {self.path}={self.key}"


class Rollup(NotFromFixtures):
    """One spec's sums over a minute, or over a quarter of an hour.

    Charts need them for longer than jobs are kept.
    """

    class Width(models.IntegerChoices):
        MINUTE = 60, _("minute")
        QUARTER = 900, _("quarter of an hour")

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    seconds = models.SmallIntegerField(choices=Width)
    starts_at = models.DateTimeField()
    completed = models.IntegerField(db_default=0, help_text=_("Units."))
    failed = models.IntegerField(db_default=0, help_text=_("Units that will not be tried again."))
    waits = ArrayField(
        models.IntegerField(),
        default=list,
        help_text=_("Writes by the time until their vectors, in the bounds of rollups.BOUNDS."),
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["seconds", "spec", "starts_at"], name="pgembed_one_rollup_per_time"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.spec} {self.starts_at:%Y-%m-%d %H:%M}"


def shown_database() -> str:
    """Return the database that our admin pages and metrics show.

    The one to which routers send writes to our tables, or else, if that is not PostgreSQL, the
    one that workers use.
    """
    alias = router.db_for_write(Job)
    if connections[alias].vendor == "postgresql":
        return alias
    return conf.current().worker_database or postgres.any_postgres().alias
