"""``manage.py embed_retry``: start failed rows afresh. Also the base of ``embed_dismiss``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DataError

from pgembed_django import faults, specs
from pgembed_django.ops import status
from pgembed_django.ops.command import CANNOT_START, EmbedCommand
from pgembed_django.ops.formatting import Progress
from pgembed_django.queue import jobs

BATCH = 1000


class Command(EmbedCommand):
    verb = "retry"
    help = (
        "Retries failed rows, once the cause of the failure is fixed: those of some specs, of "
        "some rows, of one kind of error, or all. Shows what happened to them: 'superseded by "
        "newer work' are rows that have been written since, and have a job already; 'gone' are "
        "failures that were settled in another way meanwhile. Failures that come up while it "
        "runs are left alone. "
        "Exit status: 0 done, or nothing to do; 1 some are locked by an open transaction, run it "
        "again; 2 called wrongly."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--unit",
            dest="units",
            nargs="+",
            action="extend",
            metavar="KEY",
            help="Only the failures of the rows with these primary keys.",
        )
        parser.add_argument(
            "--signature",
            metavar="TEXT",
            help="Only failures of this kind, as embed_status writes it.",
        )
        parser.add_argument("--all", action="store_true", help="All open failures.")
        parser.add_argument(
            "--dry-run", action="store_true", help="Show how many there are, and do nothing."
        )
        parser.add_argument(
            "--yes", "--no-input", action="store_true", help="Do not ask whether to go on."
        )

    def handle(self, **options: Any) -> None:
        if not any(options[name] for name in ("specs", "units", "signature", "all")):
            raise CommandError(
                "Which failures? Choose some with --specs, --unit or --signature, or pass --all. "
                "embed_status lists them by kind.",
                returncode=CANNOT_START,
            )
        using = self.chosen_database(options["database"])
        ids = self._chosen(options, using=using)
        failures = f"{len(ids):,} open failure{'s' * (len(ids) != 1)}"
        if options["dry_run"] or not ids:
            self.stdout.write(f"{failures}." if ids else "No open failure matches.")
            return
        if not options["yes"]:
            self._ask(failures)
        counts: Counter[str] = Counter()
        with Progress(
            len(ids),
            what=self.verb.capitalize(),
            unit="failures",
            out=self.stderr,
            is_quiet=options["verbosity"] < 1,
        ) as progress:
            for start in range(0, len(ids), BATCH):
                counts.update(self.act(ids[start : start + BATCH], using=using))
                progress.show(start + BATCH)
        self._tell(counts)

    def act(self, job_ids: Sequence[int], *, using: str) -> dict[str, int]:
        """Act on a batch. Return counts, keyed by the result in words. Locked jobs are "busy"."""
        done = jobs.retry_failed(job_ids, using=using, priorities=specs.priorities())
        return {
            "retried": done["retried"],
            "superseded by newer work": done["superseded"],
            "gone": done["gone"],
            "busy": done["busy"],
        }

    def specs_of_failures(self, keys: list[str] | None, *, using: str) -> list[str] | None:
        """Return the chosen specs. Undeclared ones are accepted if they have failures."""
        if not keys:
            return None
        unknown = set(status.overview(specs=[], using=using).unknown)
        self.chosen_specs([key for key in keys if key not in unknown], using=using)
        return keys

    def _chosen(self, options: dict[str, Any], *, using: str) -> list[int]:
        specs = self.specs_of_failures(options["specs"], using=using)
        if options["signature"] and specs is None:
            specs = list(_failing(using))
        batches: Iterable[list[int]] = status.failure_batches(
            using=using,
            specs=specs,
            signature=options["signature"],
            source_pks=options["units"],
        )
        try:
            return [job_id for batch in batches for job_id in batch]
        # A NUL, or bytes of the shell that are not valid text.
        except (DataError, UnicodeEncodeError) as error:
            raise CommandError(
                f"No failure can have such a --unit or --signature: {faults.said(error)}",
                returncode=CANNOT_START,
            ) from error

    def _ask(self, failures: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError(
                f"{self.verb.capitalize()} {failures}? There is no terminal to ask on: pass --yes.",
                returncode=CANNOT_START,
            )
        answer = input(f"{self.verb.capitalize()} {failures}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.")

    def _tell(self, counts: Counter[str]) -> None:
        busy = counts.pop("busy", 0)
        text = ", ".join(f"{number:,} {what}" for what, number in counts.items())
        if busy:
            raise CommandError(
                f"{text}, {busy:,} locked by an open transaction. Run it again for them."
            )
        self.stdout.write(self.style.SUCCESS(text))


def _failing(using: str) -> list[str]:
    """Return the keys of all specs with open failures, declared here or not."""
    found = status.overview(using=using)
    declared = [spec.key for spec in found.specs if spec.open_failures]
    return sorted({*declared, *found.unknown})
