"""``manage.py embed_worker``: keep the vectors fresh, and run tasks."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.db.models.functions import Now
from django.utils import autoreload

from pgembed_django import conf, events
from pgembed_django.contrib import metrics, tracing
from pgembed_django.core import database
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.exceptions import PgembedError
from pgembed_django.models.job import PENDING
from pgembed_django.ops.command import CANNOT_START, EmbedCommand, refused
from pgembed_django.ops.formatting import Address, above_zero, address, rows_text, whole
from pgembed_django.queue import sessions
from pgembed_django.queue.handler import Handler
from pgembed_django.queue.jobs import JOBS
from pgembed_django.queue.limits import Limits
from pgembed_django.queue.liveness import Watchdog, hindrances
from pgembed_django.queue.port import Answer, Page, Readiness, Server
from pgembed_django.queue.worker import Worker
from pgembed_django.tasks.backend import queues as chosen_queues
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.tasks.table import TASKS

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)

INSTEAD = {
    "concurrency": ("--concurrency", whole),
    "batch_size": ("--batch-size", whole),
    "claim_limit": ("--claim", whole),
    "poll_seconds": ("--poll", above_zero),
    "tasks_concurrency": ("--tasks-concurrency", whole),
}
"""Settings that an option overrides: setting -> (option, its parser)."""

RECYCLED = 3
"""The exit status of a worker that ends so that its supervisor starts it again."""

GARBAGE_THRESHOLD = 10_000
"""For ``gc.set_threshold``. Each held row means a dozen objects for a second. They have no cycles,
so frequent collections would find nothing to free."""

START_AGAIN = 3
"""The exit status of a child that is to be started again. Django's reloaders use the same."""


class Command(EmbedCommand):
    help = (
        "Embeds changed rows and runs tasks until it is stopped. SIGTERM or Ctrl-C: finishes what "
        "is in flight, gives the rest back and exits; a second one: only stores what is embedded. "
        "Exit status: 0 stopped or drained, 1 failed or stuck, 2 could not start, 3 --max-jobs or "
        "--max-memory is reached: start it again."
    )

    def run_from_argv(self, argv: list[str]) -> None:
        # Until the worker handles it, nothing is held. Without a handler, the first process of a
        # container would ignore a SIGTERM, and be killed later, with work in its hands.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--drain",
            "--once",
            action="store_true",
            help="Exit as soon as nothing is ready, instead of waiting for more.",
        )
        parser.add_argument(
            "--autoreload",
            action="store_true",
            help="Restart whenever code changes, like runserver. For development.",
        )
        parser.add_argument(
            "--queues",
            metavar="NAME,NAME",
            help="Only these queues of tasks, and no specs unless --specs names some. Empty: no "
            "tasks. Unless one of the two is given, all specs, and all queues in TASKS.",
        )
        parser.add_argument(
            "--processes",
            type=whole,
            metavar="N",
            help="Run tasks in so many processes, one at a time in each, instead of in threads.",
        )
        for setting, (option, kind) in INSTEAD.items():
            parser.add_argument(
                option,
                dest=setting,
                type=kind,
                metavar="N" if kind is whole else "SECONDS",
                help=f"Instead of {conf.PREFIX}{setting.upper()}.",
            )
        parser.add_argument(
            "--listen",
            type=address,
            metavar="[HOST:]PORT",
            help="Serve /healthz, /readyz and /metrics there. Without HOST only to this machine.",
        )
        parser.add_argument(
            "--heartbeat-file",
            type=Path,
            metavar="PATH",
            help="Touch this file every few seconds while the worker is not stuck.",
        )
        parser.add_argument(
            "--max-jobs",
            type=whole,
            metavar="N",
            help="End after so many rows and tasks, with exit status 3.",
        )
        parser.add_argument(
            "--max-memory",
            type=whole,
            metavar="MIB",
            help="End when the process uses more MiB of memory than this, with exit status 3.",
        )

    def handle(self, **options: Any) -> None:
        if options["autoreload"] and not is_child():
            sys.exit(supervise())
        given = {name: options[name] for name in INSTEAD if options[name] is not None}
        with conf.instead(**given):
            self._work(**options)

    def _work(self, **options: Any) -> None:
        using = self.chosen_database(options["database"], waits=True)
        if self.is_a_program:
            sessions.leave_pool(using)
        if not connections[using].get_autocommit():
            raise CommandError(
                "A worker needs transactions of its own, and was called inside atomic(), or with "
                "autocommit off. In a TestCase, pgembed_django.testing.run_jobs() does its work.",
                returncode=CANNOT_START,
            )
        names = "" if options["specs"] and options["queues"] is None else options["queues"]
        queues = chosen_queues(names)
        chosen = self.chosen_specs(options["specs"], using=using, or_tasks=True)
        if names and not options["specs"]:
            chosen = {}
        handlers: list[Handler] = []
        if queues:
            concurrency = conf.current().tasks_concurrency
            processes = options["processes"] or 0
            handlers.append(
                TaskHandler(queues, using=using, concurrency=concurrency, processes=processes)
            )
        if chosen:
            # Behind the tasks: looking for rows would delay their start.
            handlers.append(EmbeddingHandler(chosen, using=using))
        if not handlers:
            raise CommandError("There is nothing to work on.", returncode=CANNOT_START)
        worker = Worker(
            handlers,
            using=using,
            drain=options["drain"],
            limits=Limits(max_jobs=options["max_jobs"], max_memory_mib=options["max_memory"])
            if options["max_jobs"] or options["max_memory"]
            else None,
        )
        self._log(options["verbosity"])
        self._look_at_tables(chosen.values(), using=using)
        try:
            with ExitStack() as stack:
                if options["autoreload"]:
                    stack.enter_context(ended_by_a_change(worker.stop))
                for watch in self._watches(worker, options["listen"], options["heartbeat_file"]):
                    stack.enter_context(watch)
                # Django and the models stay in memory: collections need not scan them again.
                gc.collect()
                gc.freeze()
                stack.callback(gc.set_threshold, *gc.get_threshold())
                gc.set_threshold(GARBAGE_THRESHOLD)
                worker.run()
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=CANNOT_START) from error
        except PgembedError as error:
            raise (refused(error.__cause__) or CommandError(str(error))) from error
        self._report(worker, options["verbosity"])
        if worker.recycled_for:
            sys.exit(RECYCLED)

    def _watches(
        self, worker: Worker, listen: Address | None, file: Path | None
    ) -> list[AbstractContextManager[object]]:
        """Return the watchdog, tracing and port. Raises if the file or port cannot be used."""
        if file is not None:
            try:
                file.touch()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                raise CommandError(
                    f"Cannot write --heartbeat-file {str(file)!r}: {reason}.",
                    returncode=CANNOT_START,
                ) from error
        watchdog = Watchdog(worker, file=file, ends_process=self.is_a_program)
        watches: list[AbstractContextManager[object]] = [watchdog]
        if worker.settings.tracing:
            watches.append(tracing.of_worker())
        if listen is not None:
            watches.append(port(worker, listen))
        return watches

    def _report(self, worker: Worker, verbosity: int) -> None:
        pending = [
            handler.table.of([*handler.specs], using=worker.using).filter(PENDING)
            for handler in worker.handlers
        ]
        left = sum(rows.count() for rows in pending) if worker.drain else 0
        is_idle = worker.drain and not (worker.completed or left or worker.failed)
        text = "Nothing was waiting." if is_idle else f"{_done(worker)}."
        if worker.failed:
            text += f" {worker.failed:,} failed: manage.py embed_status says why."
        found = hindrances(worker.works, for_people=True)
        if left and (found.paused or found.quarantined):
            waited_for = ["a provider that is down"] * bool(found.paused)
            waited_for += ["tables that match the code"] * bool(found.quarantined)
            why = "; ".join(
                f"{name}: {why}"
                for name, why in [*found.paused.items(), *found.quarantined.items()]
            )
            later = (rows.filter(attempts__gt=0, run_at__gt=Now()) for rows in pending)
            backing_off = sum(rows.count() for rows in later)
            if backing_off:
                text += f" {backing_off:,} still waiting for the next attempt."
            if others := left - backing_off:
                text += f" {others:,} still waiting for {' or for '.join(waited_for)}."
            raise CommandError(f"{text} {why}")
        if left and worker.is_asked_to_stop:
            text += f" {left:,} left."
        elif left:
            text += f" {left:,} still waiting for the next attempt, or for an open transaction."
        if worker.recycled_for:
            text += f" Stopped, to be restarted: {worker.recycled_for}."
        if verbosity > 0:
            self.stdout.write(self.style.SUCCESS(text))

    def _look_at_tables(self, chosen: Iterable[Spec], *, using: str) -> None:
        if database.rows(using, "SELECT to_regtype('vector')") == [(None,)]:
            raise CommandError(
                f"The database {using!r} has no extension vector. Create it: "
                "CREATE EXTENSION vector. If it is in a schema of its own, add that to "
                "the role's search_path.",
                returncode=CANNOT_START,
            )
        newer = self.require_tables(chosen, using=using)
        for spec, migration in newer.items():
            # In the middle of a deploy: work on the other specs, as running workers do too.
            reason = (
                f"it has no table: the migration {migration} is applied, but is not in this "
                "code. Start a worker with the code that has it"
            )
            events.tell(events.SPEC_SET_ASIDE, spec=spec.key, error=reason)

    def _log(self, verbosity: int) -> None:
        """Log to the terminal, unless LOGGING has a handler for it."""
        logger = logging.getLogger("pgembed_django")
        if not logger.hasHandlers():
            handler = logging.StreamHandler(self.stderr)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(LEVELS[verbosity])


def _done(worker: Worker) -> str:
    """Return in words what a worker has done."""
    counts = {work.handler.table: work.completed for work in worker.works}
    rows, tasks = counts.get(JOBS, 0), counts.get(TASKS, 0)
    said = [f"embedded {rows_text(rows)}"] if rows else []
    if tasks:
        said.append(f"ran {tasks:,} task{'s' * (tasks != 1)}")
    nothing = "ran no tasks" if TASKS in counts and JOBS not in counts else "embedded no rows"
    return (" and ".join(said) or nothing).capitalize()


def port(worker: Worker, listen: Address) -> Server:
    """Return the server of a worker's pages, bound but not started.

    Raises:
        CommandError: the address cannot be listened on.
    """
    readiness = Readiness(worker)
    pages: dict[str, Page] = {
        "/healthz": lambda _: _health(worker),
        "/readyz": lambda _: _readiness(readiness),
        "/metrics": _metrics(worker),
    }
    try:
        return Server(*listen, pages)
    except OSError as error:
        raise CommandError(
            f"Cannot listen on {listen}: {error.strerror}. Does another worker use it? Give each "
            "worker on one machine its own port with --listen.",
            returncode=CANNOT_START,
        ) from error


def _health(worker: Worker) -> Answer:
    stuck = worker.liveness.stuck()
    if stuck is None:
        return Answer("ok\n")
    text = f"The loop has been stuck for {stuck.seconds:.0f} s in {stuck.where}\n"
    return Answer(text, HTTPStatus.SERVICE_UNAVAILABLE)


def _readiness(readiness: Readiness) -> Answer:
    missing = readiness.missing()
    if not missing:
        return Answer("ready\n")
    return Answer("\n".join([*missing, ""]), HTTPStatus.SERVICE_UNAVAILABLE)


def _metrics(worker: Worker) -> Page:
    try:
        render = metrics.of_worker(worker)
    except ImproperlyConfigured as error:
        text = f"{error}\n"
        return lambda _: Answer(text, HTTPStatus.NOT_IMPLEMENTED)
    except OSError as error:  # PROMETHEUS_MULTIPROC_DIR cannot be written to
        raise CommandError(
            f"Cannot count for /metrics: {error}.", returncode=CANNOT_START
        ) from error

    def page(accept: str) -> Answer:
        try:
            body, content_type = render(accept)
        finally:
            # The thread ends with the request, but would leave its connection open.
            connections[worker.using].close()
        return Answer(body, content_type=content_type)

    return page


def is_child() -> bool:
    """Return whether this process is the child, which works."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def supervise() -> int:
    """Run this command line in a child, as often as it asks for. Return its last exit status.

    The worker keeps its main thread there, so that signals and failures end it as they do without
    a reloader.
    """
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    child: subprocess.Popen[bytes] | None = None
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        if child is not None:
            child.terminate()

    # A terminal sends Ctrl-C to the child as well, which then stops at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        # S603: these are the arguments of this very process.
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environment)  # noqa: S603
        if asked:
            child.terminate()
        status = child.wait()
        if status != START_AGAIN or asked:
            return status


@contextmanager
def ended_by_a_change(stop: Callable[[], None]) -> Iterator[None]:
    """Stop the worker at once when code changes, and then exit with ``START_AGAIN``."""
    changed = threading.Event()

    def watch() -> None:
        try:
            autoreload.get_reloader().run(threading.main_thread())
        except SystemExit:  # what Django's reloaders raise at a change
            changed.set()
            stop()
            stop()  # at once

    threading.Thread(target=watch, name="pgembed-reloader", daemon=True).start()
    yield
    if changed.is_set():
        sys.exit(START_AGAIN)
