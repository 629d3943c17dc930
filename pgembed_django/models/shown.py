"""Which database our admin pages and metrics show."""

from __future__ import annotations

from django.db import connections, router

from pgembed_django import conf, postgres
from pgembed_django.models.job import Job


def shown_database() -> str:
    """Return where our tables are written to: what a router names, as far as it is PostgreSQL."""
    alias = router.db_for_write(Job)
    if connections[alias].vendor == "postgresql":
        return alias
    return conf.current().worker_database or postgres.any_postgres().alias
