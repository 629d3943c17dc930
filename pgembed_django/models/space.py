"""Vector spaces. Only vectors of the same space are comparable."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from pgvector.django import VectorField

from pgembed_django.models.fixtures import NotFromFixtures


class Space(NotFromFixtures):
    """One spec's backend, model, dimensions, prefixes and some options, as a fingerprint.

    It holds all that is needed to build its provider after the settings have changed. Of secrets
    it holds only the names of environment variables.
    """

    class State(models.TextChoices):
        BUILDING = "building", _("building")
        ACTIVE = "active", _("active")
        RETIRED = "retired", _("retired")

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    fingerprint = models.TextField()
    provider = models.TextField(help_text=_("The alias in PGEMBED_PROVIDERS it was declared by."))
    backend = models.TextField()
    model = models.TextField()
    model_digest = models.TextField(db_default="", blank=True)
    dimensions = models.IntegerField()
    document_prefix = models.TextField(db_default="", blank=True)
    query_prefix = models.TextField(db_default="", blank=True)
    options = models.JSONField(default=dict, blank=True)
    state = models.TextField(choices=State, db_default=State.BUILDING)
    created_at = models.DateTimeField(db_default=Now())
    is_partial = models.BooleanField(
        db_default=False, help_text=_("It was switched to before all rows had their vectors.")
    )
    activated_at = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)
    pruned_at = models.DateTimeField(null=True, blank=True)

    canary = models.BinaryField(
        null=True, help_text=_("Its model's vectors of a few fixed texts, to recognize it by.")
    )
    canary_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the model was last recognized.")
    )
    model_facts = models.TextField(
        db_default="", blank=True, help_text=_("What the server told about the model at first.")
    )
    exchanged = models.TextField(
        db_default="", blank=True, help_text=_("How it was seen that the model is another one now.")
    )
    exchanged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("space")
        verbose_name_plural = _("spaces")
        constraints = [
            models.UniqueConstraint(
                fields=["spec", "fingerprint"], name="pgembed_one_space_per_fingerprint"
            ),
            models.UniqueConstraint(
                fields=["spec"], condition=Q(state="active"), name="pgembed_one_active_space"
            ),
            models.UniqueConstraint(
                fields=["spec"], condition=Q(state="building"), name="pgembed_one_building_space"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["building", "active", "retired"]),
                name="pgembed_space_state_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.spec}: {self.model} ({self.dimensions})"


class StagedVector(NotFromFixtures):
    """A vector of a unit that is not complete yet. Completing the unit moves it to its table."""

    id = models.BigAutoField(primary_key=True)
    spec = models.TextField()
    source_pk = models.TextField()
    space = models.ForeignKey(Space, on_delete=models.CASCADE, db_constraint=False, db_index=False)
    chunk_digest = models.BinaryField()
    embedding = VectorField()
    was_cut = models.BooleanField(db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pgembed_staging"
        constraints = [
            models.UniqueConstraint(
                fields=["spec", "source_pk", "space", "chunk_digest"],
                name="pgembed_one_staged_vector_per_chunk",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.spec} {self.source_pk}"
