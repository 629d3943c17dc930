"""``manage.py embed_retry``: start failed rows and tasks afresh. The base of ``embed_dismiss``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pgembed_django.declaration import specs
from pgembed_django.models import Job, Task
from pgembed_django.models.job import OPEN_FAILURE
from pgembed_django.ops import status
from pgembed_django.ops.command import QUEUES, EmbedCommand, cannot_start
from pgembed_django.ops.formatting import progress
from pgembed_django.queue import jobs
from pgembed_django.tasks import triage

BATCH = 1000
RESULTS = {"superseded": "superseded by newer work"}


class Command(EmbedCommand):
    verb = "retry"
    help = (
        "Retries failed rows and tasks, once the cause of the failure is fixed: those of some "
        "specs or queues, of some rows or one function, of one kind of error, or all. Shows what "
        "happened to them: 'superseded by newer work' are rows that have been written since, and "
        "have a job already, or tasks whose key has a newer one; 'gone' are "
        "failures that were settled in another way meanwhile. Failures that come up while it "
        "runs are left alone. "
        "Exit status: 0 done, or nothing to do; 1 some are locked by an open transaction, run it "
        "again; 2 called wrongly."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--queues", **QUEUES)
        parser.add_argument(
            "--function", metavar="PATH", help="Only the failed tasks of this function."
        )
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
        of_jobs = any(options[name] for name in ("specs", "units"))
        of_tasks = any(options[name] for name in ("queues", "function"))
        if not (of_jobs or of_tasks or options["signature"] or options["all"]):
            raise cannot_start(
                "Which failures? Choose some with --specs, --unit, --queues, --function or "
                "--signature, or pass --all. embed_status lists them by kind."
            )
        using = self.chosen_database(options["database"])
        if options["specs"]:
            # Undeclared specs are accepted if they have failures.
            unknown = status.overview(specs=[], using=using).unknown
            declared = [key for key in options["specs"] if key not in unknown]
            self.chosen_specs(declared, using=using)
        queues = self.chosen_queues(options["queues"], using=using)
        # Each is of both kinds, unless it is chosen by what only one of them has.
        rows = [] if of_tasks and not of_jobs else failures(options, using=using)
        tasks = [] if of_jobs and not of_tasks else failed_tasks(options, queues, using=using)
        total = len(rows) + len(tasks)
        text = f"{total:,} open failure{'s' * (total != 1)}"
        if options["dry_run"] or not total:
            self.stdout.write(f"{text}." if total else "No open failure matches.")
            return
        if not options["yes"]:
            self._ask(f"{self.verb.capitalize()} {text}?")
        counts: Counter[str] = Counter()
        with progress(
            total,
            what=self.verb.capitalize(),
            unit="failures",
            out=self.stderr,
            is_quiet=options["verbosity"] < 1,
        ) as show:
            done = 0
            for ids, act in ((rows, self.act), (tasks, self.act_on_tasks)):
                for start in range(0, len(ids), BATCH):
                    counts.update(act(ids[start : start + BATCH], using=using))
                    show(done + start + BATCH)
                done += len(ids)
        busy = counts.pop("busy")
        told = ", ".join(f"{number:,} {RESULTS.get(what, what)}" for what, number in counts.items())
        if busy:
            raise CommandError(
                f"{told}, {busy:,} locked by an open transaction. Run it again for them."
            )
        self.stdout.write(self.style.SUCCESS(told))

    def act(self, job_ids: Sequence[int], *, using: str) -> dict[str, int]:
        """Act on a batch. Return counts, keyed by the result."""
        done = jobs.retry_failed(job_ids, using=using, priorities=specs.priorities())
        return {result: done[result] for result in ("retried", "superseded", "gone", "busy")}

    def act_on_tasks(self, task_ids: Sequence[int], *, using: str) -> dict[str, int]:
        """Act on a batch of tasks. Return counts, keyed by the result."""
        done = triage.retry_failed(task_ids, using=using)
        return {result: done[result] for result in ("retried", "superseded", "gone", "busy")}

    def _ask(self, question: str) -> None:
        if not sys.stdin.isatty():
            raise cannot_start(f"{question} There is no terminal to ask on: pass --yes.")
        if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.")


def failures(options: dict[str, Any], *, using: str) -> list[int]:
    """Return the ids of the open failures that were chosen."""
    found = Job.objects.using(using).filter(OPEN_FAILURE)
    for option, lookup in (("specs", "spec__in"), ("units", "source_pk__in")):
        if options[option]:
            found = found.filter(**{lookup: options[option]})
    if options["signature"]:
        found = found.filter(signature=options["signature"])
    return list(found.values_list("pk", flat=True))


def failed_tasks(options: dict[str, Any], queues: list[str] | None, *, using: str) -> list[int]:
    """Return the ids of the failed tasks that were chosen."""
    found = Task.objects.using(using).filter(OPEN_FAILURE)
    if queues is not None:
        found = found.filter(queue__in=queues)
    for option in ("function", "signature"):
        if options[option]:
            found = found.filter(**{option: options[option]})
    return list(found.values_list("pk", flat=True))
