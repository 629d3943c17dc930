"""``manage.py embed_forget``: delete the remaining data of specs that are no longer declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pgembed_django.capture import leftovers
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.spaces import repairs
from pgembed_django.triggers import installed


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
        if not left and not (others and str(others)):
            self.stdout.write("No data is left of specs that are not declared.")
            return
        used = {key: reason for key in left if (reason := self._used_by(key))}
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
        if others and str(others):
            self._tell_of_capture(others, used, is_deleted=options["yes"])
        if used:
            raise CommandError("\n".join(f"{key} is in use: {used[key]}." for key in used))
        if not options["yes"]:
            self.stdout.write("Nothing was deleted. Pass --yes to delete it.")

    def _tell_of_capture(
        self, others: leftovers.Leftovers, used: dict[str, str], *, is_deleted: bool
    ) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING("Write-ahead log"))
        told = str(others)
        if is_deleted and others.slot and others.is_active:
            used[others.slot] = "a worker with other code reads it. Restart it with the current one"
        elif is_deleted:
            leftovers.remove(others, using=self.using)
            told = f"deleted: {told}"
        self.stdout.write(f"  {told}")

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
