"""``manage.py embed_status``: show whether search is fresh, what waits, and what fails."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from pgembed_django import events
from pgembed_django.core import faults
from pgembed_django.core.moments import seconds_between
from pgembed_django.declaration.specs import Spec
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.ops.formatting import above_zero, duration

CLEAR = "\033[H\033[2J"
SAMPLE_CHARACTERS = 100
EXACT_SECONDS = 9.5
"""From this time on, seconds are written without decimals."""

COLOURS = {"fresh": "SUCCESS", "indexing": "NOTICE", "degraded": "WARNING", "stalled": "ERROR"}


class Command(EmbedCommand):
    help = (
        "Shows for each spec whether search is fresh, and why not: how many rows are covered, "
        "what is waiting and since when, how fast it goes, what fails; then workers and providers. "
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
            type=above_zero,
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
            type=above_zero,
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
        try:
            self._look(chosen, options)
            while options["watch"] is not None:
                time.sleep(options["watch"])
                self._look(chosen, options)
        except KeyboardInterrupt:
            if options["watch"] is None:
                raise

    def _look(self, chosen: list[Spec], options: dict[str, Any]) -> None:
        try:
            found = status.overview(using=self.using, specs=chosen, is_exact=options["exact"])
            kinds = status.failure_kinds(using=self.using, specs=options["specs"], limit=10)
        except (OperationalError, InterfaceError) as error:
            message = f"Cannot read the database {self.using!r}: {faults.said(error)}"
            if options["watch"] is None:
                raise cannot_start(message) from error
            # The database may be back at the next look.
            connections[self.using].close_if_unusable_or_obsolete()
            self.stderr.write(message)
            return
        if options["specs"]:
            found = dataclasses.replace(found, unknown={})
        if options["json"]:
            told = {
                **dataclasses.asdict(found),
                "verdict": dataclasses.asdict(found.verdict),
                "failures": dataclasses.asdict(kinds),
            }
            indent = 2 if options["watch"] is None else None
            self.stdout.write(json.dumps(told, default=in_utc, indent=indent))
        else:
            if options["watch"] is not None and self.stdout.isatty():
                self.stdout.write(CLEAR, ending="")
            for line in lines(found, kinds, self.style):
                self.stdout.write(line)
        self.stdout.flush()
        reasons = {spec.key: list(failing(spec, options)) for spec in found.specs}
        if options["fail_on_open_failures"]:
            reasons |= {key: [_failures(count)] for key, count in found.unknown.items()}
        if said := [f"{key}: {', '.join(why)}" for key, why in reasons.items() if why]:
            raise CommandError("; ".join(said))


def lines(found: status.Overview, kinds: status.FailureKinds, style: Any) -> Iterator[str]:
    """Yield the lines, coloured by ``style``: the ``style`` of a command."""
    for spec in found.specs:
        colour = getattr(style, COLOURS[spec.verdict.state])
        yield f"{style.MIGRATE_HEADING(spec.key)}  {colour(spec.verdict.state)}"
        yield f"  {spec.verdict.reason}"
        for space in (spec.active, spec.building):
            if space:
                what = "searched" if space.is_active else "building"
                made = f"space {space.id}, {space.model}, {space.dimensions} dimensions"
                yield f"  {what}   {made}: {space.coverage or 'coverage unknown'}{_eta(space)}"
        yield f"  waiting    {_waiting(spec)}"
        speed = f"{spec.units_per_second:.1f} rows a second"
        if spec.p50_seconds is not None and spec.p99_seconds is not None:
            p50, p99 = _took(spec.p50_seconds), _took(spec.p99_seconds)
            speed += f"; from write to vector {p50} (p50), {p99} (p99)"
        yield f"  speed      {speed}{_eta(spec)}"
        dismissed = f"; {spec.dismissed} dismissed" if spec.dismissed else ""
        yield f"  failures   {spec.open_failures}{dismissed}"
        yield from _kinds(spec.key, kinds)
    for key, count in found.unknown.items():
        yield f"{style.MIGRATE_HEADING(key)}  is not declared here"
        yield f"  failures   {count}"
        yield from _kinds(key, kinds)
    yield style.MIGRATE_HEADING("Workers")
    yield from [_worker(worker) for worker in found.workers] or ["  none is running"]
    yield style.MIGRATE_HEADING("Providers")
    for provider in found.providers:
        yield _provider(provider, found.at)


def _eta(of: status.SpaceStatus | status.SpecStatus) -> str:
    return f", about {duration(of.eta_seconds)} to go" if of.eta_seconds else ""


def _waiting(spec: status.SpecStatus) -> str:
    parts = []
    for backlog in spec.backlog:
        later = f" ({backlog.later} backing off)" if backlog.later else ""
        parts.append(f"{backlog.waiting} {backlog.kind.replace('_', ' ')}{later}")
    if (ripples := spec.ripples).waiting:
        so_far = f" ({ripples.units} jobs so far)" if ripples.units else ""
        parts.append(f"related changes to expand: {ripples.waiting}{so_far}")
    text = ", ".join(parts) or "nothing"
    if spec.running:
        text += f"; {spec.running} running"
    if spec.oldest_change_seconds is not None:
        text += f"; oldest change {duration(spec.oldest_change_seconds)}"
    return text


def _took(seconds: float) -> str:
    return duration(seconds) if seconds >= EXACT_SECONDS else f"{seconds:.2g} s"


def _kinds(key: str, kinds: status.FailureKinds) -> Iterator[str]:
    for kind in kinds.kinds:
        if kind.spec == key:
            sample = events.in_a_line(kind.sample)[:SAMPLE_CHARACTERS]
            yield f"    {kind.count!s:>8}  {events.in_a_line(kind.signature)}"
            # In the project's time zone, as in the admin and in the log.
            last = aware(kind.last_at).astimezone(timezone.get_current_timezone())
            yield f"              last {last:%Y-%m-%d %H:%M:%S}: {sample}"


def _worker(worker: status.WorkerStatus) -> str:
    held = ", ".join(
        f"{held.jobs} of {held.spec} for {duration(held.oldest_seconds)}" for held in worker.held
    )
    text = f"  {worker.name}  " + "believed dead, " * (not worker.is_live)
    if worker.silent_seconds is not None:
        text += f"last seen {duration(worker.silent_seconds)} ago, "
    aside = "".join(f", has set {key} aside: {why}" for key, why in worker.aside.items())
    return f"{text}holds {held or 'nothing'}{aside}"


def _provider(provider: status.ProviderStatus, now: datetime) -> str:
    text = f"  {provider.alias}  {provider.model}"
    if provider.paused_by:
        text += f", paused by {provider.paused_by}"
    if provider.out_of_reach_of:
        workers = "all workers" if provider.is_down else ", ".join(provider.out_of_reach_of)
        text += f", down for {workers}"
        if provider.retries_at:
            wait = seconds_between(now, provider.retries_at)
            text += f", next try in {duration(wait)}" if wait >= 1 else ", next try is due"
        text += f": {provider.reason}"
    return text


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


def percentage(value: str) -> float:
    """Parse a percentage. A share such as 0.99 is refused: one percent is never meant."""
    try:
        parsed = float(value)
    except ValueError:
        parsed = 0.0
    if not 1 < parsed <= 100:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not a percentage above 1 and up to 100, such as 99.5"
        )
    return parsed


def aware(moment: datetime) -> datetime:
    """Return a time with its offset. With USE_TZ off it is in the project's time zone."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def in_utc(moment: datetime) -> str:
    """Return a time in UTC, for JSON."""
    return str(aware(moment).astimezone(UTC))
