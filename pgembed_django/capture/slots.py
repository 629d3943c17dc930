"""The replication slot of a database, and what we note of it: how far it was read, for which specs.

What is noted is written in the same transaction as the jobs, and only confirmed to the server after
its commit. So a slot is never ahead of the note. One that is was made by others, or after a restore
of the database: changes may be missing, and everything is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import F
from django.db.models.functions import Greatest, Now

from pgembed_django.core import database, postgres
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import ReplicationSlot, publication

PLUGIN = "pgoutput"

# Positions are bytes since the beginning of the log.
SEEN = """
    SELECT
        ours.name,
        slot.slot_name IS NOT NULL,
        slot.plugin = 'pgoutput' AND slot.database = current_database(),
        slot.active,
        slot.wal_status = 'lost',
        slot.confirmed_flush_lsn - '0/0'::pg_lsn,
        current_setting('wal_level'),
        current_setting('max_slot_wal_keep_size') = '-1',
        (SELECT oid FROM pg_publication WHERE pubname = %(publication)s),
        CASE
            WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn()
        END - '0/0'::pg_lsn,
        pg_is_in_recovery()
    FROM (
        SELECT 'pgembed_' || oid AS name
        FROM pg_database
        WHERE datname = current_database()
    ) AS ours
    LEFT JOIN pg_replication_slots AS slot
      ON slot_name = ours.name
"""

# Amazon RDS gives its users the right by a role.
WITHOUT_RIGHT = """
    SELECT rolname
    FROM pg_roles
    WHERE rolname IN (session_user, current_user)
      AND NOT (
            rolsuper
            OR rolreplication
            OR EXISTS (
                SELECT
                FROM pg_roles AS rds
                WHERE rds.rolname = 'rds_replication'
                  AND pg_has_role(pg_roles.oid, rds.oid, 'MEMBER')
            )
      )
"""

# For each table, what would be another one if it was taken out and put in again, or NULL if not all
# of its changes are published. xmin changes with the options of a publication.
PUBLISHED = """
    SELECT
        wanted.spec,
        CASE
            WHEN pubinsert AND pubupdate AND pubdelete AND pubtruncate
             AND (prrelid IS NULL OR prqual IS NULL)
            THEN concat_ws('.', publication.oid, publication.xmin, rel.oid, schema.oid)
        END
    FROM unnest(%(specs)s::text[], %(tables)s::text[], %(keys)s::text[])
        AS wanted(spec, name, key)
    JOIN pg_publication AS publication ON pubname = %(publication)s
    JOIN pg_class AS source ON source.oid = to_regclass(wanted.name)
    JOIN pg_publication_tables AS published
      ON published.pubname = publication.pubname
     AND published.schemaname = (
        SELECT nspname FROM pg_namespace WHERE oid = source.relnamespace
    )
     AND published.tablename = source.relname
     AND wanted.key = ANY(published.attnames)
    LEFT JOIN pg_publication_rel AS rel
      ON prpubid = publication.oid
     AND prrelid = source.oid
    LEFT JOIN pg_publication_namespace AS schema
      ON pnpubid = publication.oid
     AND pnnspid = source.relnamespace
"""

OIDS = "SELECT name, to_regclass(name)::oid FROM unnest(%(names)s::text[]) AS wanted(name)"
DROP = "SELECT pg_drop_replication_slot(%(name)s)"

AT_ONCE = 100_000
"""So many bytes behind the end of the log everything counts as read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The slot as the server has it, and the server's settings for it."""

    name: str
    is_there: bool
    is_ours: bool
    is_active: bool
    is_lost: bool
    confirmed: int
    wal_level: str
    is_unlimited: bool
    """Whether it may keep any amount of the log."""
    publication: int | None
    """The oid of the publication, if there is one."""
    end: int
    """The end of the log."""
    is_standby: bool
    """Whether the server is one. Then the slot and its settings are those of another server."""

    @property
    def problem(self) -> str:
        """Return why nothing can be read, and the remedy. Empty: nothing is known to hinder it."""
        if self.wal_level != "logical" and not self.is_standby:
            return (
                f"wal_level is {self.wal_level!r}. Set it to 'logical' in the server's "
                "configuration, and restart the server."
            )
        if self.publication is None:
            return (
                f"There is no publication {publication.name()!r}. Run manage.py migrate, or have "
                "the owner of its tables run what manage.py embed_publication prints."
            )
        if self.is_there and not self.is_ours:
            return (
                f"The replication slot {self.name!r} is used by something else: another plugin or "
                "database. Drop that one, or have it renamed."
            )
        return ""


def captured(using: str) -> list[Spec]:
    """Return the specs of a database whose changes come from the write-ahead log."""
    return [spec for spec in specs.on(using) if spec.is_read_from_log]


def look(*, using: str) -> Seen:
    """Return the slot and the server as they are now."""
    [[name, is_there, is_ours, is_active, is_lost, confirmed, level, *others]] = database.rows(
        using, SEEN, publication=publication.name()
    )
    is_unlimited, oid, end, is_standby = others
    return Seen(
        name=name,
        is_there=is_there,
        is_ours=bool(is_ours),
        is_active=bool(is_active),
        is_lost=bool(is_lost),
        confirmed=int(confirmed or 0),
        wal_level=level,
        is_unlimited=is_unlimited,
        publication=oid,
        end=int(end or 0),
        is_standby=is_standby,
    )


def lacking_right(*, using: str) -> str:
    """Return what the role of this session lacks to read the log, and the remedy. Or nothing."""
    for [role] in database.rows(using, WITHOUT_RIGHT):
        return (
            f"The role {role} may not replicate. Run ALTER ROLE {role} REPLICATION. On Amazon "
            f"RDS: GRANT rds_replication TO {role}."
        )
    return ""


def published(wanted: Iterable[Spec], *, using: str) -> dict[str, str]:
    """Return those of the given specs whose changes reach the stream, by spec key.

    The value changes if a table was taken out of the publication and put in again.
    """
    by_key = {spec.key: spec for spec in wanted}
    by_table = {key: spec for key, spec in by_key.items() if spec.capture == "wal"}
    found = dict.fromkeys(by_key.keys() - by_table.keys(), "")
    rows = database.rows(
        using,
        PUBLISHED,
        specs=list(by_table),
        tables=[postgres.quoted_table(spec.model) for spec in by_table.values()],
        keys=[str(spec.model._meta.pk.column) for spec in by_table.values()],
        publication=publication.name(),
    )
    return found | {key: mark for key, mark in rows if mark is not None}


def note(name: str, *, using: str) -> ReplicationSlot | None:
    """Return what is noted of a slot."""
    return ReplicationSlot.objects.using(using).filter(pk=name).first()


def noted_specs(name: str, *, using: str) -> dict[str, str | None]:
    """Return which specs are noted: see ``ReplicationSlot.specs``."""
    noted = note(name, using=using)
    return dict(noted.specs) if noted else {}


def awaiting(name: str, *, using: str) -> list[Spec]:
    """Return the specs that triggers watch by now, and that are yet to be compared for that."""
    noted = [specs.get(key) for key in noted_specs(name, using=using)]
    return [spec for spec in noted if spec and not spec.is_read_from_log]


def note_problem(name: str, problem: str, *, using: str) -> None:
    """Note why the log cannot be read, for people. Empty: it is read again."""
    slots = ReplicationSlot.objects.using(using)
    slots.bulk_create([ReplicationSlot(name=name)], ignore_conflicts=True)
    slots.filter(pk=name).exclude(problem=problem).update(problem=problem)


def take(name: str, holder: str, *, using: str) -> ReplicationSlot:
    """Become the one who writes the note. A former one, which may only be frozen, no longer can."""
    slots = ReplicationSlot.objects.using(using)
    slots.bulk_create([ReplicationSlot(name=name)], ignore_conflicts=True)
    slots.filter(pk=name).update(holder=holder)
    return slots.get(pk=name)


def begin_anew(name: str, holder: str, *, using: str, position: int | None) -> bool:
    """Note that a slot is about to be made (no position), or was. Return whether we still may."""
    noted = note(name, using=using)
    # They are kept: what has triggers again by now is yet to be compared.
    specs_with_gaps = dict.fromkeys(noted.specs if noted else ())
    ours = ReplicationSlot.objects.using(using).filter(pk=name, holder=holder)
    return bool(ours.update(position=position, specs=specs_with_gaps, read_at=Now()))


def advance(
    name: str, holder: str, *, using: str, position: int | None, read_at: Any = None
) -> bool:
    """Note how far the log was read. Return whether another worker has not become the holder.

    It locks the note until the transaction ends.
    """
    ours = ReplicationSlot.objects.using(using).filter(pk=name, holder=holder)
    state: dict[str, Any] = {"position": F("position") if position is None else position}
    if read_at is not None:
        state["read_at"] = Greatest(F("read_at"), read_at)
    return bool(ours.update(**state))


def cover(name: str, holder: str, covered: Mapping[str, str | None], *, using: str) -> bool:
    """Note the specs: see ``ReplicationSlot.specs``. Return whether we still may."""
    ours = ReplicationSlot.objects.using(using).filter(pk=name, holder=holder)
    return bool(ours.update(specs=dict(covered)))


def drop(name: str, *, using: str) -> None:
    """Drop the slot."""
    database.rows(using, DROP, name=name)


def oids_of(wanted: Iterable[Spec], *, using: str) -> Mapping[int, list[Spec]]:
    """Return the specs that watch each table, by the table's oid."""
    by_name = {spec: postgres.quoted_table(spec.model) for spec in wanted if spec.capture == "wal"}
    oids: dict[str, int | None] = dict(database.rows(using, OIDS, names=list(by_name.values())))
    found: defaultdict[int, list[Spec]] = defaultdict(list)
    for spec, name in by_name.items():
        if (oid := oids[name]) is not None:
            found[oid].append(spec)
    return found
