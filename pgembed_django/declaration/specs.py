"""The registry of specs: what each ``@embeddable`` declared. Reads rows, writes nothing.

Without a text method, a text is the values of ``fields``, then those of each lookup of ``related``
in turn. The rows of a to-many relation come in the order of their keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import DatabaseError, router
from django.db.models import Field, Manager, Model, Prefetch, Q, QuerySet
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import post_init

from pgembed_django import conf
from pgembed_django.chunking import Chunker
from pgembed_django.core import database, faults, languages, postgres
from pgembed_django.core import text as texts
from pgembed_django.declaration import relations
from pgembed_django.declaration.relations import Relations
from pgembed_django.exceptions import did_you_mean

Stale = Literal["serve", "hide"]
StoreText = bool | Literal["nothing"]
TriggerLevel = Literal["row", "statement"]
Capture = Literal["trigger", "message", "wal"]

# With a schema per tenant, search_path may also find a table in the shared schema, which does not
# belong to this tenant.
IS_HERE = """
    SELECT name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    JOIN pg_class AS found ON found.oid = to_regclass(name)
    WHERE strpos(name, '.') > 0
       OR found.relnamespace = (
            SELECT relnamespace
            FROM pg_class
            WHERE oid = to_regclass('pgembed_job')
       )
"""
HAS_TABLE = """
    SELECT name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    WHERE to_regclass(name) IS NOT NULL
"""

RELATED = "pgembed_related"
"""The attribute of an instance with the values of ``related`` that were read for it."""

_registry: dict[str, Spec] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Declaration:
    """The keywords of one ``@embeddable``, as given."""

    fields: Sequence[str]
    related: Sequence[str] = ()
    text: str | None = None
    prefetch: Sequence[str | Prefetch[Any]] = ()
    when: Q | None = None
    provider: str = "default"
    chunker: Chunker | None = None
    priority: int = 0
    name: str | None = None
    stale: Stale = "serve"
    store_text: StoreText = True
    trigger_level: TriggerLevel = "row"
    language: str | None = None
    capture: Capture = "trigger"


@dataclass(frozen=True, kw_only=True, eq=False)
class Spec(Declaration):
    """One declaration on one model. Jobs store its ``key``: ``<app_label>.<name>``."""

    key: str
    model: type[Model]
    embedding_model: type[Model]
    fields: tuple[str, ...]
    related: tuple[str, ...]
    chunker: Chunker
    name: str
    """The name of the generated model. It distinguishes several declarations on one model."""
    is_from_outside: bool = False
    """Whether the model was decorated in another module than its own."""

    def __str__(self) -> str:
        return self.key

    @cached_property
    def recipe(self) -> str:
        """How a row becomes chunks. Does not have the model's name, so that it may be renamed."""
        source = f"method {self.text}" if self.text else f"fields {', '.join(self.fields)}"
        related = f"; related {', '.join(self.related)}" if self.related else ""
        return f"{source}{related}; {self.chunker.recipe}"

    @cached_property
    def relations(self) -> Relations:
        """How its texts span tables. All models must be loaded."""
        return relations.resolve(
            self.model, fields=self.watched, related=self.related, when=self.when, text=self.text
        )

    @cached_property
    def watched(self) -> tuple[str, ...]:
        """The columns whose change adds a job: those of the text, and that of the language."""
        language = [self.language_column] if self.language_column else []
        return tuple(dict.fromkeys((*self.fields, *language)))

    @cached_property
    def language_column(self) -> str | None:
        """The column that holds the language of each row. None: all are of the same."""
        is_column = self.language and relations.column(self.model, self.language)
        return self.language if is_column else None

    @property
    def configuration(self) -> str:
        """The full-text configuration of all rows, or of those that name no language."""
        if self.language and not self.language_column:
            return languages.configuration(self.language)
        return conf.current().text_search_config

    @property
    def words_recipe(self) -> str:
        """How the words of its texts are made. Empty: they are not stored."""
        if not self.stores_words:
            return ""
        of_rows = f"column {self.language_column}; " if self.language_column else ""
        return f"{of_rows}{self.configuration}"

    @cached_property
    def when_spans_tables(self) -> bool:
        """Whether the condition names a column of a parent's table.

        Then triggers do not test it. Workers remove the vectors of rows that no longer match, and
        until then searches leave these out, because they apply it before they rank.
        """
        return relations.spans(self.model, self.when)

    @property
    def is_read_from_log(self) -> bool:
        """Whether changes of its rows come from the write-ahead log, and not from its triggers.

        So a row may be gone before its vectors are: searches look for the row itself.
        """
        return self.capture != "trigger"

    @property
    def tested(self) -> Q | None:
        """The condition that the triggers on its own table test."""
        return None if self.when_spans_tables else self.when

    @cached_property
    def stores_words(self) -> bool:
        """Whether full-text search finds its rows."""
        return self.store_text != "nothing"

    @cached_property
    def reads_whole_rows(self) -> bool:
        """Whether to load all columns, because the text method or the model's code may read any.

        A model that copies its fields in ``__init__`` would load each deferred field with a query.
        So would a field whose descriptor reads other columns, such as an amount with a currency.
        """
        made = Model.__init__, Model.from_db.__func__  # type: ignore[attr-defined]
        of_model: Any = self.model
        columns = [of_model._meta.get_field(name).attname for name in self.fields]
        ways = [type(inspect.getattr_static(of_model, column)) for column in columns]
        return (
            self.text is not None
            or (of_model.__init__, of_model.from_db.__func__) != made
            or post_init.has_listeners(self.model)
            or any(getattr(way, "__get__", None) is not DeferredAttribute.__get__ for way in ways)
        )

    @cached_property
    def needs_instances(self) -> bool:
        """Whether a text is made from an instance. Otherwise the values of its fields are enough.

        An instance takes longer to make than its text.
        """
        of_model: Any = self.model
        fields: list[Any] = [of_model._meta.get_field(name) for name in self.fields]
        return (
            self.reads_whole_rows
            # A custom base manager may join, prefetch, or make other instances.
            or type(of_model._base_manager) is not Manager
            or of_model.__setattr__ is not Model.__setattr__
            or of_model.__getattribute__ is not Model.__getattribute__
            or any(type(one).value_from_object is not Field.value_from_object for one in fields)
            or any(hasattr(one, "get_searchable_content") for one in fields)
        )

    def text_digest(self, text: str) -> bytes:
        """Return the SHA-256 of recipe and text. A row is stale if its stored one differs."""
        return texts.digest(self.recipe, text)

    def rows(self, *, using: str | None = None) -> QuerySet[Any]:
        """Return the rows to embed, including those that the default manager hides.

        They are unordered, because the model's default order may join other tables.
        """
        rows = self.all_rows(using=using)
        if self.when:
            rows = rows.filter(self.when)
        if self.text:
            # It may read any column, and whatever the base manager joins. Django takes a Prefetch
            # with a queryset only before the same lookup without one.
            return rows.prefetch_related(*self.prefetch, *self.relations.prefetched)
        rows = rows.select_related(None).prefetch_related(None)
        return rows if self.reads_whole_rows else rows.only("pk", *self.fields)

    def all_rows(self, *, using: str | None = None) -> QuerySet[Any]:
        """Return all rows that the base manager finds, unordered.

        Raises:
            ManagerFailed: a project's own manager raised something.
        """
        try:
            return self.model._base_manager.using(using).order_by()
        except DatabaseError:
            raise
        except BaseException as error:
            if faults.is_interruption(error):
                raise
            what = f"The base manager of {self.model.__name__} raised {faults.described(error)}"
            raise faults.ManagerFailed(what) from None

    def text_of(self, instance: Model) -> str:
        """Return the row's text, cleaned. Empty: there is nothing to embed.

        Raises:
            TypeError: the text method returned neither a string nor None.
        """
        if self.text:
            method: Callable[[], object] = getattr(instance, self.text)
            written = method()
            if written is not None and not isinstance(written, str):
                raise TypeError(
                    f"{type(instance).__name__}.{self.text}() returned {type(written).__name__}. "
                    "Return a string, or None for nothing to embed."
                )
            return texts.clean(written or "")
        fields: list[Any] = [instance._meta.get_field(name) for name in self.fields]
        values = [texts.of_markup(one, one.value_from_object(instance)) for one in fields]
        if self.related:
            if (of_row := vars(instance).get(RELATED)) is None:
                found = relations.read(self, [instance.pk], using=instance._state.db)
                of_row = next(iter(found.values()), [])
            values += of_row
        return self.text_of_values(values)

    def text_of_values(self, values: Iterable[object]) -> str:
        """Return the text of a row, cleaned, given the values of ``fields`` and ``related``."""
        parts = [texts.clean(texts.of(value)) for value in values]
        return "\n\n".join([part for part in parts if part])

    def parse_pk(self, source_pk: str) -> Any:
        """Return the primary key's Python value, given the key as Postgres prints it.

        Raises:
            ValidationError: it is not a valid key: another field was the primary key before.
        """
        return self.model._meta.pk.to_python(source_pk)

    def parse_cursor(self, cursor: str | None) -> Any:
        """Return the key after which to continue a walk over rows. None: start at the beginning."""
        try:
            return None if cursor is None else self.parse_pk(cursor)
        except (ValidationError, ValueError):
            return None  # another field is the primary key now


def register(spec: Spec) -> None:
    """Register a declaration."""
    _registry[spec.key] = spec


def all() -> list[Spec]:  # noqa: A001 - read as specs.all()
    """Return all declarations, ordered by key."""
    return [_registry[key] for key in sorted(_registry)]


def priorities() -> dict[str, int]:
    """Return the priority of each declaration by its key."""
    return {spec.key: spec.priority for spec in all()}


def on(using: str) -> list[Spec]:
    """Return the declarations whose rows are in a database.

    These are those that routers write to this alias, and those whose table exists there: the alias
    may lead to the same database as another one, but bypass a pooler.
    """
    known = all()
    here = set(written_to(using))
    elsewhere = [spec for spec in known if spec not in here]
    if elsewhere:
        names = {spec: postgres.quoted_table(spec.embedding_model) for spec in elsewhere}
        found = {name for [name] in database.rows(using, IS_HERE, names=list(names.values()))}
        here |= {spec for spec, name in names.items() if name in found}
    return [spec for spec in known if spec in here]


def written_to(using: str) -> list[Spec]:
    """Return the declarations whose rows the database routers write to a database.

    Those whose table they keep out of it are left out: with a schema per tenant, not every tenant
    may have every app.
    """
    return [
        spec
        for spec in all()
        if router.db_for_write(spec.model) == using
        and router.allow_migrate_model(using, spec.model)
    ]


def without_table(declared: Iterable[Spec], *, using: str) -> list[Spec]:
    """Return the given specs whose generated table does not exist in a database."""
    names = {spec: postgres.quoted_table(spec.embedding_model) for spec in declared}
    found = {name for [name] in database.rows(using, HAS_TABLE, names=list(names.values()))}
    return [spec for spec, name in names.items() if name not in found]


def get(key: str) -> Spec | None:
    """Return the declaration with this key, or None if this process has none."""
    return _registry.get(key)


def of(model: type[Model], *, name: str | None = None) -> list[Spec]:
    """Return the nearest declarations that cover the model's rows.

    These are the model's own, or else those of the same table (on a proxy, or on the concrete
    model), or else those of a parent's table. ``name``: the nearest one of that name.

    Raises:
        ImproperlyConfigured: there are none, or none of that name.
    """
    covering = _covering(model)
    if not covering:
        raise ImproperlyConfigured(
            f"{model.__name__} is not embeddable. Decorate it with @embeddable(fields=[...]), then "
            "run makemigrations and migrate. Embeddable are: "
            f"{', '.join(spec.model.__name__ for spec in all()) or 'no models yet'}."
        )
    if name is None:
        return covering[0]
    for found in covering:
        if chosen := [spec for spec in found if spec.name == name]:
            return chosen
    names = list(dict.fromkeys(spec.name for found in covering for spec in found))
    raise ImproperlyConfigured(
        f"{model.__name__} has no @embeddable named {name!r}. {did_you_mean(name, names)}"
        f"It has: {', '.join(names)}."
    )


def _covering(model: type[Model]) -> list[list[Spec]]:
    """Return the declarations that cover the model's rows, in groups, the nearest first."""
    concrete = model._meta.concrete_model
    parents = [parent._meta.concrete_model for parent in model._meta.all_parents]
    levels = (
        [spec for spec in all() if spec.model is model],
        [spec for spec in all() if spec.model._meta.concrete_model is concrete],
        [spec for spec in all() if spec.model._meta.concrete_model in parents],
    )
    return [found for found in levels if found]
