"""Write a status as lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.utils import timezone

from pgembed_django import events
from pgembed_django.maintenance.backfill import Backfill
from pgembed_django.moments import seconds_between
from pgembed_django.ops import status
from pgembed_django.ops.verdicts import duration

SAMPLE_CHARACTERS = 100
SHOWN_KEYS = 20
EXACT_SECONDS = 9.5
"""From this time on, seconds are written without decimals."""


def tell(found: status.Overview, kinds: status.FailureKinds, style: Any) -> Iterator[str]:
    """Yield the lines, coloured by ``style``: the ``style`` of a command."""
    colours: dict[str, Callable[[str], str]] = {
        "fresh": style.SUCCESS,
        "indexing": style.NOTICE,
        "degraded": style.WARNING,
        "stalled": style.ERROR,
    }
    for spec in found.specs:
        colour = colours[spec.verdict.state]
        yield f"{style.MIGRATE_HEADING(spec.key)}  {colour(spec.verdict.state)}"
        yield f"  {spec.verdict.reason}"
        for space in (spec.active, spec.building):
            if space:
                yield _space(space)
        yield f"  waiting    {_waiting(spec)}"
        yield f"  speed      {_speed(spec)}"
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
        yield _provider(provider, found)


def _space(space: status.SpaceStatus) -> str:
    what = "searched" if space.is_active else "building"
    coverage = f"{space.coverage}" if space.coverage else "coverage unknown"
    eta = f", about {duration(space.eta_seconds)} to go" if space.eta_seconds else ""
    made = f"{space.model}, {space.dimensions} dimensions"
    return f"  {what}   space {space.id}, {made}: {coverage}{eta}"


def _waiting(spec: status.SpecStatus) -> str:
    parts = []
    for backlog in spec.backlog:
        later = f" ({backlog.later} back off)" if backlog.later else ""
        parts.append(f"{backlog.waiting} {backlog.kind.replace('_', ' ')}{later}")
    text = ", ".join(parts) or "nothing"
    if spec.running:
        text += f"; {spec.running} at work"
    if spec.oldest_change_seconds is not None:
        text += f"; oldest change {duration(spec.oldest_change_seconds)}"
    return text


def _speed(spec: status.SpecStatus) -> str:
    text = f"{spec.units_per_second:.1f} rows a second"
    if spec.p50_seconds is not None and spec.p99_seconds is not None:
        p50, p99 = _took(spec.p50_seconds), _took(spec.p99_seconds)
        text += f"; from write to vector {p50} (p50), {p99} (p99)"
    return f"{text}; about {duration(spec.eta_seconds)} to go" if spec.eta_seconds else text


def _took(seconds: float) -> str:
    return duration(seconds) if seconds >= EXACT_SECONDS else f"{seconds:.2g} s"


def _kinds(key: str, kinds: status.FailureKinds) -> Iterator[str]:
    for kind in kinds.kinds:
        if kind.spec == key:
            sample = events.in_a_line(kind.sample)[:SAMPLE_CHARACTERS]
            yield f"    {kind.count!s:>8}  {events.in_a_line(kind.signature)}"
            # In the project's time zone, as in the admin and in the log.
            last = (
                kind.last_at
                if timezone.is_naive(kind.last_at)
                else timezone.localtime(kind.last_at)
            )
            yield f"              last {last:%Y-%m-%d %H:%M:%S}: {sample}"


def _worker(worker: status.WorkerStatus) -> str:
    held = ", ".join(
        f"{held.jobs} of {held.spec} for {duration(held.oldest_seconds)}" for held in worker.held
    )
    seen = "" if worker.silent_seconds is None else f"seen {duration(worker.silent_seconds)} ago, "
    dead = "" if worker.is_live else "believed dead, "
    aside = "".join(f", has set {key} aside: {why}" for key, why in worker.aside.items())
    return f"  {worker.name}  {dead}{seen}holds {held or 'nothing'}{aside}"


def _provider(provider: status.ProviderStatus, found: status.Overview) -> str:
    text = f"  {provider.alias}  {provider.model}"
    if provider.paused_by:
        text += f", paused by {provider.paused_by}"
    if provider.out_of_reach_of:
        workers = "all workers" if provider.is_down else ", ".join(provider.out_of_reach_of)
        text += f", down for {workers}"
        if provider.retries_at:
            wait = seconds_between(found.at, provider.retries_at)
            text += f", tried again in {duration(wait)}" if wait >= 1 else ", its next try is due"
        text += f": {provider.reason}"
    return text


def told_of_left(filled: Iterable[Backfill], *, and_rows_after: bool = False) -> str:
    """Return in words which rows were locked and not queued, and how to go on. Empty: none."""
    lines = []
    for one in filled:
        if not one.left:
            continue
        keys = ", ".join(one.left[:SHOWN_KEYS]) + " and so on" * (len(one.left) > SHOWN_KEYS)
        line = f"{one.spec.key}: {len(one.left):,} rows are locked by an open write, and "
        line += f"are not embedded again yet: {keys}. "
        if and_rows_after and (rows := one.keys_left.count()):
            line += f"{rows:,} rows after them have yet to be looked at. "
        lines.append(f"{line}The same command goes on with them.")
    return "\n".join(lines)
