"""``manage.py demo``: run the whole example, from the database to the search page."""

from __future__ import annotations

from typing import Any

from config import postgres
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo import show, signals
from demo.exceptions import DemoFailed


class Command(BaseCommand):
    help = (
        "Loads the standard library's documentation, embeds it, searches it, edits it, chats, and "
        "serves a search page and a chat page until Ctrl-C. Stops everything that it has started."
    )
    # No system checks: the demo has its own message for an unreachable database.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--no-serve", action="store_true", help="End after the searches, with status 0."
        )
        parser.add_argument("--port", type=int, help="Of the web server. 8000, if it is free.")
        parser.add_argument(
            "--timeout",
            type=float,
            default=120,
            metavar="SECONDS",
            help="Give up when the worker has not moved for so long.",
        )

    def handle(self, **options: Any) -> None:
        demo = show.Demo(
            say=self.stdout.write, timeout_seconds=options["timeout"], port=options["port"]
        )
        try:
            with signals.as_ctrl_c():
                try:
                    demo.run(serve=not options["no_serve"])
                finally:
                    signals.ignore()
                    postgres.stop()
        except DemoFailed as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        self.stdout.write("Stopped. Nothing is left running.")
