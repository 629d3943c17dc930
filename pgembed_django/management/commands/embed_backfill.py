"""``manage.py embed_backfill``: embed many rows at once, behind everything else."""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import FieldError, ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, DataError, ProgrammingError

from pgembed_django import faults, spaces
from pgembed_django.exceptions import ProviderError
from pgembed_django.maintenance.backfill import PAGE_ROWS, TRIES, Backfill
from pgembed_django.ops import status
from pgembed_django.ops.command import CANNOT_START, EmbedCommand
from pgembed_django.ops.formatting import Progress, above_zero, rows_text
from pgembed_django.specs import Spec

LOOK_SECONDS = 0.5
SHOWN_KEYS = 20
TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

UNUSABLE = (
    FieldError,
    ValidationError,
    ValueError,
    OverflowError,
    DataError,
    ProgrammingError,
)
"""What a condition raises that no row can be compared with."""


class Command(EmbedCommand):
    stopped = (
        "Stopped. Workers embed what is queued. Run the same command again to continue with the "
        "rest."
    )
    help = (
        "Queues rows without vectors, behind all other work and never more than 10,000 at a "
        "time, and waits until the workers have embedded them. Workers do the same by "
        "themselves every few minutes: this is for some rows only (--where), with progress, "
        "or to embed rows again whose text is the same (--force). "
        "After Ctrl-C, SIGTERM or kill, the same command continues where it stopped. To see "
        "first what it would embed and what that costs: --dry-run. "
        "Exit status: 0 done; 1 not done, or with --force not all, because open transactions lock "
        "some rows: the message says why; 2 could not start; 130 stopped by Ctrl-C or SIGTERM."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("spec", nargs="*", metavar="SPEC", help="The same as --specs.")
        parser.add_argument(
            "--where",
            action="append",
            default=[],
            type=lookup,
            metavar="FIELD=VALUE",
            help=(
                "Only rows like this, for example category__name=news or "
                "published_time__gte=2026-01-01. If given several times, all of them must match."
            ),
        )
        parser.add_argument(
            "--force", action="store_true", help="Also rows that have their vectors already."
        )
        parser.add_argument("--no-wait", action="store_true", help="Exit once all rows are queued.")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="Read the texts, count rows, chunks and tokens, and queue nothing.",
        )
        parser.add_argument(
            "--price",
            type=above_zero,
            metavar="N",
            help="With --dry-run: the price of a million tokens. Shows what all tokens would cost.",
        )

    def handle(self, **options: Any) -> None:
        if options["price"] and not options["dry_run"]:
            raise CommandError("--price needs --dry-run.", returncode=CANNOT_START)
        if options["dry_run"] and options["no_wait"]:
            raise CommandError(
                "--dry-run cannot be combined with --no-wait.", returncode=CANNOT_START
            )
        self.using = self.chosen_database(options["database"])
        chosen = self.chosen_specs([*(options["specs"] or ()), *options["spec"]], using=self.using)
        self.refuse_missing_tables(chosen.values(), using=self.using)
        self.refuse_hidden_rows(chosen.values(), using=self.using)
        if options["dry_run"]:
            for spec in chosen.values():
                try:
                    self._estimate(self._backfill(spec, options), options["price"])
                except ProviderError as error:
                    raise CommandError(str(error)) from error
            return
        with stopping_on_sigterm():
            self._run(chosen, options)

    def _run(self, chosen: dict[str, Spec], options: dict[str, Any]) -> None:
        filled: list[Backfill] = []
        try:
            for spec in chosen.values():
                if not spaces.live(spec, using=self.using):
                    raise CommandError(
                        f"{spec.key} has no space yet. Start manage.py embed_worker.",
                        returncode=CANNOT_START,
                    )
                filled.append(self._backfill(spec, options))
                self._fill(filled[-1], options)
        except (KeyboardInterrupt, DatabaseError):
            if told := told_of_left(filled):
                self.stderr.write(told)
            raise
        if told := told_of_left(filled, and_rows_after=True):
            raise CommandError(told)

    def _backfill(self, spec: Spec, options: dict[str, Any]) -> Backfill:
        where, force = options["where"], options["force"]
        backfill = Backfill(spec, using=self.using, where=where, force=force)
        try:
            backfill.rows.exists()
        except UNUSABLE as error:
            reason = " ".join(getattr(error, "messages", [faults.said(error)]))
            raise CommandError(
                f"--where on {spec.model.__name__}: {reason}", returncode=CANNOT_START
            ) from error
        return backfill

    def _fill(self, backfill: Backfill, options: dict[str, Any]) -> None:
        self._tell_resumed(backfill)
        with Progress(
            backfill.keys_left.count(),
            what=backfill.spec.key,
            unit="rows",
            out=self.stderr,
            is_quiet=options["verbosity"] < 1,
        ) as progress:
            looked_at, queued = self._queue(backfill, progress)
            self._warn(backfill)
            while not options["no_wait"] and (unfinished := backfill.unfinished):
                progress.show(looked_at - unfinished)
                time.sleep(LOOK_SECONDS)
            progress.show(looked_at)
        how = "queued" if options["no_wait"] else "embedded or failed (see embed_status)"
        self.stdout.write(
            self.style.SUCCESS(
                f"{backfill.spec.key}: checked {rows_text(looked_at)}, {queued:,} {how}."
            )
        )

    def _tell_resumed(self, backfill: Backfill) -> None:
        if backfill.resumed_from is None:
            return
        left = len(backfill.left)
        self.stdout.write(
            f"{backfill.spec.key}: continuing after {backfill.resumed_from}"
            f"{f', with {rows_text(left)} locked before' * bool(left)}."
        )

    def _queue(self, backfill: Backfill, progress: Progress) -> tuple[int, int]:
        """Queue the rows. Return how many were looked at, and how many of them queued.

        Rows that stay locked are left in ``backfill.left``.
        """
        looked_at = queued = in_vain = 0
        while True:
            step = backfill.step()
            if step is None:  # the backlog is full
                progress.show(looked_at - backfill.unfinished)
                time.sleep(LOOK_SECONDS)
                continue
            looked_at += step.rows
            queued += step.enqueued
            progress.show(looked_at - backfill.unfinished)
            in_vain = in_vain + 1 if step.is_in_vain else 0
            # By then each locked row was tried at least once.
            tries = max(TRIES, math.ceil(len(backfill.left) / PAGE_ROWS))
            if step.is_last or in_vain >= tries:
                return looked_at, queued
            if in_vain:
                time.sleep(LOOK_SECONDS)  # most writers commit soon

    def _warn(self, backfill: Backfill) -> None:
        if not backfill.waiting:
            return
        [found] = status.overview(specs=[backfill.spec], using=self.using).specs
        if not found.workers:
            self.stderr.write("No worker is running: start manage.py embed_worker.")

    def _estimate(self, backfill: Backfill, price: float | None) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(backfill.spec.key))
        for found in backfill.estimates():
            text = (
                f"  {found.model}: {found.rows:,} rows, {found.chunks:,} chunks, "
                f"about {found.tokens:,} tokens"
            )
            if price is not None:
                text += f", costs {roughly(found.tokens * price / 1e6)}"
            if found.errors:
                text += f"; the text method fails for {found.errors:,} rows"
            self.stdout.write(text)


def lookup(value: object) -> tuple[str, Any]:
    """Parse FIELD=VALUE of ``--where``. Django converts the value to the field's type."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value
    name, equals, text = str(value).partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{value!r} is not of the form FIELD=VALUE")
    if name.endswith("__isnull"):
        if text.lower() not in TRUTHS:
            raise argparse.ArgumentTypeError(f"{value!r}: {text!r} is not true or false")
        return name, TRUTHS[text.lower()]
    if name.endswith("__in"):
        return name, text.split(",")
    if name.endswith("__range"):
        if text.count(",") != 1:
            raise argparse.ArgumentTypeError(f"{value!r}: a range is two values with a comma")
        return name, text.split(",")
    return name, text


def told_of_left(filled: Iterable[Backfill], *, and_rows_after: bool = False) -> str:
    """Return in words which rows were locked and not queued, and how to go on. Empty: none."""
    lines = []
    for one in filled:
        if not one.left:
            continue
        keys = ", ".join(one.left[:SHOWN_KEYS]) + " and so on" * (len(one.left) > SHOWN_KEYS)
        line = f"{one.spec.key}: {rows_text(len(one.left))} locked by an open transaction "
        line += f"and not queued yet: {keys}. "
        if and_rows_after and (rows := one.keys_left.count()):
            line += f"{rows:,} rows after them are not checked yet. "
        lines.append(f"{line}Run the same command again to continue.")
    return "\n".join(lines)


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: it ends the command with a message, and not in a statement."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def roughly(cost: float) -> str:
    """Return an amount of money as text, in a currency with cents."""
    return "less than 0.01" if 0 < cost < 0.01 else f"about {cost:,.2f}"
