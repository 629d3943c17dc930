"""``manage.py embed_tasks``: compare the two consumers of tasks while moving to this one."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pgembed_django.ops.command import StoppableCommand
from pgembed_django.ops.formatting import above_zero, whole
from pgembed_django.tasks import backend, moving

DIFFERENT = 1


class Command(StoppableCommand):
    help = (
        "Compares what both consumers have made of each task, while tasks are moved over from "
        "another queue. Lists the missing, doubled and differing ones. "
        "Exit status: 0 they agree, 1 they differ, 2 called wrongly."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "what", nargs="?", choices=["compare"], default="compare", help="What to do: compare."
        )
        parser.add_argument(
            "--hours", type=above_zero, default=24.0, help="How far to look back. Default: 24."
        )
        parser.add_argument(
            "--settled",
            type=above_zero,
            default=60.0,
            metavar="SECONDS",
            help="Leave out what was enqueued so recently: it may still run. Default: 60.",
        )
        parser.add_argument(
            "--limit", type=whole, default=100, help="List at most so many. Default: 100."
        )
        parser.add_argument("--json", action="store_true", help="One JSON object a line.")

    def handle(self, **options: Any) -> None:
        found = moving.compare(
            since=options["hours"] * 3600,
            settled=options["settled"],
            limit=options["limit"],
            using=backend.database(),
        )
        for one in found:
            shown = {"key": one.key, "function": one.function, "what": one.what}
            line = json.dumps(shown) if options["json"] else f"{one.what}: {one.key} {one.function}"
            self.stdout.write(line)
        if found:
            raise CommandError("The consumers differ.", returncode=DIFFERENT)
        if not options["json"]:
            self.stdout.write(self.style.SUCCESS("Both consumers agree."))
