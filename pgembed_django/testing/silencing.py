"""Turn the triggers off for a block, on the test's own connection."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar, cast

import pgtrigger
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.models import Model

from pgembed_django.core import database, postgres
from pgembed_django.declaration import specs
from pgembed_django.triggers import SpecTrigger

F = TypeVar("F", bound=Callable[..., Any])

# The setting that the triggers check. It belongs to the database session, not to a thread, so it
# also works for raw SQL, COPY, and another thread that shares the connection.
CURRENT = "SELECT coalesce(current_setting('pgtrigger.ignore', true), '')"
SET = "SELECT set_config('pgtrigger.ignore', %(names)s, false)"


class without_triggers:  # noqa: N801 - used like pgtrigger.ignore
    """Turns the triggers off: writes add no jobs, and deleted rows leave their vectors behind.

    Use it for fixtures that would add thousands of jobs, and to imitate a restore or
    ``session_replication_role``. It turns off the triggers of the given models, by default of all.
    A context manager for ``with`` and ``async with``, and a decorator for functions of both kinds.

    It only affects this connection, not those of other processes, like a server or a worker.
    """

    def __init__(self, *models: type[Model], using: str = DEFAULT_DB_ALIAS) -> None:
        self._models = models
        self._using = using
        self._before: list[str] = []

    def __enter__(self) -> None:
        if other := postgres.not_postgres(self._using, remedy="using"):
            raise ImproperlyConfigured(other)
        [[before]] = database.rows(self._using, CURRENT)
        names = [name for name in before.strip("{}").split(",") if name]
        self._before.append(before or "{}")
        off = ",".join(dict.fromkeys([*names, *self._names()]))
        database.rows(self._using, SET, names=f"{{{off}}}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before = self._before.pop()
        # A failed transaction accepts no statement. Its rollback will restore the setting.
        if not connections[self._using].needs_rollback:
            with suppress(DatabaseError) if kind else nullcontext():
                database.rows(self._using, SET, names=before)

    async def __aenter__(self) -> None:
        # Runs in the thread whose connection the ORM's async methods use.
        await sync_to_async(self.__enter__)()

    async def __aexit__(self, *raised: Any) -> None:
        await sync_to_async(self.__exit__)(*raised)

    def __call__(self, function: F) -> F:
        if isinstance(function, type):
            raise TypeError(
                f"{function.__name__} is a class, which without_triggers() cannot decorate: its "
                "tests would not be found. Decorate its functions."
            )
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast("F", functools.wraps(function)(awaited))

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("F", functools.wraps(function)(called))

    def _names(self) -> list[str]:
        wanted = {spec.model for model in self._models for spec in specs.of(model)}
        keys = {spec.key for spec in specs.all() if spec.model in wanted}
        return [
            trigger.get_pgid(model)
            for model, trigger in pgtrigger.registered()
            if isinstance(trigger, SpecTrigger) and (not keys or trigger.watch.key in keys)
        ]
