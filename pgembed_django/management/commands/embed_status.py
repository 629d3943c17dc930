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
from pgembed_django.ops.command import QUEUES, EmbedCommand, cannot_start
from pgembed_django.ops.formatting import above_zero, duration
from pgembed_django.tasks.table import TASKS

CLEAR = "\033[H\033[2J"
SAMPLE_CHARACTERS = 100
EXACT_SECONDS = 9.5
"""From this time on, seconds are written without decimals."""

COLOURS = {
    "fresh": "SUCCESS",
    "moving": "SUCCESS",
    "indexing": "NOTICE",
    "degraded": "WARNING",
    "stalled": "ERROR",
}


class Command(EmbedCommand):
    help = (
        "Shows for each spec whether search is fresh, and why not: how many rows are covered, "
        "what is waiting and since when, how fast it goes, what fails; the same for each queue of "
        "tasks; then workers with their models in process, and providers. "
        "It reads little, whatever the tables hold: counts end with a + where there are more, "
        "and 'about' is a sample. The --fail-… options make its exit status an answer for scripts "
        "and probes. Exit status: 0; 1 one of them holds of a spec or a queue; 2 could not read "
        "the status."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--queues", **QUEUES)
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
            "--fail-on-open-failures",
            action="store_true",
            help="Exit with 1 if rows or tasks have failed.",
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
            help="Exit with 1 if a change has been waiting for its vectors for longer, or a task "
            "for its start.",
        )
        parser.add_argument(
            "--exact",
            action="store_true",
            help="Count the coverage of large tables too, which reads them.",
        )

    def handle(self, **options: Any) -> None:
        self.using = self.chosen_database(options["database"], writes=False)
        specs, names = options["specs"], options["queues"]
        found = self.chosen_specs(specs, using=self.using, or_tasks=True)
        chosen = [] if names is not None and not specs else list(found.values())
        queues = [] if specs and names is None else self.chosen_queues(names, using=self.using)
        try:
            self._look(chosen, queues, options)
            while options["watch"] is not None:
                time.sleep(options["watch"])
                self._look(chosen, queues, options)
        except KeyboardInterrupt:
            if options["watch"] is None:
                raise

    def _look(self, chosen: list[Spec], queues: list[str] | None, options: dict[str, Any]) -> None:
        is_partial = options["specs"] or options["queues"] is not None
        keys = [spec.key for spec in chosen] if is_partial else None
        try:
            found = status.overview(
                using=self.using, specs=chosen, queues=queues, is_exact=options["exact"]
            )
            kinds = status.failure_kinds(using=self.using, specs=keys, limit=10)
            tasks = status.failure_kinds(using=self.using, specs=queues, limit=10, table=TASKS)
        except (OperationalError, InterfaceError) as error:
            message = f"Cannot read the database {self.using!r}: {faults.said(error)}"
            if options["watch"] is None:
                raise cannot_start(message) from error
            # The database may be back at the next look.
            connections[self.using].close_if_unusable_or_obsolete()
            self.stderr.write(message)
            return
        if is_partial:
            found = dataclasses.replace(found, unknown={})
        if options["json"]:
            told = {
                **dataclasses.asdict(found),
                "verdict": dataclasses.asdict(found.verdict),
                "failures": dataclasses.asdict(kinds),
                "failed_tasks": dataclasses.asdict(tasks),
            }
            indent = 2 if options["watch"] is None else None
            self.stdout.write(json.dumps(told, default=in_utc, indent=indent))
        else:
            if options["watch"] is not None and self.stdout.isatty():
                self.stdout.write(CLEAR, ending="")
            for line in lines(found, kinds, tasks, self.style):
                self.stdout.write(line)
        self.stdout.flush()
        reasons = {spec.key: list(failing(spec, options)) for spec in found.specs}
        reasons |= {queue.key: list(failing_queue(queue, options)) for queue in found.queues}
        if options["fail_on_open_failures"]:
            reasons |= {key: [_failures(count)] for key, count in found.unknown.items()}
        if said := [f"{key}: {', '.join(why)}" for key, why in reasons.items() if why]:
            raise CommandError("; ".join(said))


def lines(
    found: status.Overview, kinds: status.FailureKinds, tasks: status.FailureKinds, style: Any
) -> Iterator[str]:
    """Yield the lines, coloured by ``style``: the ``style`` of a command.

    ``kinds`` and ``tasks``: the kinds of failures of units, and of tasks.
    """
    for spec in found.specs:
        colour = getattr(style, COLOURS[spec.verdict.state])
        yield f"{style.MIGRATE_HEADING(spec.key)}  {colour(spec.verdict.state)}"
        yield f"  {spec.verdict.reason}"
        for space in (spec.active, spec.building):
            if space:
                what = "searched" if space.is_active else "building"
                made = f"space {space.id}, {space.model}, {space.dimensions} dimensions"
                yield f"  {what}   {made}: {space.coverage or 'coverage unknown'}{_eta(space)}"
        if spec.words is not None:
            yield f"  words      about {spec.words:.0%} in the declared language"
        yield f"  waiting    {_waiting(spec)}"
        yield f"  speed      {_speed(spec, 'rows', 'write to vector')}{_eta(spec)}"
        dismissed = f"; {spec.dismissed} dismissed" if spec.dismissed else ""
        yield f"  failures   {spec.open_failures}{dismissed}"
        yield from _kinds(spec.key, kinds)
    for key, count in found.unknown.items():
        yield f"{style.MIGRATE_HEADING(key)}  is not declared here"
        yield f"  failures   {count}"
        yield from _kinds(key, kinds)
    for queue in found.queues:
        colour = getattr(style, COLOURS[queue.verdict.state])
        yield f"{style.MIGRATE_HEADING(f'queue {queue.key}')}  {colour(queue.verdict.state)}"
        yield f"  {queue.verdict.reason}"
        yield f"  waiting    {_waiting_tasks(queue)}"
        yield f"  speed      {_speed(queue, 'tasks', 'due to start')}"
        dismissed = f"; {queue.dismissed} dismissed" if queue.dismissed else ""
        yield f"  failures   {queue.open_failures}{dismissed}"
        yield from _kinds(queue.key, tasks)
    if found.capture:
        yield style.MIGRATE_HEADING("Write-ahead log")
        yield f"  {_capture(found.capture)}"
    yield style.MIGRATE_HEADING("Workers")
    for worker in found.workers:
        yield _worker(worker)
        yield from map(_executor, worker.executors)
    if not found.workers:
        yield "  none is running"
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


def _waiting_tasks(queue: status.QueueStatus) -> str:
    text = str(queue.waiting) if queue.waiting else "nothing"
    if queue.later:
        text += f" ({queue.later} not due yet)"
    if queue.running:
        text += f"; {queue.running} running"
    if queue.oldest_seconds:
        text += f"; longest due for {duration(queue.oldest_seconds)}"
    return text


def _speed(of: status.SpecStatus | status.QueueStatus, what: str, way: str) -> str:
    text = f"{of.units_per_second:.1f} {what} a second"
    if of.p50_seconds is not None and of.p99_seconds is not None:
        text += f"; from {way} {_took(of.p50_seconds)} (p50), {_took(of.p99_seconds)} (p99)"
    return text


def _took(seconds: float) -> str:
    return duration(seconds) if seconds >= EXACT_SECONDS else f"{seconds:.2g} s"


def _kinds(key: str, kinds: status.FailureKinds) -> Iterator[str]:
    for kind in kinds.kinds:
        if kind.spec == key:
            sample = events.in_a_line(kind.message)[:SAMPLE_CHARACTERS]
            yield f"    {kind.count!s:>8}  {events.in_a_line(kind.signature)}"
            # In the project's time zone, as in the admin and in the log.
            last = aware(kind.last_at).astimezone(timezone.get_current_timezone())
            yield f"              last {last:%Y-%m-%d %H:%M:%S}: {sample}"


def _capture(capture: status.CaptureStatus) -> str:
    text = f"{capture.slot}  {'read by a worker' if capture.is_read else 'not read'}"
    if capture.lag_bytes is not None and capture.lag_seconds is not None:
        text += f", {capture.lag_bytes / 2**20:,.1f} MiB or {duration(capture.lag_seconds)} behind"
    if capture.gaps:
        text += f", not read for {', '.join(capture.gaps)} yet"
    return f"{text}: {capture.problem}" if capture.problem else text


def _worker(worker: status.WorkerStatus) -> str:
    held = ", ".join(
        f"{held.jobs} of {held.spec} for {duration(held.oldest_seconds)}" for held in worker.held
    )
    text = f"  {worker.name}  " + "believed dead, " * (not worker.is_live)
    if worker.silent_seconds is not None:
        text += f"last seen {duration(worker.silent_seconds)} ago, "
    aside = "".join(f", has set {key} aside: {why}" for key, why in worker.aside.items())
    return f"{text}holds {held or 'nothing'}{aside}"


def _executor(executor: status.ExecutorStatus) -> str:
    text = (
        f"    {executor.provider}  {executor.kind}, {executor.running} of {executor.wanted} running"
    )
    if executor.devices:
        text += f" on {executor.runs_on}"
    return f"{text}: {executor.texts_per_second:,.1f} texts a second, {executor.queued} queued"


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


def failing_queue(queue: status.QueueStatus, options: dict[str, Any]) -> Iterator[str]:
    """Yield which of the --fail-… options hold of a queue."""
    if options["fail_on_open_failures"] and queue.open_failures:
        yield _failures(queue.open_failures)
    longest = options["fail_above_oldest_seconds"]
    if longest and queue.oldest_seconds > longest:
        yield f"a task has been due for {duration(queue.oldest_seconds)}"


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
