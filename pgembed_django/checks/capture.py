"""Check what reading the write-ahead log needs of a database: see ``capture``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import DEFAULT_DB_ALIAS, OperationalError

from pgembed_django import conf
from pgembed_django.capture import slots
from pgembed_django.declaration import specs
from pgembed_django.ops.capture import faults, lost_identities


def check_capture(alias: str, *, may_be_migrated: Callable[[str], bool]) -> Iterator[CheckMessage]:
    """Yield what keeps changes from being read. Migrations that have yet to run may mend some."""
    captured = [spec for spec in specs.written_to(alias) if spec.is_read_from_log]
    seen = slots.look(using=alias)
    if seen.is_standby:
        return  # the slot and its settings are the primary's
    if not captured:
        is_unread = seen.is_ours and not seen.is_active
        if is_unread and not slots.awaiting(seen.name, using=alias):
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
    if alias == DEFAULT_DB_ALIAS:
        alias = conf.current().worker_database or alias  # as embed_worker does
    # Where this runs, the direct alias of workers may be out of reach.
    with suppress(OperationalError):
        if lacking := slots.lacking_right(using=alias):
            yield Warning(
                "If workers use the role of this connection, they cannot read the write-ahead log "
                f"of database {alias!r}.",
                hint=lacking,
                id="pgembed.W018",
            )
