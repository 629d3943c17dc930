"""What is left of captures that no spec declares any more: a slot, and published tables."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from psycopg import sql

from pgembed_django import conf
from pgembed_django.capture import slots
from pgembed_django.core import database
from pgembed_django.models import ReplicationSlot, publication

TABLES = """
    SELECT prrelid::regclass::text, prrelid::bigint
    FROM pg_publication_rel
    JOIN pg_publication ON pg_publication.oid = prpubid
    WHERE pubname = %(name)s
    ORDER BY 1
"""
UNPUBLISH = "ALTER PUBLICATION {name} DROP TABLE {table}"
DROP_PUBLICATION = "DROP PUBLICATION {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What no spec needs. ``slot`` is empty if there is none, or one is needed."""

    slot: str
    tables: tuple[str, ...]
    """Tables that our publication has, by their quoted names."""
    publication: bool
    """Whether our publication itself is not needed."""

    @property
    def published(self) -> str:
        """What is in our publication, and whether that itself is left. Empty: nothing."""
        tables = [f"{', '.join(self.tables)} in"] if self.tables else []
        if self.publication or tables:
            return " ".join([*tables, f"the publication {publication.OURS}"])
        return ""


def find(*, using: str) -> Leftovers:
    """Return what no declared spec needs. A publication of others is theirs."""
    captured = slots.captured(using)
    seen = slots.look(using=using)
    is_needed = bool(captured or slots.awaiting(seen.name, using=using))
    is_ours = conf.current().publication is None
    watched = slots.oids_of(captured, using=using)
    published = database.rows(using, TABLES, name=publication.OURS) if is_ours else []
    return Leftovers(
        slot=seen.name if seen.is_there and seen.is_ours and not is_needed else "",
        tables=tuple(name for name, oid in published if oid not in watched),
        publication=is_ours and seen.publication is not None and not captured,
    )


def drop_slot(found: Leftovers, *, using: str) -> None:
    """Drop the slot, and what is noted of it. The role has to have REPLICATION."""
    slots.drop(found.slot, using=using)
    ReplicationSlot.objects.using(using).filter(pk=found.slot).delete()


def unpublish(found: Leftovers, *, using: str) -> None:
    """Take the tables out of the publication, or drop that. The role has to own it."""
    name = sql.Identifier(publication.OURS)
    statements = [
        sql.SQL(UNPUBLISH).format(name=name, table=sql.SQL(table)) for table in found.tables
    ]
    if found.publication:
        statements = [sql.SQL(DROP_PUBLICATION).format(name=name)]
    with transaction.atomic(using=using):
        for statement in statements:
            database.execute(using, statement.as_string(None))
