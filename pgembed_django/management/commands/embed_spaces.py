"""``manage.py embed_spaces``: list the spaces, and switch between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Space
from pgembed_django.ops import status
from pgembed_django.ops.command import EmbedCommand, cannot_start
from pgembed_django.ops.formatting import duration, whole
from pgembed_django.spaces import reconcile


class Command(EmbedCommand):
    help = (
        "Lists the spaces: one for each model that a spec's vectors were made with. A new model "
        "in the settings is built behind the active one and switched to by itself. By hand: "
        "'activate' switches now, before it is full; 'cancel' stops building; 'rollback' goes "
        "back to a retired space, after it is topped up, or built again if it was pruned; 'prune' "
        "deletes what is retired: all of it, or the space of that number; 'renew' embeds all rows "
        "again, in a new space: those of every space whose model was exchanged, or of one space. "
        "Exit status: 0 done; 1 not done, the space is in another state; 2 could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "action",
            nargs="?",
            choices=["list", "activate", "cancel", "rollback", "prune", "renew"],
            default="list",
            help="What to do. To list them, unless given.",
        )
        parser.add_argument("space", nargs="?", type=whole, help="The space's number in the list.")

    def handle(self, **options: Any) -> None:
        action, number = options["action"], options["space"]
        self.using = self.chosen_database(options["database"], writes=action != "list")
        chosen = self.chosen_specs(options["specs"], using=self.using)
        if action == "list":
            if number is not None:
                raise cannot_start("list takes no number.")
            found = status.overview(using=self.using, specs=list(chosen.values()), is_exact=True)
            for one in found.specs:
                self._list(chosen[one.key], one)
        elif action == "prune" and number is None:
            self._prune(chosen, spaces.prunable(retired_for_seconds=0, using=self.using))
        elif action == "renew" and number is None:
            live = spaces.live_of(chosen.values(), using=self.using).values()
            # Not where a space that is being built replaces it already.
            exchanged = [found[-1] for found in live if found and found[-1].exchanged]
            for space in exchanged:
                self._act("renew", space)
            if not exchanged:
                self.stdout.write(
                    "No model was exchanged. To embed a space's rows again anyway, give its number."
                )
        else:
            space = self._space(action, number, chosen)
            if action != "prune":
                self._act(action, space)
            elif space.state != Space.State.RETIRED or space.pruned_at:
                state = "pruned already" if space.pruned_at else space.state
                raise CommandError(f"Space {space.pk} is {state}. It must be retired.")
            else:
                self._prune(chosen, [space])

    def _list(self, spec: specs.Spec, now: status.SpecStatus) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(spec.key))
        found = Space.objects.using(self.using).filter(spec=spec.key).order_by("pk")
        if not found:
            self.stdout.write("  no space yet: manage.py embed_worker opens the first one")
        for space in found:
            digest = f" {space.model_digest[:12]}" if space.model_digest else ""
            prefix = f", prefixed {space.document_prefix!r}" if space.document_prefix else ""
            told = f"{space.model}{digest}, {space.dimensions} dimensions{prefix}"
            for name, value in spaces.provider_of(space).space_options_in(space.options).items():
                told += f", {name} {value!r}"
            if space.exchanged:
                told += ", exchanged for another model"
            if space.pruned_at:
                told += ", pruned"
            for live in (now.active, now.building):
                if live and live.id == space.pk:
                    told += f", {_filled(live, now)}"
            self.stdout.write(f"  {space.pk:>4}  {space.state:<8}  {told}")
        if again := reconcile.refreshing(spec, using=self.using):
            told = f"{again.compared:,} of {again.rows:,} rows compared, {again.waiting:,} waiting"
            pace = now.units_per_second if now.verdict.state != "stalled" else 0.0
            self.stdout.write(f"  changed recipe: {told}{_pace(again.left, pace)}")

    def _space(self, action: str, pk: int | None, chosen: dict[str, specs.Spec]) -> Space:
        if pk is None:
            raise cannot_start(
                f"Which space? 'embed_spaces' lists them; then 'embed_spaces {action} NUMBER'."
            )
        space = Space.objects.using(self.using).filter(pk=pk).first()
        if space is None:
            raise cannot_start(f"No space has the number {pk}. 'embed_spaces' lists them.")
        if space.spec not in chosen:
            raise cannot_start(
                f"Space {pk} belongs to {space.spec}, which is not one of: {', '.join(chosen)}."
            )
        return space

    def _act(self, action: str, space: Space) -> None:
        done: object
        if action == "activate":
            done = spaces.activate(space, is_partial=True, using=self.using)
            said, needed = f"Searches now use {space}.", "building"
        elif action == "rollback":
            done = built = spaces.reopen(space, using=self.using)
            work = "top up {}" if built == space else "build {} again"
            said = f"The workers {work.format(space)}, then searches use it."
            needed = "retired"
        elif action == "renew":
            done = spaces.renew(space, using=self.using)
            said = f"The workers build {space} again with the model that answers now."
            needed = "active or building"
        else:
            done = space.state == Space.State.BUILDING
            done = done and spaces.cancel(space.spec, using=self.using)
            said, needed = f"{space} is no longer being built.", "building"
        if done:
            self.stdout.write(self.style.SUCCESS(said))
        elif anew := spaces.renewed(space, using=self.using):
            raise CommandError(
                f"Space {space.pk} was started again as {anew.pk}, which is {anew.state}."
            )
        else:
            raise CommandError(f"Space {space.pk} is {space.state}. It must be {needed}.")

    def _prune(self, chosen: dict[str, specs.Spec], found: Iterable[Space]) -> None:
        of_chosen = [space for space in found if space.spec in chosen]
        if not of_chosen:
            self.stdout.write("No retired space has vectors to delete.")
        for space in of_chosen:
            if not spaces.prune(chosen[space.spec], space, using=self.using):
                raise CommandError(
                    f"{space} is not pruned: a worker is building an index, or it was "
                    "reopened. Try again when embed_spaces lists it as retired."
                )
            self.stdout.write(self.style.SUCCESS(f"Pruned {space}."))


def _filled(space: status.SpaceStatus, now: status.SpecStatus) -> str:
    """Return how far a live space is filled, and how long the rest will take."""
    coverage = space.coverage
    if coverage is None:
        return "not counted: one of its tables is locked"
    told = f"{coverage.covered:,} of {coverage.rows:,} rows ({coverage.percent:.1f}%)"
    if space.is_active and not (now.waiting or now.running):
        return told  # the rest has failed, or is not found yet
    return told + _pace(coverage.missing, now.units_per_second if space.eta_seconds else 0.0)


def _pace(left: int, rate: float) -> str:
    if not left:
        return ""
    if not rate:
        return ", stalled: embed_status says why"
    return f", {rate:.1f} rows a second, about {duration(left / rate)} to go"
