"""``manage.py embed_worker``: keep the vectors fresh."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.db.models.functions import Now

from pgembed_django import conf, database, events
from pgembed_django.contrib import tracing
from pgembed_django.exceptions import PgembedError
from pgembed_django.management import reloading
from pgembed_django.management.port import Address, address, port
from pgembed_django.models import Job
from pgembed_django.ops.command import EmbedCommand, seconds, whole
from pgembed_django.ops.stoppable import CANNOT_START, refused
from pgembed_django.pipeline.handler import EmbeddingHandler
from pgembed_django.queue import configuring
from pgembed_django.queue.liveness import Stuck, Watchdog
from pgembed_django.queue.stopping import Limits, brought
from pgembed_django.queue.worker import Worker
from pgembed_django.specs import Spec

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)

INSTEAD = {
    "concurrency": ("--concurrency", whole),
    "batch_size": ("--batch-size", whole),
    "claim_limit": ("--claim", whole),
    "poll_seconds": ("--poll", seconds),
}
"""Settings that an option overrides: setting -> (option, its parser)."""

RECYCLED = 3
"""The exit status of a worker that ends so that its supervisor starts it again."""

STUCK = 1
"""The exit status of a worker that is stuck."""

GIVE_UP_SECONDS = 10.0
"""How long a stuck worker has to give its jobs back before it ends."""

GARBAGE_THRESHOLD = 10_000
"""For ``gc.set_threshold``. Each held row means a dozen objects for a second. They have no cycles,
so frequent collections would find nothing to free."""


class Command(EmbedCommand):
    help = (
        "Embeds changed rows until it is stopped. SIGTERM or Ctrl-C: finishes what is in "
        "flight, gives the rest back and exits; a second one: only stores what is embedded. "
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
            help="End after so many rows, with exit status 3.",
        )
        parser.add_argument(
            "--max-memory",
            type=whole,
            metavar="MIB",
            help="End when the process uses more MiB of memory than this, with exit status 3.",
        )

    def handle(self, **options: Any) -> None:
        if options["autoreload"] and not reloading.is_child():
            sys.exit(reloading.supervise())
        given = {name: options[name] for name in INSTEAD if options[name] is not None}
        with conf.instead(**given):
            self._work(**options)

    def _work(self, **options: Any) -> None:
        using = self.chosen_database(options["database"], waits=True)
        if self.is_a_program:
            configuring.leave_pool(using)
        if not connections[using].get_autocommit():
            raise CommandError(
                "A worker needs transactions of its own, and was called inside atomic(), or with "
                "autocommit off. In a TestCase, pgembed_django.testing.run_jobs() does its work.",
                returncode=CANNOT_START,
            )
        chosen = self.chosen_specs(options["specs"], using=using)
        worker = Worker(
            [EmbeddingHandler(chosen, using=using)],
            using=using,
            drain=options["drain"],
            limits=Limits(max_jobs=options["max_jobs"], max_memory_mib=options["max_memory"]),
        )
        self._log(options["verbosity"])
        self._look_at_tables(chosen.values(), using=using)
        try:
            with ExitStack() as stack:
                if options["autoreload"]:
                    stack.enter_context(reloading.ended_by_a_change(worker.stop))
                for watch in self._watches(worker, options["listen"], options["heartbeat_file"]):
                    stack.enter_context(watch)
                # Django and the models stay in memory: collections need not scan them again.
                gc.collect()
                gc.freeze()
                stack.callback(gc.set_threshold, *gc.get_threshold())
                gc.set_threshold(GARBAGE_THRESHOLD)
                stored = worker.run()
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=CANNOT_START) from error
        except PgembedError as error:
            raise (refused(error.__cause__) or CommandError(str(error))) from error
        self._report(worker, stored, options["verbosity"])
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
        watchdog = Watchdog(
            worker.liveness,
            sessions=worker.sessions,
            is_overdue=lambda: worker.is_overdue,
            is_late=lambda: worker.is_late,
            say_alive=worker.say_alive,
            give_up=partial(self._give_up, worker),
            file=file,
        )
        watches: list[AbstractContextManager[object]] = [watchdog]
        if worker.settings.tracing:
            watches.append(tracing.of_worker())
        if listen is not None:
            watches.append(port(worker, listen))
        return watches

    def _give_up(self, worker: Worker, stuck: Stuck) -> None:
        """End a program whose loop is stuck. Elsewhere only give its jobs back."""
        giving = threading.Thread(target=worker.give_up, args=[stuck], daemon=True)
        giving.start()
        giving.join(GIVE_UP_SECONDS)  # the database may not answer
        if self.is_a_program:
            sys.stderr.flush()
            os._exit(STUCK)  # nothing else ends a thread

    def _report(self, worker: Worker, stored: int, verbosity: int) -> None:
        pending = Job.objects.using(worker.using).filter(
            status=Job.Status.PENDING, spec__in=worker.specs
        )
        left = pending.count() if worker.drain else 0
        is_idle = worker.drain and not (stored or left or worker.failed)
        text = "Nothing was waiting." if is_idle else f"{brought(stored)}."
        if worker.failed:
            text += f" {worker.failed:,} failed: manage.py embed_status says why."
        found = worker.hindrances
        if left and (found.paused or found.quarantined):
            waited_for = ["a provider that is down"] * bool(found.paused)
            waited_for += ["their tables to be as declared"] * bool(found.quarantined)
            why = "; ".join(
                f"{name}: {why}"
                for name, why in [*found.paused.items(), *found.quarantined.items()]
            )
            backing_off = pending.filter(attempts__gt=0, run_at__gt=Now()).count()
            if backing_off:
                text += f" {backing_off:,} wait for their next attempt."
            if others := left - backing_off:
                text += f" {others:,} wait for {' or for '.join(waited_for)}."
            raise CommandError(f"{text} {why}")
        if left and worker.is_asked_to_stop:
            text += f" {left:,} left."
        elif left:
            text += f" {left:,} wait for their next attempt, or for an open transaction."
        if worker.recycled_for:
            text += f" Ended to be started again: {worker.recycled_for}."
        if verbosity > 0:
            self.stdout.write(self.style.SUCCESS(text))

    def _look_at_tables(self, chosen: Iterable[Spec], *, using: str) -> None:
        if database.rows(using, "SELECT to_regtype('vector')") == [(None,)]:
            raise CommandError(
                f"The database {using!r} has no extension vector. Have it created: "
                "CREATE EXTENSION vector. Where it is in a schema of its own, have that added to "
                "the role's search_path.",
                returncode=CANNOT_START,
            )
        newer = self.refuse_missing_tables(chosen, using=using)
        for spec, migration in newer.items():
            # In the middle of a deploy: work on the other specs, as running workers do too.
            reason = (
                f"it has no table, and the migration {migration} is applied, and is not in this "
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
