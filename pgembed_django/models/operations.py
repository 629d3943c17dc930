"""What processes share apart from jobs: live workers, scan cursors, quotas, pauses."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from pgembed_django.models.fixtures import NotFromFixtures


class Worker(NotFromFixtures):
    """One live worker process. The row is deleted when it ends."""

    id = models.BigAutoField(primary_key=True)
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    specs = models.JSONField(default=list)
    holds = models.IntegerField(db_default=0, help_text=_("Units held when it last reported."))
    paused = models.JSONField(default=dict, help_text=_("Provider -> why it is paused."))
    paused_seconds = models.JSONField(
        default=dict, help_text=_("Provider -> seconds until it is tried again, as last seen.")
    )
    aside = models.JSONField(default=dict, help_text=_("Spec -> why it is set aside."))
    executors = models.JSONField(
        default=list, help_text=_("What its models in process are at, one object each.")
    )
    started_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class ScanCursor(NotFromFixtures):
    """How far a scan of the reconciler over a table has come, shared by all workers.

    Also how far a backfill has come: there is one cursor per ``selection`` of rows.
    """

    class Scan(models.TextChoices):
        MISSING = "missing", _("missing")
        ORPHANED = "orphaned", _("orphaned")
        STALE = "stale", _("stale")
        WORDS = "words", _("words")
        BACKFILL = "backfill", _("backfill")

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    scan = models.TextField(choices=Scan)
    cursor = models.TextField(null=True)  # noqa: DJ001 - NULL is "from the start", "" a key
    recipe = models.TextField(
        db_default="", help_text=_("What the scan under way compares the rows with.")
    )
    finished_recipe = models.TextField(
        db_default="", help_text=_("What all rows had been compared with when a scan last ended.")
    )
    selection = models.TextField(
        db_default="", help_text=_("Of a backfill: which rows it was asked for.")
    )
    passed = models.JSONField(
        default=list, help_text=_("Keys that it has to come back to: an open write had their rows.")
    )
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["spec", "scan"],
                condition=~models.Q(scan="backfill"),
                name="pgembed_one_cursor_per_scan",
            ),
            models.UniqueConstraint(
                fields=["spec", "selection"],
                condition=models.Q(scan="backfill"),
                name="pgembed_one_cursor_per_backfill",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.spec} {self.scan}"

    @staticmethod
    def begin(spec: str, scan: str, recipe: str, *, using: str) -> None:
        """Ensure that there is a cursor. A new one takes what is stored as made by this recipe."""
        cursors = ScanCursor.objects.using(using)
        if not cursors.filter(spec=spec, scan=scan).exists():
            made = ScanCursor(spec=spec, scan=scan, recipe=recipe, finished_recipe=recipe)
            cursors.bulk_create([made], ignore_conflicts=True)

    @staticmethod
    def put(state: dict[str, Any], *, using: str, **key: Any) -> None:
        """Insert or update a cursor. Sends no signals: a receiver's error must not end a scan."""
        cursors = ScanCursor.objects.using(using)
        if not cursors.filter(**key).update(**state):
            cursors.bulk_create([ScanCursor(**key, **state)], ignore_conflicts=True)


class Quota(NotFromFixtures):
    """When a provider may be asked again, by any worker."""

    provider = models.TextField(primary_key=True, help_text=_("The alias in PGEMBED_PROVIDERS."))
    requests_free_at = models.DateTimeField(db_default=Now())
    tokens_free_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.provider


class Pause(NotFromFixtures):
    """A spec or provider that a person has paused. Workers leave it alone until it is resumed.

    A provider that is down has no row here: each worker pauses it for itself.
    """

    class What(models.TextChoices):
        SPEC = "spec", _("spec")
        PROVIDER = "provider", _("provider")

    id = models.BigAutoField(primary_key=True)
    what = models.TextField(choices=What)
    name = models.TextField(help_text=_("The spec's key, or the provider's alias."))
    by = models.TextField(db_default="", help_text=_("Who paused it."))
    paused_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["what", "name"], name="pgembed_one_pause_each"),
            models.CheckConstraint(
                condition=models.Q(what__in=["spec", "provider"]), name="pgembed_pause_what_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


class ReplicationSlot(NotFromFixtures):
    """How far the write-ahead log was read, from which changes of some specs come.

    One worker reads at a time. It writes in the same transaction as the jobs, so that a change is
    known to be enqueued when it was.
    """

    name = models.TextField(primary_key=True)
    holder = models.TextField(db_default="", help_text=_("Which worker reads. A fencing token."))
    position = models.BigIntegerField(
        null=True, help_text=_("All that was committed before this position is enqueued.")
    )
    specs = models.JSONField(
        default=dict, help_text=_("Spec -> how it is published, or null if there are gaps.")
    )
    read_at = models.DateTimeField(
        db_default=Now(), help_text=_("All that was committed before this time is enqueued.")
    )
    problem = models.TextField(db_default="", help_text=_("Why a worker could not read."))

    def __str__(self) -> str:
        return self.name
