"""``manage.py embed_probe``: test whether providers and rerankers answer, and how fast."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from pgembed_django import conf, providers, rerankers
from pgembed_django.exceptions import ProviderError
from pgembed_django.ops.command import StoppableCommand, cannot_start
from pgembed_django.providers import Provider, Report, probes
from pgembed_django.rerankers import Reranker
from pgembed_django.retrieval.reranking import MOST

QUERY: Final = "Which passages does a search find?"

LOADING_SECONDS: Final = 120.0
"""How long to wait for a reranker: a model in this process has to be loaded first."""


class Command(StoppableCommand):
    help = (
        "Asks providers to embed a word and then batches: is the server reached, does it have "
        "the model, how wide are its vectors, how fast is it? The milliseconds per text are what "
        "batches, time-outs and the number of workers follow from: see the page on sizing. "
        "Asks rerankers to score a passage, and then as many as a search has scored. "
        "Exit status: 0 all work, 1 at least one does not, 2 no such provider, or an unusable one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "provider",
            nargs="*",
            metavar="PROVIDER",
            help="An alias in PGEMBED_PROVIDERS. All, and all rerankers, unless given.",
        )

    def handle(self, **options: Any) -> None:
        aliases = options["provider"] or list(conf.current().providers)
        if not aliases:
            raise cannot_start("PGEMBED_PROVIDERS is empty: set it.")
        try:
            asked = {alias: providers.get(alias) for alias in aliases}
            others = [] if options["provider"] else list(conf.current().rerankers)
            scoring = {alias: rerankers.get(alias) for alias in others}
        except ImproperlyConfigured as error:
            raise cannot_start(str(error)) from error
        failed = [alias for alias, provider in asked.items() if not self._works(provider)]
        failed += [alias for alias, reranker in scoring.items() if not self._scores(reranker)]
        if failed:
            raise CommandError(f"These failed: {', '.join(failed)}.")

    def _works(self, provider: Provider) -> bool:
        """Probe a provider, and write each finding as soon as it is made."""
        self.stdout.write(self.style.MIGRATE_HEADING(str(provider)))
        self.stdout.flush()
        probe = provider.probe()
        present = {True: "present", False: "missing", None: "unknown"}[probe.model_present]
        self._write("reachable", "yes" if probe.reachable else "no")
        self._write("model", present)
        cut = f", cut to {provider.dimensions}" if provider.truncate_dimensions else ""
        self._write("width", f"{probe.width}{cut}" if probe.width else "unknown")
        self._write("digest", probe.digest or "not reported")
        if provider.start_seconds:
            self._write("runs on", provider.runs_on())
            self._write("starts in", f"{provider.start_seconds:.1f} s")
        self._write("first word", f"{probe.seconds * 1000:.0f} ms")
        if probe.doubt:
            self.stdout.write(self.style.WARNING(f"  {probe.doubt}"))
        if not probe.ok:
            self.stdout.write(self.style.ERROR(f"  {probe.message}"))
            return False
        if provider.may_cut_silently:
            self._write("context", probes.context(provider))
        timings = []
        for timing in probes.timings(provider):
            timings.append(timing)
            each = timing.milliseconds_per_text
            text = timing.message if each is None else f"{each:.1f} ms per text"
            self._write(f"batch of {timing.batch_size}", text)
        report = Report(probe=probe, timings=tuple(timings))
        if report.recommended_batch_size:
            self._write("recommended batch_size", report.recommended_batch_size)
            each = min(one.milliseconds_per_text or math.inf for one in timings)
            self._write("rate", f"{1000 / each:,.0f} texts of 200 words per second")
        return report.ok

    def _scores(self, reranker: Reranker) -> bool:
        """Have a reranker score passages. The first time includes loading its model."""
        self.stdout.write(self.style.MIGRATE_HEADING(str(reranker)))
        self.stdout.flush()
        seconds = 0.0
        for label, count in (("first passage", 1), (f"{MOST} passages", MOST)):
            passages = [f"{number} {probes.SAMPLE}" for number in range(count)]
            started = time.perf_counter()
            try:
                reranker.scores(QUERY, passages, timeout_seconds=LOADING_SECONDS)
            except ProviderError as error:
                self.stdout.write(self.style.ERROR(f"  {error}"))
                return False
            seconds = time.perf_counter() - started
            self._write(label, f"{seconds * 1000:.0f} ms")
        if seconds > reranker.timeout_seconds:
            waits = f"Searches wait {reranker.timeout_seconds:g} s for it: see timeout_seconds."
            self.stdout.write(self.style.WARNING(f"  {waits}"))
        return True

    def _write(self, label: str, value: object) -> None:
        self.stdout.write(f"  {label + ':':<24}{value}")
        self.stdout.flush()
