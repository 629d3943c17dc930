"""``@task``: what Django's decorator declares, and what it has no word for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from django.utils.module_loading import import_string

from pgembed_django.exceptions import did_you_mean
from pgembed_django.tasks import api, options
from pgembed_django.tasks.api import InvalidTask

if TYPE_CHECKING:
    from pgembed_django.tasks.running import Context

P = ParamSpec("P")
R = TypeVar("R")

WEEK = timedelta(days=7)

scheduled: dict[str, Task[Any, Any]] = {}
"""The tasks with ``every`` that were declared, by the paths of their functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(api.GenericTask[P, R]):
    """A function whose calls are enqueued, and how they are run.

    ``tenant``, ``once``, ``coalesce`` and ``serial`` are format strings over the arguments.
    """

    tenant: str = ""
    once: str = ""
    once_for: timedelta = WEEK
    coalesce: str = ""
    bump: str = "keep"
    max_wait: float | None = None
    serial: str = ""
    every: timedelta | str | None = None
    attempts: int | None = None
    backoff: float | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    keep_results: timedelta | None = None
    provider: str | None = None

    def __post_init__(self) -> None:
        api.Task.__post_init__(self)
        if found := [*options.problems(self)]:
            raise InvalidTask(f"@task on {self.func.__qualname__}: {' '.join(found)}")
        if self.every is not None:
            scheduled.setdefault(self.module_path, self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not every Django pickles its own. The name of the function leads to the task.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["func"]
        return _restored, (type(self), self.module_path, values)

    @property
    def signature(self) -> inspect.Signature:
        """The function's signature, without the context."""
        return _signature(self.func, takes_context=self.takes_context)

    def keys(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """Return tenant, once, coalesce and serial of a call. One that is of None is empty.

        Raises:
            TypeError: the function does not take these arguments.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.module_path}{self.signature}: {error}") from None
        bound.apply_defaults()
        return {
            name: _formatted(given, bound.arguments) if (given := getattr(self, name)) else ""
            for name in options.FORMATS
        }


class Options(TypedDict, total=False):
    """What Django's decorator has no word for. See ``docs/reference/tasks.md``."""

    tenant: str
    once: str
    once_for: timedelta
    coalesce: str
    bump: Literal["keep", "latest", "replace"]
    max_wait: float
    serial: str
    every: timedelta | str
    attempts: int
    backoff: float
    retry_on: tuple[type[BaseException], ...]
    give_up_on: tuple[type[BaseException], ...]
    timeout: float
    keep_results: timedelta
    provider: str


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[True],
    **given: Unpack[Options],
) -> Callable[[Callable[Concatenate[Context, P], R]], Task[P, R]]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[False] = False,
    **given: Unpack[Options],
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = 0,
    queue_name: str = api.DEFAULT_TASK_QUEUE_NAME,
    backend: str = api.DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **given: Any,
) -> Any:
    """Declare a task: see ``Options`` for what Django's decorator does not have.

    Raises:
        InvalidTask: an option does not fit the function, or the backend.
    """
    if "run_after" in given:
        raise TypeError("run_after is of one call: use .using(run_after=…).enqueue(…).")
    known = [field.name for field in fields(Task)]
    if unknown := [name for name in given if name not in known]:
        raise InvalidTask(f"@task has no option {unknown[0]!r}. {did_you_mean(unknown[0], known)}")

    def declared(function: Callable[..., Any]) -> Task[..., Any]:
        return Task(
            func=function,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,  # Django 6.0 has no default for it
            **given,
        )

    return declared if function is None else declared(function)


def _restored(cls: type[Task[..., Any]], path: str, values: dict[str, Any]) -> Task[..., Any]:
    try:
        function = import_string(path).func
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
    return cls(func=function, **values)


@functools.cache
def _signature(function: Callable[..., Any], *, takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if takes_context:
        [_, *parameters] = signature.parameters.values()
        signature = signature.replace(parameters=parameters)
    return signature


def _formatted(given: str, arguments: Mapping[str, Any]) -> str:
    """Format a key. A call for None has none: else all of them would share the key "None"."""
    if any(arguments[field] is None for field in options.fields(given)):
        return ""
    return given.format_map(arguments)
