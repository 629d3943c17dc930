"""``manage.py embed_reconcile``: look for gaps now, instead of waiting for the workers."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from pgembed_django import spaces
from pgembed_django.core import faults
from pgembed_django.declaration import specs
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.ops.formatting import progress
from pgembed_django.queue import jobs
from pgembed_django.spaces import reconcile

TRIES = 100
LOOK_SECONDS = 0.05


class Command(EmbedCommand):
    help = (
        "Checks every row now: rows without vectors, and vectors without a row. What it finds "
        "is queued behind the writes, and the workers embed it. They check by themselves, every "
        "PGEMBED_RECONCILE_SECONDS. With --deep it also reads every text and compares it with "
        "the one that was embedded: after a restore, or after writes with triggers disabled. "
        "Run it as often as you like: nothing is queued twice. "
        "Exit status: 0 checked everything; 1 the backlog is full or the table locked, the "
        "workers continue from there; 2 could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--deep",
            action="store_true",
            help="Also read every text, and find those that changed without the triggers.",
        )

    def handle(self, **options: Any) -> None:
        using = self.chosen_database(options["database"])
        scans = reconcile.ALL_SCANS if options["deep"] else reconcile.CHEAP_SCANS
        unfinished = []
        chosen = self.chosen_specs(options["specs"], using=using).values()
        self.require_rows(chosen, using=using)
        for spec in chosen:
            if not spaces.live(spec, using=using):
                raise cannot_start(
                    f"{spec.key} has no space yet: start manage.py embed_worker once."
                )
            found = 0
            for scan in scans:
                reconcile.restart(spec, scan, using=using)
                with progress(
                    spec.model._base_manager.using(using).count() if options["verbosity"] else 0,
                    what=f"{spec.key}, {scan}",
                    unit="rows",
                    out=self.stderr,
                    is_quiet=options["verbosity"] < 1,
                ) as show:
                    pages = 0
                    while page := _page(spec, scan, using=using):
                        if page.enqueued:
                            jobs.nudge(using=using)
                        found += page.enqueued
                        pages += 1
                        show(pages * reconcile.PAGE_ROWS)
                        if page.is_last:
                            break
                if page is None:
                    unfinished.append(f"{spec.key} ({scan})")
            self.stdout.write(f"{spec.key}: {found:,} rows queued")
        if unfinished:
            raise CommandError(
                f"Not finished: {', '.join(unfinished)}. The backlog is full, or the table is "
                "locked. The workers continue from there."
            )


def _page(spec: specs.Spec, scan: str, *, using: str) -> reconcile.Page | None:
    """Return the next page. None: the backlog is full, or the table or the scan is locked."""
    for _ in range(TRIES):
        try:
            page = reconcile.reconcile_page(spec, scan, using=using)
        except DatabaseError as error:
            if not faults.may_pass(error):
                raise
            continue  # with fewer rows
        if page or reconcile.is_backlog_full(spec, using=using):
            return page
        # A worker has locked this scan for a moment.
        time.sleep(LOOK_SECONDS)
    return None
