"""``manage.py embed_status``: show whether search is fresh, what waits, and what fails."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from pgembed_django import faults
from pgembed_django.management.telling import tell
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, seconds
from pgembed_django.ops.stoppable import CANNOT_START
from pgembed_django.ops.verdicts import duration
from pgembed_django.specs import Spec

CLEAR = "\033[H\033[2J"


class Command(EmbedCommand):
    help = (
        "Tells for each spec whether search is fresh, and why not: how many rows are covered, "
        "what waits and since when, how fast it goes, what fails; then workers and providers. "
        "It reads little, whatever the tables hold: counts end with a + where there are more, "
        "and 'about' is a sample. The --fail-… options make its exit status an answer for scripts "
        "and probes. Exit status: 0; 1 one of them holds of a spec; 2 could not read the status."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="As JSON, times in UTC.")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=2.0,
            type=seconds,
            metavar="SECONDS",
            help="Again and again, every 2 seconds unless given, until Ctrl-C.",
        )
        parser.add_argument(
            "--fail-on-open-failures", action="store_true", help="Exit with 1 if rows have failed."
        )
        parser.add_argument(
            "--fail-below-coverage",
            type=percentage,
            metavar="PERCENT",
            help="Exit with 1 if a search finds less of the rows, for example 99.5.",
        )
        parser.add_argument(
            "--fail-above-oldest-seconds",
            type=seconds,
            metavar="SECONDS",
            help="Exit with 1 if a change has been waiting for its vectors for longer.",
        )
        parser.add_argument(
            "--exact",
            action="store_true",
            help="Count the coverage of large tables too, which reads them.",
        )

    def handle(self, **options: Any) -> None:
        self.using = self.chosen_database(options["database"], writes=False)
        chosen = list(self.chosen_specs(options["specs"], using=self.using).values())
        if options["watch"] is None:
            self._look(chosen, options)
        # Ctrl-C ends --watch.
        with suppress(KeyboardInterrupt):
            while options["watch"] is not None:
                self._look(chosen, options)
                time.sleep(options["watch"])

    def _look(self, chosen: list[Spec], options: dict[str, Any]) -> None:
        try:
            found = status.overview(using=self.using, specs=chosen, is_exact=options["exact"])
            kinds = status.failure_kinds(using=self.using, specs=options["specs"], limit=10)
        except (OperationalError, InterfaceError) as error:
            message = f"Cannot look into the database {self.using!r}: {faults.said(error)}"
            if options["watch"] is None:
                raise CommandError(message, returncode=CANNOT_START) from error
            # The database may be back at the next look.
            connections[self.using].close_if_unusable_or_obsolete()
            self.stderr.write(message)
            return
        if options["specs"]:
            found = dataclasses.replace(found, unknown={})
        self._write(found, kinds, options)
        self.stdout.flush()
        self._judge(found, options)

    def _write(
        self, found: status.Overview, kinds: status.FailureKinds, options: dict[str, Any]
    ) -> None:
        if options["json"]:
            told = {
                **dataclasses.asdict(found),
                "verdict": dataclasses.asdict(found.verdict),
                "failures": dataclasses.asdict(kinds),
            }
            indent = 2 if options["watch"] is None else None
            self.stdout.write(json.dumps(told, default=in_utc, indent=indent))
            return
        if options["watch"] is not None and self.stdout.isatty():
            self.stdout.write(CLEAR, ending="")
        for line in tell(found, kinds, self.style):
            self.stdout.write(line)

    def _judge(self, found: status.Overview, options: dict[str, Any]) -> None:
        reasons = {spec.key: list(failing(spec, options)) for spec in found.specs}
        if options["fail_on_open_failures"]:
            reasons |= {key: [_failures(count)] for key, count in found.unknown.items()}
        if told := [f"{key}: {', '.join(why)}" for key, why in reasons.items() if why]:
            raise CommandError("; ".join(told))


def failing(spec: status.SpecStatus, options: dict[str, Any]) -> Iterator[str]:
    """Yield which of the --fail-… options hold of a spec. None does of what is not known."""
    if options["fail_on_open_failures"] and spec.open_failures:
        yield _failures(spec.open_failures)
    if percent := options["fail_below_coverage"]:
        coverage = spec.active.coverage if spec.active else None
        if spec.active is None:
            yield "coverage 0 %, nothing was embedded yet"
        elif coverage and coverage.ratio < percent / 100:
            yield f"coverage {coverage}"
    longest, oldest = options["fail_above_oldest_seconds"], spec.oldest_change_seconds
    if longest and oldest and oldest > longest:
        yield f"the oldest change has waited {duration(oldest)}"


def _failures(count: status.Count) -> str:
    return f"{count} open failure{'s' * (count != status.Count(1))}"


def percentage(value: object) -> float:
    """Parse a percentage. A share such as 0.99 is refused: nobody means less than one percent."""
    try:
        parsed = float(str(value))
    except ValueError:
        parsed = 0.0
    if not 1 < parsed <= 100:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not a percentage above 1 and up to 100, such as 99.5"
        )
    return parsed


def in_utc(moment: datetime) -> str:
    """Return a time in UTC, for JSON. With USE_TZ off it is naive, in the project's time zone."""
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return str(aware.astimezone(UTC))
