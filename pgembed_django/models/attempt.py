"""Attempts that ended in an error: a unit's history, for people who triage failures."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from pgembed_django.core.moments import seconds_between
from pgembed_django.models.fixtures import NotFromFixtures


class Attempt(NotFromFixtures):
    """One claim of a unit that ended in an error. Kept for a while, also after a success."""

    class Outcome(models.TextChoices):
        RETRIED = "retried", _("to be tried again")
        FAILED = "failed", _("failed")
        CRASHED = "crashed", _("worker lost")
        OUTAGE = "outage", _("provider went down")

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    source_pk = models.TextField()
    outcome = models.TextField(choices=Outcome)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(db_default=Now())
    # Host and process id as text, because a worker's row is deleted when it ends.
    worker = models.TextField()
    error = models.TextField()

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ()
        indexes = [
            models.Index(fields=["spec", "source_pk", "id"], name="pgembed_attempt_of_unit"),
            models.Index(fields=["ended_at"], name="pgembed_attempt_retention"),
        ]

    def __str__(self) -> str:
        return f"{self.spec} {self.source_pk}"

    @property
    def seconds(self) -> float:
        """How long the attempt took."""
        return seconds_between(self.started_at, self.ended_at)
