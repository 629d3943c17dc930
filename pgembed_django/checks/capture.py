"""Check what reading the write-ahead log needs of a database: see ``capture``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004

from pgembed_django import conf
from pgembed_django.capture import slots
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.ops.capture import faults, lost_identities

# Amazon RDS gives its users the right by a role.
MAY_REPLICATE = """
    SELECT
        rolname,
        rolsuper
            OR rolreplication
            OR EXISTS (
                SELECT
                FROM pg_roles AS rds
                WHERE rds.rolname = 'rds_replication'
                  AND pg_has_role(pg_roles.oid, rds.oid, 'MEMBER')
            )
    FROM pg_roles
    WHERE rolname IN (session_user, current_user)
    ORDER BY 2
    LIMIT 1
"""


def check_capture(alias: str, *, may_be_migrated: Callable[[str], bool]) -> Iterator[CheckMessage]:
    """Yield what keeps changes from being read. Migrations that have yet to run may mend some."""
    captured = [spec for spec in specs.written_to(alias) if spec.is_read_from_log]
    seen = slots.look(using=alias)
    if not captured:
        if seen.is_there and not slots.awaiting(seen.name, using=alias):
            yield Warning(
                f"The replication slot {seen.name} of database {alias!r} is read by nobody, and "
                "keeps the server from removing its write-ahead log.",
                hint=f"If no other code needs it: manage.py embed_forget --database {alias} --yes",
                id="pgembed.W021",
            )
        return
    lost = lost_identities(captured, using=alias)
    for key, fault in lost.items():
        yield Error(
            f"{key}: {fault}",
            hint="Run ALTER TABLE … REPLICA IDENTITY DEFAULT. Its primary key must have the "
            "model's key among its columns.",
            id="pgembed.E028",
        )
    if seen.is_unlimited:
        yield Warning(
            f"max_slot_wal_keep_size is -1 on the server of database {alias!r}: while no worker "
            "reads, the write-ahead log may fill the disk.",
            hint="Set it to what the disk has room for. A slot that falls behind is lost then, "
            "made anew, and all rows are compared.",
            id="pgembed.W020",
        )
    yield from _role(alias)
    if may_be_migrated(alias):
        return
    if seen.problem:
        yield Warning(
            f"Changes cannot be read from the write-ahead log of database {alias!r}.",
            hint=seen.problem,
            id="pgembed.W018",
        )
    if seen.publication is None:
        return
    for key, fault in faults(captured, using=alias).items():
        if key not in lost:
            yield Warning(
                f"{key}: {fault}",
                hint="Have the owner of the table run what manage.py embed_publication prints.",
                id="pgembed.W019",
            )


def _role(alias: str) -> Iterator[CheckMessage]:
    if (conf.current().worker_database or alias) != alias:
        return  # workers use another one
    [[role, may_replicate]] = database.rows(alias, MAY_REPLICATE)
    if not may_replicate:
        yield Warning(
            f"The role {role} of database {alias!r} may not read the write-ahead log.",
            hint=f"If workers use it: ALTER ROLE {role} REPLICATION. On Amazon RDS: GRANT "
            f"rds_replication TO {role}.",
            id="pgembed.W018",
        )
