"""Run a model in the actors of a Ray cluster, which all workers share: past one machine.

What is connected to the cluster is a process of its own, the relay. Ray takes over the signals of a
process that it is connected to, ends it once it has lost the cluster, and does not survive a fork.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import importlib
import importlib.util
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import __version__
from pgembed_django.exceptions import (
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.executors import serving
from pgembed_django.executors.base import Facts, Place, Recipe, Status, Task
from pgembed_django.executors.own_process import DEPTH, Crew, Member, Processes

NAMESPACE: Final = "pgembed"
"""The namespace of the actors."""

UNUSED_SECONDS: Final = 300.0
"""An actor ends itself once no process has needed it for so long."""

TOUCH_SECONDS: Final = 30.0
"""How often a relay tells its actors that they are needed."""

START_SECONDS: Final = 60.0
"""How long to wait for the process of an actor. Loading the model may take longer."""

LOOK_SECONDS: Final = 2.0
"""How often to look whether the head is there, and whether an actor is back."""

CONNECT_SECONDS: Final = 5.0

MISSES: Final = 2
"""How often in a row the head must not answer to be gone. A network may lose a packet."""

CALLS: Final = 1_000
"""How many calls an actor has at most, of all workers. Ray keeps further ones until then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which actors there are to be."""

    recipe: Recipe
    address: str | None
    actors: int
    cpus: float | None
    gpus: float
    start_seconds: float
    unused_seconds: float

    def name_of(self, index: int) -> str:
        """Return the name of an actor. Workers with the same recipe share it."""
        arguments = sorted(self.recipe.arguments.items())
        # With the version: a newer one may call what an actor of an older one does not have.
        key = repr((self.recipe.load, arguments, self.cpus, self.gpus, __version__))
        return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{index}"

    @property
    def cluster(self) -> str:
        """What messages call the cluster."""
        return f"the Ray cluster at {self.address}" if self.address else "the local Ray cluster"


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

    main = __name__

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


# In the relay


def main(number: int, parent: int) -> None:
    """Connect the process ``parent`` to a cluster, until it ends."""
    pipe = serving.opened(number, parent)
    plan: Plan = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own
    # Ray prints what happens to actors. It is told in the answers, and in Ray's logs.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        _connect(plan)
    except ProviderUnavailable as error:
        pipe.send_bytes(pickle.dumps(("failed", error)))
        return
    serving.ignore_signals()  # those that Ray has taken over
    asyncio.run(_Relaying(plan, pipe).run())


def _connect(plan: Plan) -> None:
    """Connect this process to the cluster.

    Raises:
        ProviderMisconfigured: that cluster cannot be used from here.
        ProviderUnavailable: there is none.
    """
    remedy = "Start it, or set ADDRESS to that of a cluster."
    # Ray itself would try for a long time, and then end the process.
    if (host_port := _host_port(plan.address)) and not _is_open(*host_port):
        raise ProviderUnavailable(
            f"ADDRESS is {plan.address!r}: no Ray cluster answers there. {remedy}"
        )
    ray = importlib.import_module("ray")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if plan.address is None:
            _connect_locally(quiet)
        else:
            ray.init(plan.address, **quiet)
    except ConnectionError as error:
        raise ProviderUnavailable(f"{plan.cluster} cannot be reached: {error} {remedy}") from None
    except Exception as error:  # noqa: BLE001 - Ray raises all kinds
        # For instance, another version of Ray or Python, or a machine outside of the cluster.
        said = str(error).strip().split("\n\n")[0]
        raise ProviderMisconfigured(
            f"ADDRESS is {plan.address!r}: this process cannot join {plan.cluster}: {said} "
            "From a machine outside of the cluster, use the address of its Ray Client server, "
            'such as "ray://head:10001".'
        ) from None


def _connect_locally(options: Mapping[str, Any]) -> None:
    """Join the cluster that runs on this machine, or start one."""
    ray = importlib.import_module("ray")
    path = Path(tempfile.gettempdir(), f"pgembed-ray-{os.getuid()}.lock")
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Of two that look at once, each would start a cluster of its own.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            ray.init("auto", **options)
        except ConnectionError:
            ray.init("local", include_dashboard=False, **options)
    finally:
        os.close(lock)


def _host_port(address: str | None) -> tuple[str, int] | None:
    """Return where an address points to. None: Ray looks for the cluster itself."""
    if address is None or address in ("auto", "local"):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ProviderMisconfigured(
            f'ADDRESS is {address!r}. Set it to host and port, such as "head:6379" or '
            '"ray://head:10001".'
        )
    return host, port


def _is_open(host: str, port: int) -> bool:
    """Return whether something listens there."""
    with suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
        return True
    return False


class _Relaying:
    """Passes calls on to actors, each to the one with the fewest."""

    def __init__(self, plan: Plan, pipe: Connection) -> None:
        self._plan = plan
        self._pipe = pipe
        self._sender = serving.Sender(pipe)
        self._actors = [_Actor(plan, index) for index in range(plan.actors)]
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_known = False
        """Whether the worker was told the model's facts."""

    async def run(self) -> None:
        """Serve for good."""
        loop = asyncio.get_running_loop()

        def take(*call: Any) -> None:
            loop.call_soon_threadsafe(self._begin, self._relay(*call))

        for actor in self._actors:
            self._begin(self._keep(actor))
        serving.in_thread(self._watch)
        await self._first_ready()
        serving.in_thread(lambda: serving.receive(self._pipe, take))
        await asyncio.Event().wait()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _first_ready(self) -> None:
        """Tell the worker the facts of the model, or why it cannot be loaded, and end then."""
        actor = await self._least_busy()
        if isinstance(actor, ProviderError):
            self._pipe.send_bytes(pickle.dumps(("failed", actor)))
            os._exit(0)
        self._pipe.send_bytes(pickle.dumps(("ready", actor.facts)))
        self._is_known = True
        self._tell()

    async def _relay(self, number: int, task: Task, texts: Sequence[Any], is_query: bool) -> None:
        actor = await self._least_busy()
        if isinstance(actor, ProviderError):
            self._sender.send(number, actor)
            return
        actor.calls += 1
        try:
            outcome = await actor.call(task, texts, is_query)
        except Exception as error:  # noqa: BLE001 - sent, and raised there
            outcome = self._meaning(error)
            if isinstance(outcome, ProviderUnavailable):
                await self._is_gone(actor)
        finally:
            actor.calls -= 1
        self._sender.send(number, outcome)

    async def _least_busy(self) -> _Actor | ProviderError:
        """Return one that can take a call. Waits as long as one may become ready."""
        async with self._changed:
            while True:
                ready = [one for one in self._actors if one.facts]
                if ready:
                    return min(ready, key=lambda one: one.calls)
                errors = [one.error for one in self._actors if one.error]
                if len(errors) == len(self._actors):
                    return errors[0]
                await self._changed.wait()

    async def _keep(self, actor: _Actor) -> None:
        """Have an actor ready, for good."""
        while True:
            try:
                actor.facts = await actor.start()
                # Calls that the last one had may have failed meanwhile.
                actor.gone.clear()
                actor.error = None
            except Exception as error:  # noqa: BLE001 - raised by calls
                actor.error = self._meaning(error, was_sent=False)
            await self._note()
            with suppress(Exception):
                while actor.facts:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(actor.gone.wait(), TOUCH_SECONDS)
                    if actor.facts:
                        await actor.touch()
            if actor.facts:
                await self._is_gone(actor)
            if actor.error:
                await asyncio.sleep(LOOK_SECONDS)

    async def _is_gone(self, actor: _Actor) -> None:
        actor.facts = None
        actor.gone.set()
        await self._note()

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        if self._is_known:
            self._sender.send(None, [one.facts for one in self._actors if one.facts])

    def _meaning(self, error: Exception, *, was_sent: bool = True) -> ProviderError:
        """Return what to raise in the worker instead of an error of Ray."""
        if isinstance(error, ProviderError):
            return error
        known = importlib.import_module("ray").exceptions
        plan, model = self._plan, self._plan.recipe.model
        if isinstance(error, known.RayActorError) and error.actor_init_failed:
            return ProviderMisconfigured(
                f"{plan.cluster} cannot load pgembed_django for the model {model!r}. Install it, "
                f"with what the model needs, on all of its nodes. Ray says: {_last_line(error)}"
            )
        lost = (
            known.RayActorError,
            known.WorkerCrashedError,
            known.OutOfMemoryError,
            known.NodeDiedError,
            known.ObjectLostError,
        )
        if isinstance(error, lost):
            said = f"The Ray actor of the model {model!r} died. Ray says: {_last_line(error)}"
            return ProviderLost(said) if was_sent else ProviderUnavailable(said)
        if isinstance(error, known.RayTaskError):
            return plan.recipe.failed(error.cause)
        if isinstance(error, ConnectionError):
            # Of Ray Client, which does not connect again. The next call does, with a new relay.
            asyncio.get_running_loop().call_later(LOOK_SECONDS, os._exit, serving.BROKEN)
        return ProviderUnavailable(f"{plan.cluster} failed with {type(error).__name__}: {error}")

    def _watch(self) -> None:
        """End once the head is gone. Ray itself would keep calls waiting, and then end as well."""
        address = self._plan.address
        if address is None or "://" not in address:
            address = importlib.import_module("ray").get_runtime_context().gcs_address
        host_port = _host_port(address)
        looking = threading.Event()
        missed = 0
        while missed < MISSES:
            missed = 0 if host_port is None or _is_open(*host_port) else missed + 1
            looking.wait(LOOK_SECONDS)
        os._exit(serving.BROKEN)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


class _Actor:
    """One actor, as the relay sees it."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._handle: Any = None
        self.calls = 0
        """How many of this relay's calls it has."""
        self.facts: Facts | None = None
        """None: it cannot take calls."""
        self.error: ProviderError | None = None
        """Why it could not be started."""
        self.gone = asyncio.Event()

    async def start(self) -> Facts:
        """Return the model's facts, once it is loaded. Create the actor if there is none.

        Raises:
            ProviderError: it cannot be loaded.
            Exception: any of Ray's.
        """
        self._handle = await asyncio.to_thread(self._created)
        try:
            await asyncio.wait_for(self._ready(), self._plan.start_seconds)
        except TimeoutError:
            raise ProviderUnavailable(
                f"{self._plan.cluster} has started no actor with {self._plan.cpus or 0:g} CPUs and "
                f"{self._plan.gpus:g} GPUs within {self._plan.start_seconds:g} s. Give it more of "
                "them, or lower ACTORS, CPUS or GPUS."
            ) from None
        found: Facts | ProviderError = await _result(self._handle.start.remote())
        if isinstance(found, ProviderError):
            raise found
        return found

    async def call(self, task: Task, texts: Sequence[Any], is_query: bool) -> Any:
        """Return the outcome of a call, which may be a ``ProviderError``. Raises as Ray does."""
        return await _result(self._handle.call.remote(task, texts, is_query))

    async def touch(self) -> None:
        """Tell it that it is needed. Raises as Ray does."""
        await _result(self._handle.touch.remote())

    async def _ready(self) -> None:
        """Wait until it runs. One that died is started again by Ray."""
        unavailable = importlib.import_module("ray").exceptions.ActorUnavailableError
        while True:
            with suppress(unavailable):
                await self.touch()
                return
            await asyncio.sleep(0.1)

    def _created(self) -> Any:
        plan = self._plan
        options: dict[str, Any] = {
            "name": plan.name_of(self._index),
            "namespace": NAMESPACE,
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": -1,
            # Ray would give a text that kills its actor to the next one, and that one too.
            "max_task_retries": 0,
            "max_concurrency": CALLS,
            "num_gpus": plan.gpus,
            # Not left out: beside num_gpus, Ray takes that for one of each actor.
            "num_cpus": plan.cpus or 0,
        }
        kind = importlib.import_module("ray").remote(ModelActor)
        return kind.options(**options).remote(plan)


async def _result(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())


# In an actor


class ModelActor:
    """A model in a process of the cluster. It ends itself once nobody needs it."""

    def __init__(self, plan: Plan) -> None:
        self._recipe = plan.recipe
        self._unused_seconds = plan.unused_seconds
        cores = os.cpu_count() or 1
        # Its index is always 0, since Ray shows it no devices but its own.
        self._place = Place(0, max(1, int(cores / plan.cpus)) if plan.cpus else plan.actors)
        self._stages: serving.Stages | None = None
        self._taking = ThreadPoolExecutor(1)
        self._facts: Facts | None = None
        self._last_needed = time.monotonic()
        self._in_progress = 0
        """How many calls it works on. Loading a model may take longer than it may be unused."""
        serving.prepare_threads()
        serving.in_thread(self._end_if_unused)

    @cached_property
    def _loading(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def touch(self) -> None:
        """Note that it is needed."""
        self._last_needed = time.monotonic()

    async def start(self) -> Facts | ProviderError:
        """Return the model's facts. Loads it if it is not loaded."""
        async with self._needed(), self._loading:
            if self._facts is None:
                started = time.monotonic()
                try:
                    model = await asyncio.to_thread(self._recipe.loaded, self._place)
                except ProviderError as error:
                    return error
                self._stages = serving.Stages(model, self._recipe, _settle)
                serving.in_thread(self._stages.run)
                self._facts = replace(model.facts, start_seconds=time.monotonic() - started)
            return self._facts

    async def call(self, task: Task, texts: Sequence[Any], is_query: bool) -> Any:
        """Return the outcome of a call. An error is returned, too: raised, it would be wrapped."""
        found = await self.start()
        if isinstance(found, ProviderError) or self._stages is None:
            return found
        answer: Future[Any] = Future()
        async with self._needed():
            self._taking.submit(self._stages.take, answer, task, texts, is_query)
            return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def _needed(self) -> AsyncIterator[None]:
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            await self.touch()

    def _end_if_unused(self) -> None:
        ray = importlib.import_module("ray")
        looking = threading.Event()
        while self._in_progress or time.monotonic() - self._last_needed < self._unused_seconds:
            looking.wait(LOOK_SECONDS)
        # Whatever ends otherwise is started again.
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _settle(answer: Future[Any], outcome: object) -> None:
    answer.set_result(outcome)
