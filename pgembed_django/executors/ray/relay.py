"""What is connected to the cluster: it passes a worker's calls on to the actors.

It has them created, waits for those that are started again, and tells the worker which are ready.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import pickle
import socket
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pgembed_django.exceptions import (
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.executors import serving
from pgembed_django.executors.base import Facts, Task
from pgembed_django.executors.ray.actor import ModelActor, Plan

NAMESPACE: Final = "pgembed"
"""The namespace of the actors."""

TOUCH_SECONDS: Final = 30.0
"""How often a relay tells its actors that they are needed."""

LOOK_SECONDS: Final = 2.0
"""How often to look whether the head is there, and whether an actor is back."""

CONNECT_SECONDS: Final = 5.0

MISSES: Final = 2
"""How often in a row the head must not answer to be gone. A network may lose a packet."""

CALLS: Final = 1_000
"""How many calls an actor has at most, of all workers. Ray keeps further ones until then."""


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
