"""What a database is: PostgreSQL or not, its encoding, its languages, how it quotes names."""

from __future__ import annotations

import re
from functools import lru_cache

from django.db import (
    DEFAULT_DB_ALIAS,
    DataError,
    NotSupportedError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from pgembed_django.core import database
from pgembed_django.exceptions import did_you_mean

UNQUOTED = re.compile("[a-z_][a-z0-9_]*")

PLAIN = re.compile(r'[^\s".]+')
"""A name without a schema or quotes."""

FULL_TEXT_CONFIGURATIONS = """
    SELECT cfgname
    FROM pg_ts_config
    WHERE pg_ts_config_is_visible(oid)
    ORDER BY cfgname
"""


def not_postgres(using: str, *, remedy: str) -> str:
    """Return why a database cannot be used, and which ones can. Empty: it is PostgreSQL.

    ``remedy`` is the argument or option that names another one.
    """
    if connections[using].vendor == "postgresql":
        return ""
    said = f"The database {using!r} is {connections[using].display_name}, not PostgreSQL"
    others = [one.alias for one in connections.all() if one.vendor == "postgresql"]
    if not others:
        return f"{said}, and no other in DATABASES is."
    return f"{said}. Use {remedy} to name one that is: {', '.join(others)}."


def any_postgres() -> BaseDatabaseWrapper:
    """Return a PostgreSQL connection to compile for. Nothing is sent over it."""
    default = connections[DEFAULT_DB_ALIAS]
    found = [one for one in (default, *connections.all()) if one.vendor == "postgresql"]
    # Only PostGIS's knows the types of geometries. All else it compiles alike.
    geographic = [one for one in found if getattr(one.features, "gis_enabled", False)]
    return next(iter(geographic or found), default)


def quoted_name(name: str) -> str:
    """Return a table's or column's name as Django writes it in SQL."""
    quoted: str = any_postgres().ops.quote_name(name)
    return quoted


def quoted_table(model: type[Model]) -> str:
    """Return the name of a model's table as Django writes it in SQL."""
    return quoted_name(model._meta.db_table)


def encoding(using: str) -> str:
    """Return a database's encoding, by its name in Postgres. It is usually UTF8."""
    connections[using].ensure_connection()
    info = connections[using].connection.info
    return info.parameter_status("server_encoding") or "UTF8"


@lru_cache(maxsize=100)
def require_language(using: str, language: str) -> None:
    """Ask a database once for a full-text configuration. What is raised is not cached.

    Raises:
        LookupError: the database does not have it. A transaction goes on all the same. The message
            is the end of a sentence.
    """
    if known := languages_instead(using, language):
        raise LookupError(
            f"which the database {using!r} does not have. {did_you_mean(language, known)}"
            f"It has: {', '.join(known)}."
        )


def languages(using: str) -> frozenset[str]:
    """Return a database's full-text configurations whose names need no quotes."""
    found = [name for [name] in database.rows(using, FULL_TEXT_CONFIGURATIONS)]
    return frozenset(name for name in found if UNQUOTED.fullmatch(name))


def languages_instead(using: str, language: str) -> list[str]:
    """Return the full-text configurations that a database has instead. Empty: it has this one."""
    known = [name for [name] in database.rows(using, FULL_TEXT_CONFIGURATIONS)]
    if PLAIN.fullmatch(language):
        # Not asked for: a number or a dash would pass for an oid, and what is not there would be an
        # error in the server's log, for each search in a language without a configuration.
        return [] if language.lower() in known else known
    with connections[using].cursor() as cursor:
        try:
            with transaction.atomic(using=using):
                cursor.execute("SELECT %s::regconfig", [language])
        except (ProgrammingError, DataError, NotSupportedError):
            return known
    return []
