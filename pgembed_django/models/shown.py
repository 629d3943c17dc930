"""Choose the database that our admin pages and metrics show."""

from __future__ import annotations

from django.db import connections, router

from pgembed_django import conf, postgres
from pgembed_django.models.job import Job


def shown_database() -> str:
    """Return the alias to which routers send writes to our tables, if it is PostgreSQL.

    Otherwise return the alias that workers use.
    """
    alias = router.db_for_write(Job)
    if connections[alias].vendor == "postgresql":
        return alias
    return conf.current().worker_database or postgres.any_postgres().alias
