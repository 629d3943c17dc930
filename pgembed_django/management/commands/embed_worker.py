"""``manage.py embed_worker``: keep the vectors fresh."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from pgembed_django import conf
from pgembed_django.exceptions import PgembedError
from pgembed_django.management.command import CANNOT_START, EmbedCommand, seconds, whole
from pgembed_django.worker import Worker

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)


class Command(EmbedCommand):
    help = (
        "Embeds changed rows until it is stopped. SIGTERM or Ctrl-C: finishes what is in "
        "flight, gives the rest back and exits; a second one: exits at once. "
        "Exit status: 0 stopped or drained, 1 failed, 2 could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--drain",
            "--once",
            action="store_true",
            help="Exit as soon as nothing is ready, instead of waiting for more.",
        )
        for option, setting, kind in (
            ("--concurrency", "concurrency", whole),
            ("--batch-size", "batch_size", whole),
            ("--claim", "claim_limit", whole),
            ("--poll", "poll_seconds", seconds),
        ):
            parser.add_argument(
                option,
                dest=setting,
                type=kind,
                metavar="N" if kind is whole else "SECONDS",
                help=f"Instead of {conf.PREFIX}{setting.upper()}.",
            )

    def handle(self, **options: Any) -> None:
        settings = conf.current()
        given = {
            name: options[name]
            for name in ("concurrency", "batch_size", "claim_limit", "poll_seconds")
            if options[name] is not None
        }
        worker = Worker(
            self.specs(options["specs"]),
            using=self.database(options["database"]),
            settings=dataclasses.replace(settings, **given),
            drain=options["drain"],
        )
        self._log(options["verbosity"])
        try:
            settled = worker.run()
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=CANNOT_START) from error
        except PgembedError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"] > 0:
            self.stdout.write(self.style.SUCCESS(f"{settled} rows are fresh."))

    def _log(self, verbosity: int) -> None:
        """Write the log where a person sees it, unless LOGGING says what is to become of it."""
        logger = logging.getLogger("pgembed_django")
        if not logger.hasHandlers():
            handler = logging.StreamHandler(self.stderr)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(LEVELS[verbosity])
