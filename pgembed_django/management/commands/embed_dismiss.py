"""``manage.py embed_dismiss``: dismiss failures without retrying them."""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django.management.commands import embed_retry
from pgembed_django.queue import jobs
from pgembed_django.tasks.table import TASKS


class Command(embed_retry.Command):
    verb = "dismiss"
    help = (
        "Dismisses failures that need no fix: those of some specs or queues, of some rows or one "
        "function, of one kind of error, or all. Their rows are not tried again for a week, unless "
        "they are written. Searches still find what is stored of them. Tasks are deleted in a "
        "week. "
        "Exit status: 0 done, or nothing to do; 1 some are locked by an open transaction, run it "
        "again; 2 called wrongly."
    )

    def act(self, job_ids: Sequence[int], *, using: str) -> dict[str, int]:
        done = jobs.dismiss(job_ids, using=using)
        return {result: done[result] for result in ("dismissed", "gone", "busy")}

    def act_on_tasks(self, task_ids: Sequence[int], *, using: str) -> dict[str, int]:
        done = jobs.dismiss(task_ids, using=using, table=TASKS)
        return {result: done[result] for result in ("dismissed", "gone", "busy")}
