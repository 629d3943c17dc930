"""The table of tasks, a sibling of the job table, and what lies beside it.

As far as the queue is concerned, its columns are those of a job. What is a spec there is a queue
here, and a unit is what runs of a task collapse into. See ``models.job`` for its indexes.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Greatest, Now
from django.utils.translation import gettext_lazy as _

from pgembed_django.models.fixtures import NotFromFixtures
from pgembed_django.models.job import (
    DISMISSED,
    ENDED,
    OPEN_FAILURE,
    PENDING,
    READY,
    RUNNING,
    SUSPECT,
    Queued,
)

KNOWN_AS_DUE = Q(run_at__lte=Greatest("created_at", "found_due_at"))
"""Due when it was enqueued, or when a claim has last looked. An index cannot ask now()."""
CLAIMABLE = READY & Q(crashes=0, outages=0) & KNOWN_AS_DUE


class Task(Queued):
    """A call of a function that a worker is to make. It is deleted once it has succeeded."""

    queue = models.TextField(db_column="spec", db_default="default")
    unit = models.TextField(
        db_column="source_pk", help_text=_("The key that its runs collapse into, or else its id.")
    )
    function = models.TextField(db_column="kind", help_text=_("The function's dotted path."))
    arguments = models.JSONField(default=dict)
    tenant = models.TextField(db_default="", blank=True)
    serial = models.TextField(  # noqa: DJ001 - NULL takes no room, and is in no index
        null=True, blank=True, help_text=_("Tasks of a queue with this key run one at a time.")
    )
    once = models.TextField(  # noqa: DJ001 - as above
        null=True, blank=True, help_text=_("The key under which it is enqueued once only.")
    )
    is_coalesced = models.BooleanField(db_default=False)
    is_scheduled = models.BooleanField(
        db_default=False, help_text=_("It is a run of the function's schedule.")
    )
    batch_id = models.BigIntegerField(null=True, blank=True)
    cancel_asked_at = models.DateTimeField(null=True, blank=True)
    found_due_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When a worker found that its time has come.")
    )

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ["view"]
        permissions = [
            ("retry_task", "Can retry failed tasks, and run waiting ones now"),
            ("dismiss_task", "Can dismiss failed tasks"),
            ("cancel_task", "Can cancel tasks"),
            ("operate_task", "Can pause and resume queues, and release tasks"),
            ("view_task_arguments", "Can see the arguments of tasks"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "serial"],
                condition=RUNNING & Q(serial__isnull=False),
                name="pgembed_one_running_per_serial",
            ),
            models.UniqueConstraint(
                fields=["function"],
                condition=Q(is_scheduled=True, status__in=["pending", "running"]),
                name="pgembed_one_run_per_schedule",
            ),
        ]
        indexes = [
            # The claim takes turns among the tenants of a queue and priority.
            models.Index(
                F("queue"),
                F("priority").desc(),
                F("tenant"),
                F("run_at"),
                F("id"),
                condition=CLAIMABLE & Q(serial__isnull=True),
                name="pgembed_task_ready",
            ),
            # Of each key only the first one can run: the claim jumps over those behind it.
            models.Index(
                F("queue"),
                F("priority").desc(),
                F("tenant"),
                F("serial"),
                F("run_at"),
                F("id"),
                condition=CLAIMABLE & Q(serial__isnull=False),
                name="pgembed_task_serial",
            ),
            # Tasks for later are in no claim's way.
            models.Index(
                fields=["queue", "run_at"],
                condition=PENDING & Q(run_at__gt=Greatest("created_at", "found_due_at")),
                name="pgembed_task_later",
            ),
            models.Index(
                fields=["queue", "unit", "tenant"],
                condition=PENDING & Q(is_coalesced=True),
                name="pgembed_task_coalesced",
            ),
            models.Index(
                fields=["queue", "tenant"], condition=RUNNING, name="pgembed_task_running"
            ),
            models.Index(
                fields=["queue", "run_at"],
                condition=PENDING & SUSPECT,
                name="pgembed_task_suspect",
            ),
            models.Index(
                F("finished_at").desc(),
                F("id").desc(),
                condition=OPEN_FAILURE,
                name="pgembed_task_open_failure",
            ),
            models.Index(
                F("queue"),
                F("signature"),
                F("finished_at").desc(),
                F("id").desc(),
                condition=OPEN_FAILURE,
                name="pgembed_task_failure_kind",
            ),
            models.Index(fields=["finished_at"], condition=ENDED, name="pgembed_task_retention"),
            models.Index(fields=["run_at"], condition=DISMISSED, name="pgembed_task_dismissed"),
            models.Index(
                fields=["batch_id", "id"],
                condition=Q(batch_id__isnull=False, status__in=["pending", "running"]),
                name="pgembed_task_of_batch",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.function} {self.pk}"


class TaskKey(NotFromFixtures):
    """A key that a tenant has enqueued a task under. It outlives the task."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.TextField(db_default="")
    key = models.TextField()
    task_id = models.BigIntegerField()
    kept_for = models.DurationField(default=timedelta(days=7), help_text=_("After the end."))
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Set when the task has ended.")
    )

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["tenant", "key"], name="pgembed_one_task_per_key"),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False),
                name="pgembed_key_retention",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.key}"


class TaskBatch(NotFromFixtures):
    """Tasks that were enqueued together, and the one that follows when all of them have ended."""

    id = models.BigAutoField(primary_key=True)
    total = models.IntegerField()
    failed = models.IntegerField(db_default=0, help_text=_("Of those that have ended."))
    following = models.JSONField(
        null=True, blank=True, help_text=_("What is enqueued at the end, as for the SQL function.")
    )
    following_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["ended_at"],
                condition=Q(ended_at__isnull=False),
                name="pgembed_batch_retention",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class TaskRate(NotFromFixtures):
    """When a queue, or one tenant in it, may start the next task of those it may start a minute."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField()
    tenant = models.TextField(null=True)  # noqa: DJ001 - NULL is no tenant: the whole queue
    free_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "tenant"],
                nulls_distinct=False,
                name="pgembed_one_rate_per_tenant",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.tenant}"


class TaskRecord(NotFromFixtures):
    """A task that has succeeded, and whose result is kept. Partitioned by month of its end."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.TextField()
    function = models.TextField()
    arguments = models.JSONField()
    tenant = models.TextField()
    priority = models.SmallIntegerField()
    claims = models.IntegerField()
    worker = models.TextField()
    result = models.JSONField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        verbose_name = _("kept result")
        verbose_name_plural = _("kept results")
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.function} {self.pk}"


class TaskOutcome(NotFromFixtures):
    """What one consumer made of a task, while two of them run side by side."""

    id = models.BigAutoField(primary_key=True)
    key = models.TextField()
    consumer = models.TextField()
    function = models.TextField()
    outcome = models.TextField()
    digest = models.TextField(db_default="", help_text=_("SHA-256 of the result."))
    ended_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["key", "consumer"], name="pgembed_outcome_of_key"),
            models.Index(fields=["ended_at"], name="pgembed_outcome_retention"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer} {self.key}"
