"""What keeps the queue clean: reap, reconcile, prune. On every worker, without a leader."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, database, jobs
from pgembed_django.exceptions import MaintenanceDied
from pgembed_django.maintenance import reconcile
from pgembed_django.models import Lap
from pgembed_django.specs import Spec

logger = logging.getLogger("pgembed_django")

PRUNE_SECONDS = 60.0
STALE_PAGE_SECONDS = 10.0
MAX_OUTAGE_SECONDS = 30.0


class Maintenance:
    """A thread with timers and a connection of its own. Each tick is a function of its own."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        settings: conf.Settings,
        wake: Callable[[], None],
    ) -> None:
        self.specs = specs
        self.using = using
        self.settings = settings
        self._wake = wake
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgembed-maintenance", daemon=True)
        self._timers: list[tuple[float, Callable[[], int]]] = [
            (settings.reap_seconds, self.reap),
            (settings.reconcile_seconds, self.reconcile),
            (settings.reconcile_seconds and STALE_PAGE_SECONDS, self.look_for_stale_rows),
            (PRUNE_SECONDS, self.prune),
        ]

    def once(self) -> int:
        """Do everything once, in the caller's thread. Returns how many jobs became ready."""
        return self.reap() + self.reconcile() + self.prune()

    def reap(self) -> int:
        """Take expired leases back."""
        reaped = jobs.reap(max_crashes=self.settings.max_crashes, using=self.using)
        for claim, result in reaped:
            logger.warning(
                "The lease of %s %s ran out (crash %d): %s",
                claim.spec,
                claim.source_pk,
                claim.crashes + 1,
                result,
            )
        return len(reaped)

    def reconcile(self) -> int:
        """Enqueue rows without vectors and vectors without rows; settle what has no spec."""
        unknown = jobs.fail_unknown(list(self.specs), using=self.using)
        if unknown:
            logger.warning("Failed %d jobs of specs that no longer exist", unknown)
        enqueued = 0
        for spec in self.specs.values():
            enqueued += reconcile.reconcile_once(spec, using=self.using)
            if not enqueued:
                reconcile.promote(spec, using=self.using)
        return enqueued

    def look_for_stale_rows(self) -> int:
        """Read the next page of texts of each spec, round and round."""
        pages = [
            reconcile.reconcile_page(spec, Lap.Sweep.STALE, using=self.using)
            for spec in self.specs.values()
        ]
        return sum(page.enqueued for page in pages if page)

    def prune(self) -> int:
        """Delete finished jobs that are old enough, in small batches."""
        while jobs.prune(keep_seconds=self.settings.keep_succeeded_seconds, using=self.using):
            if self._stopping.is_set():
                break
        jobs.forget_dead_workers(silent_seconds=self.settings.lease_seconds * 3, using=self.using)
        return 0

    def start(self) -> None:
        """Start the thread. Its first round begins at once."""
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the thread: a worker is never half alive."""
        if self._error is not None:
            raise MaintenanceDied(f"The maintenance thread died: {self._error}") from self._error

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=MAX_OUTAGE_SECONDS)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - raised again by check(), in the worker
            self._error = error
            self._wake()
        finally:
            connections[self.using].close()

    def _loop(self) -> None:
        database.settle_session(self.using)
        due = {tick: 0.0 for seconds, tick in self._timers if seconds}
        outage_seconds = 0.0
        while not self._stopping.is_set():
            try:
                for seconds, tick in self._timers:
                    if seconds and time.monotonic() >= due[tick] and not self._stopping.is_set():
                        if tick():
                            self._wake()
                        due[tick] = time.monotonic() + seconds
                outage_seconds = 0.0
            except (DatabaseError, InterfaceError) as error:
                if not database.is_lost_connection(error):
                    raise
                outage_seconds = min(outage_seconds * 2 or 0.5, MAX_OUTAGE_SECONDS)
                connections[self.using].close()
            next_due = min(due.values(), default=float("inf")) - time.monotonic()
            self._stopping.wait(outage_seconds or min(max(next_due, 0.0), threading.TIMEOUT_MAX))
