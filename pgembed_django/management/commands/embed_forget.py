"""``manage.py embed_forget``: delete the remaining data of specs that are no longer declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from pgembed_django.capture import leftovers
from pgembed_django.core import database, faults
from pgembed_django.declaration import specs
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.spaces import repairs
from pgembed_django.triggers import installed

OBJECT_IN_USE = "55006"
REMEDIES = {
    OBJECT_IN_USE: "A worker with other code reads it. Restart it with the current one.",
    "42501": "Run it again as a role that may. A slot takes REPLICATION, a publication its owner.",
}
"""What a slot or a publication cannot be dropped for, by SQLSTATE."""


class Command(EmbedCommand):
    help = (
        "Lists what our tables still hold of specs whose @embeddable or model was removed: jobs, "
        "failures, spaces; and a replication slot and published tables that no spec needs. "
        "With --yes it deletes that. Their vectors and triggers go with the "
        "migration that makemigrations writes. "
        "Exit status: 0 done, or nothing is left; 1 not all, the message says why; "
        "2 could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--yes", "--no-input", action="store_true", help="Delete it.")

    def handle(self, **options: Any) -> None:
        self.using = self.chosen_database(options["database"], writes=options["yes"])
        if options["yes"] and not repairs.follow_renames(using=self.using):
            raise CommandError(
                "The jobs and spaces of a renamed model may still have its old name: an open "
                "transaction has locked a job, or another process is moving them. Run it again."
            )
        left = self._chosen(options["specs"])
        others = None if options["specs"] else leftovers.find(using=self.using)
        if not (left or (others and (others.slot or others.published))):
            self.stdout.write("No data is left of specs that are not declared.")
            return
        used = {key: reason for key in left if (reason := self._used_by(key))}
        kept: list[str] = []
        for key, rows in left.items():
            self.stdout.write(self.style.MIGRATE_HEADING(key))
            told = ", ".join(f"{number:,} {what}" for what, number in rows.items())
            if options["yes"] and key not in used:
                try:
                    repairs.forget(key, using=self.using)
                    told = f"deleted: {told}"
                except database.Busy:
                    used[key] = "an open transaction has some of its jobs. Run it again"
            self.stdout.write(f"  {told}")
        if others and (others.slot or others.published):
            kept = list(self._forget_capture(others, is_deleted=options["yes"]))
        if used or kept:
            in_use = (f"{key} is in use: {reason}." for key, reason in used.items())
            raise CommandError("\n".join([*in_use, *kept]))
        if not options["yes"]:
            self.stdout.write("Nothing was deleted. Pass --yes to delete it.")

    def _forget_capture(self, others: leftovers.Leftovers, *, is_deleted: bool) -> Iterator[str]:
        """Delete what is left of captures, if asked to. Yield why something stays."""
        self.stdout.write(self.style.MIGRATE_HEADING("Write-ahead log"))
        for what, delete in (
            (others.slot and f"the replication slot {others.slot}", leftovers.drop_slot),
            (others.published, leftovers.unpublish),
        ):
            if not what:
                continue
            told, state = what, ""
            if is_deleted:
                try:
                    delete(others, using=self.using)
                    told = f"deleted: {what}"
                except (OperationalError, ProgrammingError) as error:
                    if (state := faults.sqlstate(error)) not in REMEDIES:
                        raise
                    yield f"{what} is left: {faults.said(error)}. {REMEDIES[state]}"
            self.stdout.write(f"  {told}")
            if state == OBJECT_IN_USE:
                return  # what is published is read, too

    def _chosen(self, keys: list[str] | None) -> Mapping[str, Mapping[str, int]]:
        left = repairs.left_of_undeclared(using=self.using)
        for key in keys or ():
            if specs.get(key):
                raise cannot_start(
                    f"{key} is declared. Remove its @embeddable, run makemigrations and migrate."
                )
            if key not in left:
                others = f" There is data of: {', '.join(left)}." if left else ""
                raise cannot_start(f"No data is left of {key!r}.{others}")
        return {key: rows for key, rows in left.items() if not keys or key in keys}

    def _used_by(self, key: str) -> str:
        """Return what still adds or runs jobs of a spec, and the remedy. Empty: nothing does."""
        if tables := installed.tables_of(key, using=self.using):
            return (
                f"its triggers are on {', '.join(tables)}. Run makemigrations and migrate, "
                "and pgtrigger prune where those leave them"
            )
        for worker in status.overview(specs=[], using=self.using).workers:
            if worker.is_live and key in worker.specs:
                return f"the worker {worker.name} works on it. Restart it with the current code"
        return ""
