"""Check of each ``@embeddable`` what was not known yet when its model was loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from django.core.checks import CheckMessage, Error
from django.core.exceptions import FieldError, ValidationError
from django.db import connections, models, router

from pgembed_django import conditions, conf, specs
from pgembed_django.specs import Spec

# How Postgres prints these depends on the session: on DateStyle, TimeZone, bytea_output and
# the like, and every writer has a session of its own. inet prints a netmask, Python does not.
UNSTABLE_KEYS = (
    models.BinaryField,
    models.DateField,
    models.DurationField,
    models.FloatField,
    models.GenericIPAddressField,
)


def check_declarations(**_: Any) -> list[CheckMessage]:
    """Return what is wrong with any of them."""
    checks = (_provider_of, _database_of, _condition_of, _key_of)
    return [message for spec in specs.all() for check in checks for message in check(spec)]


def _error(spec: Spec, what: str, *, hint: str, id: str) -> Error:  # noqa: A002
    message = f"@embeddable on {spec.model.__name__}: {what}"
    return Error(message, hint=hint, obj=spec.model, id=id)


def _provider_of(spec: Spec) -> Iterator[CheckMessage]:
    known = conf.current().providers
    if spec.provider not in known:
        yield _error(
            spec,
            f"no provider named {spec.provider!r}.",
            hint=f"Name one of PGEMBED_PROVIDERS: {', '.join(known)}."
            if known
            else f"Define {spec.provider!r} in PGEMBED_PROVIDERS, which is empty.",
            id="pgembed.E004",
        )


def _database_of(spec: Spec) -> Iterator[CheckMessage]:
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


def _condition_of(spec: Spec) -> Iterator[CheckMessage]:
    try:
        conditions.compiled(spec.when, model=spec.model, row="new")
    except (FieldError, TypeError, ValueError, ValidationError, psycopg.Error) as error:
        yield _error(
            spec,
            f"its condition cannot be written as SQL: {error}",
            hint="Compare the model's own columns with constants of their types.",
            id="pgembed.E006",
        )


def _key_of(spec: Spec) -> Iterator[CheckMessage]:
    field: Any = spec.model._meta.pk
    while field.is_relation:
        field = field.target_field
    if isinstance(field, UNSTABLE_KEYS):
        yield _error(
            spec,
            f"its primary key is a {type(field).__name__}, and how Postgres prints it depends "
            "on the connection.",
            hint="Give the model a key of integers, a UUID or a text.",
            id="pgembed.E007",
        )
