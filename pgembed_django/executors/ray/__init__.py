"""Run a model in the actors of a Ray cluster, which all workers share: past one machine.

What is connected to the cluster is a process of its own, the relay. Ray takes over the signals of a
process that it is connected to, ends it once it has lost the cluster, and does not survive a fork.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.executors.base import Place, Recipe, Status
from pgembed_django.executors.own_process import DEPTH, Crew, Member, Processes
from pgembed_django.executors.ray.actor import Plan

START_SECONDS: Final = 60.0
"""How long to wait for the process of an actor. Loading the model may take longer."""

UNUSED_SECONDS: Final = 300.0
"""An actor ends itself once no process has needed it for so long."""


class Ray(Processes):
    """Loads the model into ACTORS actors of the Ray cluster at ADDRESS, each with CPUS and GPUS.

    Without CPUS, none are reserved, and the actors are taken to share one machine.

    Without ADDRESS: in the cluster that runs on this machine. If there is none, one is started,
    which ends with this process. Actors end themselves some minutes after the last process that
    needs them.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        address: str | None = None,
        actors: int = 1,
        cpus: float | None = None,
        gpus: float = 0,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ImproperlyConfigured(
                'The package ray is not installed. It comes with pip install "pgembed-django[ray]".'
            )
        plan = Plan(
            recipe=recipe,
            address=self.optional(self.name, "ADDRESS", address),
            actors=self.whole("ACTORS", actors),
            cpus=self.optional(self._share, "CPUS", cpus),
            gpus=self._share("GPUS", gpus),
            start_seconds=START_SECONDS,
            unused_seconds=UNUSED_SECONDS,
        )
        super().__init__(recipe, Crew(recipe, 1, member=partial(_Relay, plan)))
        self._plan = plan

    @property
    def slots(self) -> int:
        return self._plan.actors * DEPTH

    def status(self) -> Status:
        return replace(super().status(), wanted=self._plan.actors)

    def _share(self, option: str, value: float) -> float:
        if type(value) not in (int, float) or not 0 <= value < 1_000:
            raise self.wrong(option, value, "Set it to a number of zero or more, such as 0.5")
        return value


class _Relay(Member):
    """The process that is connected to the cluster, as the worker sees it."""

    main = f"{__name__}.relay"

    def __init__(self, plan: Plan, crew: Crew, recipe: Recipe, place: Place) -> None:
        self._plan = plan
        self.depth = plan.actors * DEPTH
        super().__init__(crew, recipe, place)

    @property
    def order(self) -> object:
        return self._plan

    def outage(self, status: int) -> ProviderUnavailable:
        # No text is to blame: none is computed there.
        return ProviderUnavailable(
            f"The connection to {self._plan.cluster} broke: its process ended with status {status}."
        )
