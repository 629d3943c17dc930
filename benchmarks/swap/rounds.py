"""One round: a plain backfill, a calm, a session that counts, and the swap, under one load."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from django.conf import settings as django_settings
from django.db import connection
from django.db.models import Q

from benchmarks import swap
from benchmarks.search import installed
from benchmarks.soak import quiet
from benchmarks.soak.processes import Workers
from benchmarks.swap import counting
from benchmarks.swap.looking import USING, Looks, active, spec
from benchmarks.swap.writing import Writer
from pgembed_django import spaces
from pgembed_django.core import database
from pgembed_django.models import Job, ScanCursor, Space, StagedVector
from pgembed_django.spaces import indexes, reconcile

COVER_SECONDS = 0.25
"""The interval at which the rows that can be found are counted."""

COVER_SHARE = 0.1
"""At most this share of the time goes into counting, which reads the whole table."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured, and what was wrong in it."""

    figures: dict[str, float]
    wrong: dict[str, list[str]]


class Swapping:
    """The rows, and the workers that are killed and started again."""

    def __init__(self, options: argparse.Namespace, workers: Workers) -> None:
        self.options = options
        self.workers = workers
        self.rows = installed.articles(options.rows)
        self._kills = 0

    def round(self, number: int) -> Round:
        """Backfill, wait, wait beside a session that counts, swap, and print a line of figures."""
        self._kills = 0
        self._empty()
        writer = Writer(rows=self.rows, per_second=self.options.writes, seed=number)
        self._deploy(self.options.widths[0])
        self._until(Looks(), self._is_full, kills=self.options.kills)
        old = active()
        assert old
        filled = (_now() - old.created_at).total_seconds()
        calm = Looks()
        ends = time.monotonic() + self.options.calm_seconds
        self._until(calm, lambda _: time.monotonic() > ends)
        before = calm.least_covered
        beside = Looks(calm.questions)
        ends = time.monotonic() + self.options.calm_seconds
        with counting.session():
            self._until(beside, lambda _: time.monotonic() > ends)
        looks = Looks(beside.questions)
        self._deploy(self.options.widths[1])
        self._until(looks, lambda _: active() != old, kills=self.options.kills)
        written = writer.stop()
        new = active()
        assert new
        assert new.activated_at
        swapped = (new.activated_at - new.created_at).total_seconds()
        quiet.drain(meanwhile=self.workers.tend)
        figures = {
            "backfill, seconds": filled,
            "swap, seconds": swapped,
            "times the backfill": swapped / filled,
            "calm: search p50, ms": _ms(calm, 0.5),
            "calm: search p99, ms": _ms(calm, 0.99),
            "counting: search p50, ms": _ms(beside, 0.5),
            "counting: search p99, ms": _ms(beside, 0.99),
            "swap: search p50, ms": _ms(looks, 0.5),
            "swap: search p99, ms": _ms(looks, 0.99),
            "times the calm's p99": _ms(looks, 0.99) / _ms(calm, 0.99),
            "times the p99 beside a count": _ms(looks, 0.99) / _ms(beside, 0.99),
            "counting: times the calm's p99": _ms(beside, 0.99) / _ms(calm, 0.99),
            "searches during the swap": len(looks.seconds),
            "their vectors that were checked": looks.checked,
            "rows that were written": written,
            "workers that were killed": self._kills,
        }
        wrong = {
            "searches with vectors of another space": calm.mixed + beside.mixed + looks.mixed,
            "searches without vectors": calm.degraded + beside.degraded + looks.degraded,
            "searches that found too little": calm.short + beside.short + looks.short,
            "times the searched space held fewer rows than before": (
                [f"{looks.least_covered} of {before}"]
                if (looks.least_covered or 0) < (before or 0)
                else []
            ),
            "rows stale or without vectors at the end": self._gaps(new),
            "jobs failed or left": [str(job) for job in Job.objects.exclude(status="succeeded")],
        }
        print(
            f"{number + 1}: backfill {filled:.1f} s, swap {swapped:.1f} s, "
            f"p99 {figures['calm: search p99, ms']:.0f}, "
            f"beside a count {figures['counting: search p99, ms']:.0f}, "
            f"in the swap {figures['swap: search p99, ms']:.0f} ms",
            flush=True,
        )
        return Round(figures, wrong)

    def _until(self, looks: Looks, is_over: Callable[[Looks], bool], *, kills: int = 0) -> None:
        """Search at a steady pace, and kill workers on the way."""
        covered_at = time.monotonic()
        marks = [max(self.rows * number // kills, 1) for number in range(kills)]
        while not is_over(looks):
            began = time.monotonic()
            self.workers.tend()
            if active():
                looks.search()
            if began >= covered_at:
                started = time.monotonic()
                looks.cover()
                ended = time.monotonic()
                covered_at = ended + max(COVER_SECONDS, (ended - started) / COVER_SHARE)
                if marks and self._filled() >= marks[0]:
                    marks.pop(0)
                    self.workers.signal(len(marks) % self.options.workers, signal.SIGKILL)
                    self._kills += 1
            time.sleep(max(began + 1 / self.options.searches - time.monotonic(), 0.0))

    def _filled(self) -> int:
        """Return how many vectors the newest live space has."""
        live = spaces.live(spec(), using=USING)
        newest = max(live, key=lambda space: space.pk, default=None)
        chunks = spec().embedding_model._base_manager.filter(space=newest)
        return chunks.exclude(embedding=None).count()

    def _is_full(self, looks: Looks) -> bool:
        space = active()
        return (
            space is not None
            and looks.covered == self.rows
            and indexes.is_complete(spec(), space, using=USING)
            and spaces.last_gap(spec(), space, using=USING) is None
        )

    def _deploy(self, width: int) -> None:
        """Change the setting for all: restart the workers, and let searches read it."""
        told = swap.settings(width)
        os.environ["BENCHMARK_SETTINGS"] = json.dumps(told)
        django_settings.PGEMBED_PROVIDERS = told["PGEMBED_PROVIDERS"]
        self.workers.stop()
        self.workers.tend()

    def _gaps(self, space: Space) -> list[str]:
        """Return the rows whose vectors in the space are missing or not those of their text."""
        missing = [f"{pk}: missing" for pk in reconcile.missing(spec(), [space], Q(), using=USING)]
        return missing + [f"{pk}: stale" for pk in _stale(space)]

    def _empty(self) -> None:
        """Delete everything but the source rows."""
        self.workers.stop()
        for space in Space.objects.filter(spec=spec().key):
            indexes.drop(spec(), space, using=USING)
        tables = [spec().embedding_model, Space, Job, StagedVector, ScanCursor]
        with connection.cursor() as cursor:
            for model in tables:
                cursor.execute(
                    f"TRUNCATE {connection.ops.quote_name(model._meta.db_table)} CASCADE"
                )


def _stale(space: Space) -> list[str]:
    """Return all rows whose stored vectors are those of another text."""
    found, end = reconcile.stale(spec(), [space], Q(), using=USING)
    while end is not None:
        more, end = reconcile.stale(spec(), [space], Q(pk__gt=end), using=USING)
        found += more
    return found


def _now() -> datetime:
    """Return the database's time, by which spaces are dated."""
    [(now,)] = database.rows(USING, "SELECT clock_timestamp()")
    return cast(datetime, now)


def _ms(looks: Looks, share: float) -> float:
    ordered = sorted(looks.seconds)
    return ordered[max(int(len(ordered) * share) - 1, 0)] * 1000
