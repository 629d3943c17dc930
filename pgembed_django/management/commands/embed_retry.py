"""``manage.py embed_retry``: start failed rows afresh."""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django import specs
from pgembed_django.management.triage_command import TriageCommand
from pgembed_django.queue import jobs


class Command(TriageCommand):
    verb = "retry"
    help = (
        "Retries failed rows, once the cause of the failure is fixed: those of some specs, of "
        "some rows, of one kind of error, or all. Says what happened to them: 'superseded by "
        "newer work' are rows that have been written since, and have a job already; 'gone' are "
        "failures that were settled in another way meanwhile. Failures that come up while it "
        "runs are left alone. "
        "Exit status: 0 done, or nothing to do; 1 some are locked by an open write, run it "
        "again; 2 called wrongly."
    )

    def act(self, job_ids: Sequence[int], *, using: str) -> dict[str, int]:
        done = jobs.retry_failed(job_ids, using=using, priorities=specs.priorities())
        return {
            "retried": done.retried,
            "superseded by newer work": done.superseded,
            "gone": done.gone,
            "busy": done.busy,
        }
