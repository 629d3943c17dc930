"""Check each ``@embeddable`` for faults that cannot be found while its model is being loaded."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.core.exceptions import EmptyResultSet
from django.db import connections, models, router
from django.db.models.constants import LOOKUP_SEP
from django.db.models.query_utils import DeferredAttribute

from pgembed_django import conf
from pgembed_django.core import postgres
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec, StoreText
from pgembed_django.exceptions import did_you_mean
from pgembed_django.models import Job
from pgembed_django.triggers import conditions

STORED: Mapping[StoreText, str] = {True: "passages and lexemes", False: "lexemes"}
"""What is stored of a text in plain, by ``store_text``."""

# How Postgres prints these types depends on settings of the writer's session, such as DateStyle,
# TimeZone and bytea_output. inet is different: Postgres prints a netmask, and Python does not.
UNSTABLE_KEYS = (
    models.BinaryField,
    models.DateField,
    models.DurationField,
    models.FloatField,
    models.GenericIPAddressField,
)

# How packages call fields that encrypt what they save, their base classes and their modules.
ENCRYPTED = re.compile(
    "encrypt|cipher|fernet|pgp|pgcrypto|cryptograph|crypto_fields", re.IGNORECASE
)

INSTALLED = {"site-packages", "dist-packages"}


def check_declarations(**_: Any) -> list[CheckMessage]:
    """Return the faults of all declarations."""
    checks = (
        _names,
        _databases,
        _condition_and_chunker,
        _key_and_fields,
        _stored_values,
        _parents,
        _translations,
        _prefetch,
        _migrations,
    )
    return [message for spec in specs.all() for check in checks for message in check(spec)]


def _error(spec: Spec, what: str, *, hint: str, id: str) -> Error:  # noqa: A002
    message = f"@embeddable on {spec.model.__name__}: {what}"
    return Error(message, hint=hint, obj=spec.model, id=id)


def _warning(spec: Spec, what: str, *, hint: str, id: str) -> Warning:  # noqa: A002
    message = f"@embeddable on {spec.model.__name__}: {what}"
    return Warning(message, hint=hint, obj=spec.model, id=id)


def _names(spec: Spec) -> Iterator[CheckMessage]:
    options = spec.embedding_model._meta
    known = options.apps.all_models[options.app_label].get(spec.name.lower())
    if known is not spec.embedding_model:
        yield _error(
            spec,
            f"another model {spec.key!r} is defined below it, and has taken the place of the one "
            "that holds its vectors.",
            hint="Give the declaration a name of its own: "
            f"name={spec.model.__name__ + 'Vectors'!r}.",
            id="pgembed.E018",
        )
    # If PGEMBED_PROVIDERS is no dict, check_settings reports it.
    if (
        isinstance(conf.current().providers, Mapping)
        and spec.provider not in conf.current().declared
    ):
        aliases = list(conf.current().declared)
        yield _error(
            spec,
            f"no provider named {spec.provider!r}.",
            hint=f"{did_you_mean(spec.provider, aliases)}Name one of PGEMBED_PROVIDERS: "
            f"{', '.join(aliases)}."
            if aliases
            else f"Define PGEMBED_PROVIDERS[{spec.provider!r}], a dict with BACKEND, MODEL and "
            "DIMENSIONS.",
            id="pgembed.E004",
        )


def _databases(spec: Spec) -> Iterator[CheckMessage]:
    alias = router.db_for_write(spec.model)
    connection = connections[alias]
    if connection.vendor != "postgresql":
        yield _error(
            spec,
            f"its database {alias!r} is {connection.display_name}.",
            hint="Vectors and triggers need PostgreSQL. Use the engine "
            "'django.db.backends.postgresql', or route the model to such a database.",
            id="pgembed.E005",
        )
        return
    if not router.allow_migrate_model(alias, spec.model):
        return  # the model is migrated through another alias, which bypasses a pooler
    related = [link.model for link in spec.relations.links]
    needed = [
        model
        for model in (spec.model._meta.concrete_model, spec.embedding_model, Job, *related)
        if model
    ]
    apart = [model for model in needed if not router.allow_migrate_model(alias, model)]
    apart += [spec.embedding_model] * (router.db_for_write(spec.embedding_model) != alias)
    if apart:
        yield _error(
            spec,
            f"it is in the database {alias!r}, and routers keep "
            f"{', '.join(dict.fromkeys(model._meta.label for model in apart))} out of it.",
            hint="Rows, related rows, vectors and jobs are in one database. Let db_for_read, "
            "db_for_write and allow_migrate send the model and its embeddings to one database, "
            "and let allow_migrate have the app pgembed in each of them.",
            id="pgembed.E008",
        )


def _condition_and_chunker(spec: Spec) -> Iterator[CheckMessage]:
    try:
        # Without a Postgres, _databases reports that.
        if postgres.any_postgres().vendor == "postgresql":
            conditions.compiled(spec.tested, model=spec.model, row="new")
            if spec.when_spans_tables:
                with suppress(EmptyResultSet):
                    compiler = spec.rows().query.get_compiler(connection=postgres.any_postgres())
                    compiler.as_sql()
    except conditions.UNWRITABLE as error:
        # A ValidationError's own text is the repr of a list.
        reason = " ".join(getattr(error, "messages", [str(error)]))
        yield _error(
            spec,
            f"its condition cannot be written as SQL: {reason}",
            hint="Compare the model's own columns, or its parents', with constants of their types.",
            id="pgembed.E006",
        )
    count = spec.chunker.count
    if not isinstance(count, str):
        return  # Chunker refuses what is no function
    try:
        found = pkgutil.resolve_name(count)
        problem = "" if callable(found) else f"it is a {type(found).__name__}"
    except (AttributeError, ImportError) as error:
        problem = str(error)
    if problem:
        yield _error(
            spec,
            f"its chunker cannot use count={count!r}: {problem}.",
            hint="Give the dotted path of a function that returns how many tokens a text has.",
            id="pgembed.E019",
        )


def _key_and_fields(spec: Spec) -> Iterator[CheckMessage]:
    keys: dict[str, Any] = {"its primary key": spec.model._meta.pk}
    keys |= {f"{one.key.name!r} of {one.model.__name__}": one.key for one in spec.relations.links}
    for what, key in keys.items():
        while key.is_relation:
            key = key.target_field
        if isinstance(key, UNSTABLE_KEYS):
            yield _error(
                spec,
                f"{what} is a {type(key).__name__}, and how Postgres prints it depends "
                "on the connection.",
                hint="Give the model a key of integers, a UUID or a text.",
                id="pgembed.E007",
            )
    for name, field in _columns(spec).items():
        kinds = type(field).__mro__
        names = [f"{one.__module__}.{one.__qualname__}" for one in kinds]
        if spec.store_text in STORED and any(ENCRYPTED.search(one) for one in names):
            yield _warning(
                spec,
                f"{name!r} looks encrypted, and {spec.key} stores its text in plain, as "
                f"{STORED[spec.store_text]}.",
                hint="Leave the field out, or set store_text='nothing': then only its vectors are "
                "stored. If that is how it should be, add 'pgembed.W012' to "
                "SILENCED_SYSTEM_CHECKS.",
                id="pgembed.W012",
            )


def _columns(spec: Spec) -> dict[str, Any]:
    """Return the fields that a text is made of, by their names in the declaration."""
    own: dict[str, Any] = {name: spec.model._meta.get_field(name) for name in spec.fields}
    return own | {one.lookup: one.column for one in spec.relations.values}


def _stored_values(spec: Spec) -> Iterator[CheckMessage]:
    for name, field in _columns(spec).items() if not spec.text else ():
        labels = [one for one in field.flatchoices if one[0] and _plain(one[0]) != _plain(one[1])]
        if isinstance(field, (models.FileField, models.FilePathField)):
            what = "a path is embedded, and not what the file contains"
            remedy = "Leave it out, or name a method that reads the file: text='...'."
        elif labels:
            value, label = labels[0]
            what = f"choices are embedded as they are stored, {value!r} and not {str(label)!r}"
            remedy = f"Name a method that calls get_{field.name}_display(): text='...'."
        else:
            continue
        yield _warning(
            spec,
            f"of {name!r}, {what}.",
            hint=f"{remedy} If that is how it should be, add 'pgembed.W014' to "
            "SILENCED_SYSTEM_CHECKS.",
            id="pgembed.W014",
        )


def _parents(spec: Spec) -> Iterator[CheckMessage]:
    """Warn of a text method on a child model that may read columns of parents that none watches."""
    concrete: Any = spec.model._meta.concrete_model or spec.model
    own = [spec.model._meta.get_field(name) in concrete._meta.local_fields for name in spec.fields]
    parents = [one for one in concrete._meta.get_parent_list() if len(one._meta.local_fields) > 1]
    if spec.text and parents and not spec.related and all(own):
        names = " and ".join(one.__name__ for one in parents)
        yield _warning(
            spec,
            f"{spec.text}() may read columns of {names}, and no trigger watches any.",
            hint="Name those that it reads in fields. If it reads none, add 'pgembed.W016' to "
            "SILENCED_SYSTEM_CHECKS.",
            id="pgembed.W016",
        )


def _translations(spec: Spec) -> Iterator[CheckMessage]:
    """Warn of a field of django-modeltranslation, whose own column is not written by each write."""
    watched: list[Any] = [spec.model._meta.get_field(name) for name in spec.fields]
    watched += [column for link in spec.relations.links for column in link.columns]
    for field in dict.fromkeys(watched):
        columns = [
            one
            for one in field.model._meta.get_fields()
            if getattr(one, "translated_field", None) is field
        ]
        if not set(columns) <= set(watched):
            names = ", ".join(one.name for one in columns)
            yield _warning(
                spec,
                f"{field.name!r} of {field.model.__name__} is translated, and update() writes "
                f"{names} alone.",
                hint=f"Name these instead of {field.name!r}, in translation.py below the "
                "registration: they do not exist before.",
                id="pgembed.W015",
            )


def _plain(value: object) -> str:
    """Return a choice as a model reads it: "in_progress" is as good as "In progress"."""
    return re.sub(r"[\W_]+", " ", str(value)).casefold()


def _prefetch(spec: Spec) -> Iterator[CheckMessage]:
    to_attrs = {one.to_attr for one in spec.prefetch if isinstance(one, models.Prefetch)}
    for one in spec.prefetch:
        path = one if isinstance(one, str) else one.prefetch_through
        model: Any = spec.model
        for name in path.split(LOOKUP_SEP):
            relations = _relations(model)
            # A package may have descriptors of its own that can be prefetched.
            found = getattr(model, name, None)
            if name not in {*relations, *to_attrs} and isinstance(found, DeferredAttribute | None):
                yield _error(
                    spec,
                    f"prefetch names {path!r}, and {model.__name__} has no relation {name!r}.",
                    hint=f"{did_you_mean(name, relations)}There are: {', '.join(relations)}.",
                    id="pgembed.E023",
                )
            model = relations.get(name)
            if not isinstance(model, type):
                break  # a generic foreign key, or what other checks report


def _relations(model: type[models.Model]) -> dict[str, Any]:
    """Return the models that a model's relations lead to, by the names on its instances."""
    found: dict[str, Any] = {}
    fields: list[Any] = model._meta.get_fields()
    for field in fields:
        is_reverse = isinstance(field, models.ForeignObjectRel)
        name = field.get_accessor_name() if is_reverse else field.name
        if field.is_relation and name:
            found[name] = field.related_model
    return {name: found[name] for name in sorted(found)}


def _migrations(spec: Spec) -> Iterator[CheckMessage]:
    label = spec.model._meta.app_label
    app = apps.app_configs.get(label)
    # A package that decorates its own models also ships their migrations.
    if app is None or not spec.is_from_outside or label in settings.MIGRATION_MODULES:
        return
    if not INSTALLED.isdisjoint(Path(app.path).parts):
        yield _warning(
            spec,
            f"makemigrations would write its table and triggers into {app.path}, where the next "
            "installation deletes them.",
            hint="Decorate a proxy of the model in an app of your own. Or keep the app's "
            f"migrations in your project, with a copy of those that it has: "
            f"MIGRATION_MODULES[{label!r}].",
            id="pgembed.W004",
        )
