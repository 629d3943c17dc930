"""``manage.py embed_backfill``: embed many rows at once, behind everything else."""

from __future__ import annotations

import argparse
import math
import signal
import time
from typing import Any

from django.core.exceptions import FieldError, ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, DataError, ProgrammingError

from pgembed_django import spaces
from pgembed_django.core import faults
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import ProviderError
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.ops.formatting import above_zero, progress, rows_text
from pgembed_django.spaces.backfill import PAGE_ROWS, TRIES, Backfill

LOOK_SECONDS = 0.5
TRUTHS = {"1": True, "true": True, "0": False, "false": False}

UNUSABLE = (FieldError, ValidationError, ValueError, OverflowError, DataError, ProgrammingError)
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

    def run_from_argv(self, argv: list[str]) -> None:
        # SIGTERM ends it like Ctrl-C, with a message.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        super().run_from_argv(argv)

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
            raise cannot_start("--price needs --dry-run.")
        if options["dry_run"] and options["no_wait"]:
            raise cannot_start("--dry-run cannot be combined with --no-wait.")
        self.using = self.chosen_database(options["database"])
        chosen = self.chosen_specs([*(options["specs"] or ()), *options["spec"]], using=self.using)
        self.require_rows(chosen.values(), using=self.using)
        backfills = [self._backfill(spec, options) for spec in chosen.values()]
        if options["dry_run"]:
            for backfill in backfills:
                self._estimate(backfill, options["price"])
            return
        for spec in chosen.values():
            if not spaces.live(spec, using=self.using):
                raise cannot_start(f"{spec.key} has no space yet. Start manage.py embed_worker.")
        try:
            for backfill in backfills:
                self._fill(backfill, options)
        except (KeyboardInterrupt, DatabaseError):
            if locked := _locked(backfills):
                self.stderr.write(locked)
            raise
        if locked := _locked(backfills):
            raise CommandError(locked)

    def _backfill(self, spec: Spec, options: dict[str, Any]) -> Backfill:
        where, force = options["where"], options["force"]
        backfill = Backfill(spec, using=self.using, where=where, force=force)
        try:
            backfill.rows.exists()
        except UNUSABLE as error:
            reason = " ".join(getattr(error, "messages", [faults.said(error)]))
            raise cannot_start(f"--where on {spec.model.__name__}: {reason}") from error
        return backfill

    def _fill(self, backfill: Backfill, options: dict[str, Any]) -> None:
        key = backfill.spec.key
        if backfill.resumed_from is not None:
            locked = f", with {rows_text(len(backfill.left))} locked before" * bool(backfill.left)
            self.stdout.write(f"{key}: continuing after {backfill.resumed_from}{locked}.")
        with progress(
            backfill.keys_left.count(),
            what=key,
            unit="rows",
            out=self.stderr,
            is_quiet=options["verbosity"] < 1,
        ) as show:
            checked = queued = in_vain = 0
            is_last = False
            # By the last try each locked row was tried at least once.
            while not is_last and in_vain < max(TRIES, math.ceil(len(backfill.left) / PAGE_ROWS)):
                step = backfill.step()
                if step is not None:
                    checked += step.rows
                    queued += step.enqueued
                    is_last = step.is_last
                    in_vain = in_vain + 1 if step.is_in_vain else 0
                show(checked - backfill.unfinished)
                if step is None or in_vain:
                    time.sleep(LOOK_SECONDS)  # the backlog is full, or writers will commit soon
            if backfill.waiting:
                [found] = status.overview(specs=[backfill.spec], using=self.using).specs
                if not found.workers:
                    self.stderr.write("No worker is running: start manage.py embed_worker.")
            while not options["no_wait"] and (unfinished := backfill.unfinished):
                show(checked - unfinished)
                time.sleep(LOOK_SECONDS)
            show(checked)
        how = "queued" if options["no_wait"] else "embedded or failed (see embed_status)"
        text = f"{key}: checked {rows_text(checked)}, {queued:,} {how}."
        self.stdout.write(self.style.SUCCESS(text))

    def _estimate(self, backfill: Backfill, price: float | None) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(backfill.spec.key))
        try:
            for found in backfill.estimates():
                text = (
                    f"  {found.model}: {found.rows:,} rows, {found.chunks:,} chunks, "
                    f"about {found.tokens:,} tokens"
                )
                if price is not None:
                    cost = found.tokens * price / 1e6
                    text += (
                        f", costs about {cost:,.2f}" if cost >= 0.01 else ", costs less than 0.01"
                    )
                if found.errors:
                    text += f"; the text method fails for {found.errors:,} rows"
                self.stdout.write(text)
        except ProviderError as error:
            raise CommandError(str(error)) from error


def lookup(value: str) -> tuple[str, Any]:
    """Parse FIELD=VALUE of ``--where``. Django converts the value to the field's type."""
    name, equals, text = value.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{value!r} is not of the form FIELD=VALUE")
    if name.endswith("__isnull"):
        if text.lower() not in TRUTHS:
            raise argparse.ArgumentTypeError(f"{value!r}: {text!r} is not true or false")
        return name, TRUTHS[text.lower()]
    if name.endswith("__range") and text.count(",") != 1:
        raise argparse.ArgumentTypeError(f"{value!r}: a range is two values with a comma")
    return name, text.split(",") if name.endswith(("__in", "__range")) else text


def _locked(backfills: list[Backfill]) -> str:
    """Return in words how many rows were locked and not queued. Empty: none."""
    return "\n".join(
        f"{one.spec.key}: {rows_text(len(one.left))} locked by an open transaction and not queued "
        "yet. Run the same command again to continue with them."
        for one in backfills
        if one.left
    )
