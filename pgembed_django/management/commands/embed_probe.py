"""``manage.py embed_probe``: test whether the providers answer, and how fast."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from pgembed_django import conf, providers
from pgembed_django.management.stoppable import CANNOT_START, StoppableCommand
from pgembed_django.providers import Report


class Command(StoppableCommand):
    help = (
        "Asks providers to embed a word and then batches: is the server reached, does it have "
        "the model, how wide are its vectors, how fast is it? The milliseconds per text are what "
        "batches, time-outs and the number of workers follow from: see the page on sizing. "
        "Exit status: 0 well, 1 at least one is not, 2 no such provider, or an unusable one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "provider",
            nargs="*",
            metavar="PROVIDER",
            help="An alias in PGEMBED_PROVIDERS. All, unless given.",
        )

    def handle(self, **options: Any) -> None:
        aliases = options["provider"] or list(conf.current().providers)
        if not aliases:
            raise CommandError("PGEMBED_PROVIDERS is empty: set it.", returncode=CANNOT_START)
        try:
            asked = {alias: providers.get(alias) for alias in aliases}
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=CANNOT_START) from error
        unwell = []
        for alias, provider in asked.items():
            report = providers.report(provider)
            self._write(str(provider), report)
            if not report.ok:
                unwell.append(alias)
        if unwell:
            raise CommandError(f"Not well: {', '.join(unwell)}.", returncode=1)

    def _write(self, name: str, report: Report) -> None:
        probe = report.probe
        self.stdout.write(self.style.MIGRATE_HEADING(name))
        rows: list[tuple[str, object]] = [
            ("reachable", "yes" if probe.reachable else "no"),
            ("model", {True: "present", False: "missing", None: "unknown"}[probe.model_present]),
            ("width", probe.width or "unknown"),
            ("digest", probe.digest or "not told"),
            ("first word", f"{probe.seconds * 1000:.0f} ms"),
        ]
        rows += [
            (
                f"batch of {timing.batch_size}",
                timing.message
                if timing.milliseconds_per_text is None
                else f"{timing.milliseconds_per_text:.1f} ms per text",
            )
            for timing in report.timings
        ]
        if report.recommended_batch_size:
            rows.append(("recommended batch_size", report.recommended_batch_size))
        for label, value in rows:
            self.stdout.write(f"  {label + ':':<24}{value}")
        if probe.message:
            self.stdout.write(self.style.ERROR(f"  {probe.message}"))
