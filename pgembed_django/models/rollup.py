"""Counts of completed and failed units by spec and time. Charts need them longer than jobs last."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from pgembed_django.models.fixtures import NotFromFixtures


class Rollup(NotFromFixtures):
    """One spec's sums over a minute, or over a quarter of an hour."""

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
