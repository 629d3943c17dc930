"""Assert that a row's embeddings are pending or fresh. A failure's message tells their state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import DEFAULT_DB_ALIAS
from django.db.models import Model, TextField
from django.db.models.functions import Cast

from pgembed_django import sources, spaces, specs, store
from pgembed_django.models import Job
from pgembed_django.specs import Spec
from pgembed_django.store import StoredChunk

AT_WORK = (Job.Status.PENDING, Job.Status.RUNNING)


def assert_embedding_pending(
    instance: Model, *, name: str | None = None, using: str | None = None
) -> None:
    """Assert that the row has a pending or running job, which will bring new vectors.

    ``name`` chooses one of several ``@embeddable`` of the model; all of them, unless given.

    Raises:
        AssertionError: there is none. The message says what there is instead.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name.
    """
    for unit in _look(instance, name, using):
        if not unit.is_pending:
            raise AssertionError(f"{unit}: no job is pending. {unit.told()}")


def assert_fresh(instance: Model, *, name: str | None = None, using: str | None = None) -> None:
    """Assert that the row's vectors are those of its present text in the database.

    ``name`` chooses one of several ``@embeddable`` of the model; all of them, unless given.

    Raises:
        AssertionError: its vectors are missing, or those of another text. The message says
            what there is instead.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name.
    """
    for unit in _look(instance, name, using):
        if not unit.is_fresh:
            raise AssertionError(f"{unit}: its vectors are not fresh. {unit.told()}")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A row in the view of one spec: its text, its chunks in the active space, its jobs."""

    spec: Spec
    source_pk: str
    using: str
    is_there: bool
    text: str | None
    error: str
    has_space: bool
    chunks: tuple[StoredChunk, ...]
    jobs: tuple[Job, ...]

    def __str__(self) -> str:
        return f"{self.spec.model.__name__} {self.source_pk} ({self.spec.key})"

    @property
    def is_pending(self) -> bool:
        return any(job.status in AT_WORK for job in self.jobs)

    @property
    def is_fresh(self) -> bool:
        return self._is_of_this_text and all(chunk.is_done for chunk in self.chunks)

    @property
    def _is_of_this_text(self) -> bool:
        if self.text is None or not self.chunks:
            return False
        digest = self.spec.text_digest(self.text)
        return all(chunk.text_digest == digest for chunk in self.chunks)

    def told(self) -> str:
        """Return a description of the row's state, with a remedy if one is known."""
        return " ".join((*self._row(), *self._stored(), *self._waiting()))

    def _row(self) -> Iterator[str]:
        if not self.is_there:
            yield f"There is no such row in the database {self.using!r}: was it saved there?"
        elif self.error:
            yield f"Its text cannot be made: {self.error}."
        elif self.text is None:
            yield f"The row is outside of the spec's condition, when={self.spec.when}."

    def _stored(self) -> Iterator[str]:
        count = f"{len(self.chunks)} chunk{'s' * (len(self.chunks) != 1)}"
        lacking = sum(not chunk.is_done for chunk in self.chunks)
        if not self.has_space:
            yield "There is no space yet: no worker has run here. Call run_jobs()."
        elif not self.chunks:
            yield "Nothing is stored of it."
        elif not self._is_of_this_text:
            yield f"Stored: {count} of another text than the row has now."
        elif lacking:
            yield f"Stored: {count} of the row's text, {lacking} without a vector."
        else:
            yield f"Stored: {count} of the row's text, with vectors."

    def _waiting(self) -> Iterator[str]:
        for job in self.jobs:
            error = f", last error: {job.last_error}" if job.last_error else ""
            yield f"A job is {job.status} (attempts: {job.attempts}{error})."
        if self.is_pending:
            yield "run_jobs() runs what is due and not backing off."
        elif not self.jobs:
            watched = ", ".join(self.spec.fields)
            yield (
                f"There is no job. One comes when a row is inserted or one of {watched} changes, "
                "unless the triggers are off."
            )


def _look(instance: Model, name: str | None, using: str | None) -> list[_Unit]:
    if not isinstance(instance, Model):
        raise TypeError(f"{instance!r} is not a row. Give an instance of an embeddable model.")
    alias = using or instance._state.db or DEFAULT_DB_ALIAS
    return [_unit(spec, instance, using=alias) for spec in specs.of(instance.__class__, name=name)]


def _unit(spec: Spec, instance: Model, *, using: str) -> _Unit:
    rows = spec.model._base_manager.using(using).filter(pk=instance.pk)
    # Jobs have the key as Postgres prints it.
    found = rows.annotate(pgembed_source_pk=Cast("pk", TextField())).order_by()
    source_pk = found.values_list("pgembed_source_pk", flat=True).first()
    unit = str(instance.pk) if source_pk is None else source_pk
    loaded = sources.load(spec, [] if source_pk is None else [unit], using=using)
    space = spaces.active(spec, using=using)
    stored = store.ask_stored(spec, [unit], [space.pk] if space else [], using=using)()
    jobs = Job.objects.using(using).filter(spec=spec.key, source_pk=unit, settled_at=None)
    return _Unit(
        spec=spec,
        source_pk=unit,
        using=using,
        is_there=source_pk is not None,
        text=loaded.texts.get(unit),
        error=loaded.errors.get(unit, ""),
        has_space=space is not None,
        chunks=tuple(chunk for chunks in stored.chunks.values() for chunk in chunks),
        jobs=tuple(jobs.exclude(status=Job.Status.SUCCEEDED).order_by("pk")),
    )
