"""What a claim is, and how a statement proves that its job is still ours."""

from __future__ import annotations

from itertools import starmap
from typing import Any, NamedTuple

from pgembed_django import database

# Proves that a job still belongs to the claim. Its parameters are ``Claim.fence``.
OURS = """
        job.id = %(id)s
    AND job.claims = %(token)s
    AND job.started_at = %(started_at)s::timestamptz
    AND job.status = 'running'
    -- See ``Expired``: the lease may have been renewed since the reaper's look.
    AND (NOT %(is_expired)s OR job.lease_expires_at < statement_timestamp())
"""

# In the order of the fields of ``Claim``.
COLUMNS = """
        job.id,
        job.claims,
        job.started_at::text,
        job.spec,
        job.source_pk,
        job.kind,
        job.priority,
        -- Renamed, so that ORDER BY run_at sorts by time, not by text.
        job.run_at::text AS due,
        job.attempts,
        job.crashes,
        job.outages,
        job.traceparent
"""


def filled(statement: str) -> str:
    """Return a statement on ``pgembed_job AS job`` with its ``{ours}`` and ``{columns}``."""
    return statement.replace("{ours}", OURS.strip()).replace("{columns}", COLUMNS.strip())


class Claim(NamedTuple):
    """A job that a worker holds. ``token`` counts its claims, so a later claim has a higher one.

    ``started_at`` is part of the fence, too: after a TRUNCATE that restarts the ids, a later
    claim may have the same id and token.
    """

    id: int
    token: int
    started_at: str
    """As Postgres writes it, because it is only sent back. The same goes for ``run_at``."""
    spec: str
    source_pk: str
    kind: str
    priority: int
    run_at: str
    attempts: int
    crashes: int
    outages: int
    traceparent: str | None = None
    """The trace that the job belongs to, in W3C's form."""

    @property
    def fence(self) -> dict[str, Any]:
        """The parameters by which a statement proves that the job is still ours."""
        return {
            "id": self.id,
            "token": self.token,
            "started_at": self.started_at,
            "is_expired": False,
        }


class Expired(Claim):
    """A claim whose lease has run out, as its reaper holds it: only as long as nobody renews it."""

    __slots__ = ()

    @property
    def fence(self) -> dict[str, Any]:
        """The parameters by which a statement proves that the lease is not renewed, either."""
        return {**super().fence, "is_expired": True}


def claims(statement: str, *, using: str, **parameters: Any) -> list[Claim]:
    """Run a statement that returns the columns of a claim."""
    return [*starmap(Claim, database.prepared(using, statement, **parameters))]
