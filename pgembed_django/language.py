"""Whether a database has the full-text configuration of the settings."""

from __future__ import annotations

from functools import lru_cache

from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, NotSupportedError, ProgrammingError, transaction

from pgembed_django import conf, database
from pgembed_django.exceptions import did_you_mean

KNOWN = "SELECT %(language)s::regconfig"

ALL = """
    SELECT cfgname
    FROM pg_ts_config
    WHERE pg_ts_config_is_visible(oid)
    ORDER BY cfgname
"""


def of(using: str) -> str:
    """Return the full-text configuration of the settings.

    Raises:
        ImproperlyConfigured: the database does not have it. A transaction goes on all the same.
    """
    language = conf.current().text_search_config
    _require(using, language)
    return language


@lru_cache(maxsize=100)
def _require(using: str, language: str) -> None:
    """Ask the database once for each configuration. What is raised is not cached."""
    if known := others(using, language):
        raise ImproperlyConfigured(
            f"PGEMBED_TEXT_SEARCH_CONFIG is {language!r}, which the database {using!r} does not "
            f"have. {did_you_mean(language, known)}It has: {', '.join(known)}."
        )


def others(using: str, language: str) -> list[str]:
    """Return the configurations that a database has instead of this one. Empty: it has it."""
    try:
        with transaction.atomic(using=using):
            database.rows(using, KNOWN, language=language)
    except (ProgrammingError, DataError, NotSupportedError):
        return [name for [name] in database.rows(using, ALL)]
    return []
