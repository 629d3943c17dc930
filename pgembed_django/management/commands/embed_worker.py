"""``manage.py embed_worker``: keep the vectors fresh."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, OperationalError, ProgrammingError, connections

from pgembed_django import conf, specs
from pgembed_django.exceptions import PgembedError
from pgembed_django.worker import Worker


class Command(BaseCommand):
    help = (
        "Embeds changed rows until it is stopped. SIGTERM or Ctrl-C: finishes what is in "
        "flight, gives the rest back and exits; a second one: exits at once. "
        "Exit status: 0 stopped or drained, 1 failed, 2 could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--drain",
            "--once",
            action="store_true",
            help="Exit as soon as nothing is ready, instead of waiting for more.",
        )
        parser.add_argument(
            "--specs",
            nargs="+",
            metavar="SPEC",
            help="Work only on these, for example blog.ArticleEmbedding. All, unless given.",
        )
        parser.add_argument(
            "--database",
            help="The alias of the database. PGEMBED_WORKER_DATABASE, or default, unless given.",
        )
        for option, setting, kind in (
            ("--concurrency", "concurrency", _whole),
            ("--batch-size", "batch_size", _whole),
            ("--claim", "claim_limit", _whole),
            ("--poll", "poll_seconds", _seconds),
        ):
            parser.add_argument(
                option,
                dest=setting,
                type=kind,
                metavar="N" if kind is _whole else "SECONDS",
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
            self._specs(options["specs"]),
            using=self._database(options["database"] or settings.worker_database),
            settings=dataclasses.replace(settings, **given),
            drain=options["drain"],
        )
        try:
            settled = worker.run()
        except PgembedError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"] > 0:
            self.stdout.write(self.style.SUCCESS(f"{settled} rows are fresh."))

    def _specs(self, keys: list[str] | None) -> dict[str, specs.Spec]:
        known = {spec.key: spec for spec in specs.all()}
        if not known:
            raise CommandError(
                "No model is embeddable. Decorate one with @embeddable(fields=[...]), then run "
                "makemigrations and migrate.",
                returncode=2,
            )
        for key in keys or ():
            if key not in known:
                raise CommandError(
                    f"No spec named {key!r}. There are: {', '.join(known)}.", returncode=2
                )
        return {key: spec for key, spec in known.items() if not keys or key in keys}

    def _database(self, alias: str | None) -> str:
        alias = alias or DEFAULT_DB_ALIAS
        if alias not in connections:
            raise CommandError(
                f"No database named {alias!r}. There are: {', '.join(connections)}.", returncode=2
            )
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT 'pgembed_job'::regclass")
        except OperationalError as error:
            raise CommandError(
                f"Cannot reach the database {alias!r}: {str(error).strip()}\n"
                "Is it running, and are DATABASES right?",
                returncode=2,
            ) from error
        except ProgrammingError as error:
            raise CommandError(
                f"The database {alias!r} has no job table. Run manage.py migrate.", returncode=2
            ) from error
        return alias


def _whole(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of one or more")
    return int(value)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds above zero")
    return seconds
