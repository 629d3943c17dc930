"""``manage.py embed_spaces``: see which models' vectors there are, and switch between them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from pgembed_django import conf, spaces, specs
from pgembed_django.maintenance import Maintenance
from pgembed_django.management.command import CANNOT_START, EmbedCommand
from pgembed_django.models import Space


class Command(EmbedCommand):
    help = (
        "Lists the spaces: one for each model that a spec's vectors were made with. A new model "
        "in the settings is built behind the active one and switched to by itself. By hand: "
        "'activate' switches now, before it is full; 'cancel' stops building; 'rollback' goes "
        "back to a retired space, after it is topped up; 'prune' deletes what is retired."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "action",
            nargs="?",
            choices=["list", "activate", "cancel", "rollback", "prune"],
            default="list",
        )
        parser.add_argument("space", nargs="?", type=int, help="The space's number in the list.")

    def handle(self, **options: Any) -> None:
        self.using = self.database(options["database"])
        chosen = self.specs(options["specs"], using=self.using)
        if options["action"] == "list":
            for spec in chosen.values():
                self._list(spec)
        elif options["action"] == "prune":
            self._prune(chosen)
        else:
            self._act(options["action"], self._space(options["action"], options["space"]))

    def _list(self, spec: specs.Spec) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(spec.key))
        found = Space.objects.using(self.using).filter(spec=spec.key).order_by("pk")
        if not found:
            self.stdout.write("  no space yet: manage.py embed_worker opens the first one")
        for space in found:
            self.stdout.write(f"  {space.pk:>4}  {space.state:<8}  {self._described(spec, space)}")

    def _described(self, spec: specs.Spec, space: Space) -> str:
        digest = f" {space.model_digest[:12]}" if space.model_digest else ""
        model = f"{space.model}{digest}, {space.dimensions} dimensions"
        if space.pruned_at:
            return f"{model}, pruned"
        found = spaces.coverage(spec, space, using=self.using)
        return f"{model}, {found.covered:,} of {found.rows:,} rows ({found.ratio:.1%})"

    def _space(self, action: str, pk: int | None) -> Space:
        if pk is None:
            raise CommandError(
                f"Which space? 'embed_spaces' lists them; then 'embed_spaces {action} NUMBER'.",
                returncode=CANNOT_START,
            )
        space = Space.objects.using(self.using).filter(pk=pk).first()
        if space is None:
            raise CommandError(
                f"No space has the number {pk}. 'embed_spaces' lists them.", returncode=CANNOT_START
            )
        return space

    def _act(self, action: str, space: Space) -> None:
        if action == "activate":
            done = spaces.activate(space, is_partial=True, using=self.using)
            said, needed = f"{space} is searched from now on.", "building"
        elif action == "rollback":
            done = spaces.reopen(space, using=self.using)
            said = f"{space} is topped up by the workers, then searched."
            needed = "retired and not pruned"
        else:
            done = space.state == Space.State.BUILDING and spaces.cancel(
                space.spec, using=self.using
            )
            said, needed = f"{space} is no longer built.", "building"
        if not done:
            raise CommandError(f"Space {space.pk} is {space.state}. It has to be {needed}.")
        self.stdout.write(self.style.SUCCESS(said))

    def _prune(self, chosen: dict[str, specs.Spec]) -> None:
        retired = spaces.prunable(retired_for_seconds=0, using=self.using)
        maintenance = Maintenance(
            chosen, using=self.using, settings=conf.current(), wake=lambda: None
        )
        for space in retired:
            if space.spec in chosen:
                maintenance.prune_space(chosen[space.spec], space)
                self.stdout.write(self.style.SUCCESS(f"Pruned {space}."))
