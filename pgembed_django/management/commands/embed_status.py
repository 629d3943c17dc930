"""``manage.py embed_status``: show whether search is fresh, what waits, and what fails."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from pgembed_django import faults, status
from pgembed_django.management.command import EmbedCommand, seconds
from pgembed_django.management.stoppable import CANNOT_START
from pgembed_django.management.telling import tell
from pgembed_django.specs import Spec
from pgembed_django.status import fail_if

CLEAR = "\033[H\033[2J"


class Command(EmbedCommand):
    help = (
        "Tells for each spec whether search is fresh, and why not: how many rows are covered, "
        "what waits and since when, how fast it goes, what fails; then workers and providers. "
        "It reads little, whatever the tables hold: counts end with a + where there are more, "
        "and 'about' is a sample. With --fail-if its exit status is an answer for scripts and "
        "probes. Exit status: 0; 1 the condition of --fail-if holds; 2 could not read the status."
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
            "--fail-if",
            type=condition,
            metavar="CONDITION",
            help=(
                "Exit with 1 if this holds of any spec, for example 'oldest>5m or failures>0 or "
                f"coverage<0.99'. There are {', '.join(fail_if.NAMES)}; times in s, m, h or d."
            ),
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
        self._judge(found, options["fail_if"])

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

    def _judge(self, found: status.Overview, wanted: fail_if.Condition | None) -> None:
        if wanted is None:
            return
        reasons = {spec.key: wanted.reasons(spec) for spec in found.specs}
        for key, failures in found.unknown.items():
            reasons[key] = wanted.reasons_of_undeclared(failures)
        told = [f"{key}: {' and '.join(holding)}" for key, holding in reasons.items() if holding]
        if told:
            raise CommandError("; ".join(told))


def in_utc(moment: datetime) -> str:
    """Return a time in UTC, for JSON. With USE_TZ off it is naive, in the project's time zone."""
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return str(aware.astimezone(UTC))


def condition(given: object) -> fail_if.Condition:
    """Parse --fail-if."""
    if isinstance(given, fail_if.Condition):
        return given
    try:
        return fail_if.parse(str(given))
    except fail_if.BadCondition as error:
        raise argparse.ArgumentTypeError(str(error)) from error
