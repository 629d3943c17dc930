"""Check what ``@task`` declares, when the module with the task is imported.

Pure: no database. Each problem names the value and what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any

from cronsim import CronSim, CronSimError

from pgembed_django.exceptions import did_you_mean

BUMPS = ("keep", "latest", "replace")
FORMATS = ("tenant", "once", "coalesce", "serial")
MAX_ATTEMPTS = 100
LONGEST_SECONDS = 366 * 86400.0
SHORTEST_INTERVAL = timedelta(seconds=1)


def problems(task: Any) -> Iterator[str]:
    """Yield what is wrong with a task's options."""
    for name in FORMATS:
        yield from _of_format(name, getattr(task, name), task.signature.parameters)
    yield from _of_keys(task)
    yield from _of_numbers(task)
    yield from _of_durations(task)
    for name in ("retry_on", "give_up_on"):
        yield from _of_exceptions(name, getattr(task, name))
    if task.every is not None:
        yield from _of_schedule(task)
    if task.provider is not None and not (isinstance(task.provider, str) and task.provider):
        yield f"provider={task.provider!r} is no name: write provider='openai', say."


def _of_format(name: str, given: Any, parameters: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a format string: its fields are parameters of the function."""
    if not isinstance(given, str):
        yield f"{name}={given!r} is no string. Write a format string over the arguments."
        return
    try:
        named = [*fields(given)]
    except ValueError as error:
        yield f"{name}={given!r} is no format string: {error}. Double a brace that is meant as one."
        return
    for field in named:
        if field not in parameters:
            yield (
                f"{name}={given!r} names {field!r}, which is no parameter of the function. "
                f"{did_you_mean(field, parameters)}"
                f"It has: {', '.join(parameters) or 'none'}."
            )


def fields(given: str) -> Iterator[str]:
    """Yield the arguments that a format string names, also within its format specifications."""
    for _, field, specification, _ in Formatter().parse(given):
        if field is not None:
            yield field.partition(".")[0].partition("[")[0]
            yield from fields(specification or "")


def _of_keys(task: Any) -> Iterator[str]:
    if task.bump not in BUMPS:
        yield (
            f"bump={task.bump!r} is unknown. {did_you_mean(task.bump, BUMPS)}"
            f"Choose one of: {', '.join(BUMPS)}."
        )
    elif task.bump != "keep" and not task.coalesce:
        yield f"bump={task.bump!r} is for calls that coalesce. Set coalesce, or leave bump out."
    if task.coalesce and task.once:
        yield (
            "coalesce and once exclude each other: calls of one key run as one while they wait, "
            "or only the first one ever runs. Leave one of them out."
        )
    if task.bump == "latest" and task.max_wait is None:
        yield (
            "bump='latest' postpones a task with each call. Set max_wait, the seconds after which "
            "it runs in any case."
        )
    elif task.bump != "latest" and task.max_wait is not None:
        yield f"max_wait={task.max_wait!r} is only used with bump='latest'. Leave it out."


def _of_numbers(task: Any) -> Iterator[str]:
    attempts = task.attempts
    is_whole = isinstance(attempts, int) and not isinstance(attempts, bool)
    if attempts is not None and not (is_whole and 1 <= attempts <= MAX_ATTEMPTS):
        yield f"attempts={attempts!r} is no whole number from 1 to {MAX_ATTEMPTS}."
    for name in ("backoff", "timeout", "max_wait"):
        seconds = getattr(task, name)
        if seconds is None:
            continue
        if isinstance(seconds, timedelta):
            yield (
                f"{name}={seconds!r} is a number of seconds: "
                f"write {name}={seconds.total_seconds():g}."
            )
        elif isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            yield f"{name}={seconds!r} is no number of seconds."
        elif not 0 <= seconds <= LONGEST_SECONDS or (name == "timeout" and not seconds):
            yield (
                f"{name}={seconds!r} is out of range. "
                f"It is a number of seconds, {LONGEST_SECONDS:.0f} at most, and not negative"
                f"{' or zero' if name == 'timeout' else ''}."
            )


def _of_durations(task: Any) -> Iterator[str]:
    for name in ("once_for", "keep_results"):
        duration = getattr(task, name)
        if name == "keep_results" and duration is None:
            continue
        if not isinstance(duration, timedelta):
            yield f"{name}={duration!r} is no timedelta: write timedelta(days=7), say."
        elif not timedelta(0) < duration <= timedelta(days=3660):
            yield f"{name}={duration!r} is out of range. It is positive, and ten years at most."


def _of_exceptions(name: str, given: Any) -> Iterator[str]:
    if isinstance(given, type):
        yield f"{name}={given.__name__} is no tuple: write {name}=({given.__name__},)."
    elif not isinstance(given, tuple) or not all(
        isinstance(one, type) and issubclass(one, BaseException) for one in given
    ):
        yield f"{name}={given!r} is no tuple of exception classes: write {name}=(ValueError,), say."


def _of_schedule(task: Any) -> Iterator[str]:
    every = task.every
    if isinstance(every, timedelta):
        if every < SHORTEST_INTERVAL:
            yield f"every={every!r} is too short. A schedule's interval is a second at least."
    elif isinstance(every, str):
        try:
            next(CronSim(every, datetime(2026, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            yield (
                f"every={every!r} is no cron line: {error or 'it never comes'}. "
                "It has five fields: minute, hour, day, month, weekday."
            )
    else:
        yield f"every={every!r} is neither a timedelta nor a cron line."
    required = [
        name
        for name, parameter in task.signature.parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if required:
        yield (
            f"every={every!r} runs the function without arguments, but it requires "
            f"{', '.join(required)}. Give each a default."
        )
