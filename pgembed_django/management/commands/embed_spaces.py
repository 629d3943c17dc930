"""``manage.py embed_spaces``: list the spaces, and switch between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser

from pgembed_django import spaces, specs
from pgembed_django.database import Busy
from pgembed_django.maintenance import reconcile, retired
from pgembed_django.models import Space
from pgembed_django.ops import status
from pgembed_django.ops.command import CANNOT_START, EmbedCommand
from pgembed_django.ops.formatting import duration, whole


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
        self.using = self.chosen_database(options["database"], writes=options["action"] != "list")
        chosen = self.chosen_specs(options["specs"], using=self.using)
        if options["action"] == "list" and options["space"] is not None:
            raise CommandError("list takes no number.", returncode=CANNOT_START)
        if options["action"] == "list":
            found = status.overview(using=self.using, specs=list(chosen.values()))
            for one in found.specs:
                self._list(chosen[one.key], one)
        elif options["action"] == "prune" and options["space"] is None:
            self._prune(chosen, spaces.prunable(retired_for_seconds=0, using=self.using))
        elif options["action"] == "renew" and options["space"] is None:
            self._renew_all(chosen)
        else:
            space = self._space(options["action"], options["space"], chosen)
            if options["action"] == "prune":
                self._prune_one(chosen, space)
            else:
                self._act(options["action"], space)

    def _list(self, spec: specs.Spec, now: status.SpecStatus) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(spec.key))
        found = Space.objects.using(self.using).filter(spec=spec.key).order_by("pk")
        if not found:
            self.stdout.write("  no space yet: manage.py embed_worker opens the first one")
        for space in found:
            told = self._described(spec, space, now)
            self.stdout.write(f"  {space.pk:>4}  {space.state:<8}  {told}")
        if again := reconcile.refreshing(spec, using=self.using):
            moves = now.verdict.state != "stalled"
            self.stdout.write(
                f"  changed recipe: {again.compared:,} of {again.rows:,} rows compared, "
                f"{again.waiting:,} waiting{_pace(again.left, now, moves=moves)}"
            )

    def _described(self, spec: specs.Spec, space: Space, now: status.SpecStatus) -> str:
        digest = f" {space.model_digest[:12]}" if space.model_digest else ""
        prefix = f", prefixed {space.document_prefix!r}" if space.document_prefix else ""
        model = f"{space.model}{digest}, {space.dimensions} dimensions{prefix}"
        if space.pruned_at:
            return f"{model}, pruned"
        try:
            found = spaces.coverage_of(spec, space, using=self.using)
        except Busy:
            return f"{model}, not counted: one of its tables is locked"
        if space.exchanged:
            model += ", exchanged for another model"
        told = f"{model}, {found.covered:,} of {found.rows:,} rows ({found.percent:.1f}%)"
        is_filled = bool(now.waiting or now.running) or space.state == Space.State.BUILDING
        if space.state == Space.State.RETIRED or not is_filled:
            return told
        shown = now.active if space.state == Space.State.ACTIVE else now.building
        return told + _pace(found.missing, now, moves=_moves(shown))

    def _space(self, action: str, pk: int | None, chosen: dict[str, specs.Spec]) -> Space:
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
        if space.spec not in chosen:
            raise CommandError(
                f"Space {pk} belongs to {space.spec}, which is not one of: {', '.join(chosen)}.",
                returncode=CANNOT_START,
            )
        return space

    def _act(self, action: str, space: Space) -> None:
        if action == "activate":
            done = spaces.activate(space, is_partial=True, using=self.using)
            said, needed = f"Searches now use {space}.", "building"
        elif action == "rollback":
            built = spaces.reopen(space, using=self.using)
            done, needed = built is not None, "retired"
            said = f"The workers top up {space}, then searches use it."
            if built != space:
                said = f"The workers build {space} again, then searches use it."
        elif action == "renew":
            done, needed = spaces.renew(space, using=self.using) is not None, "active or building"
            said = f"The workers build {space} again with the model that answers now."
        else:
            done = space.state == Space.State.BUILDING and spaces.cancel(
                space.spec, using=self.using
            )
            said, needed = f"{space} is no longer being built.", "building"
        if not done:
            self._refuse(space, needed)
        self.stdout.write(self.style.SUCCESS(said))

    def _renew_all(self, chosen: dict[str, specs.Spec]) -> None:
        live = spaces.live_of(chosen.values(), using=self.using)
        # Not where a space that is being built replaces it already.
        exchanged = [found[-1] for found in live.values() if found and found[-1].exchanged]
        if not exchanged:
            self.stdout.write(
                "No model was exchanged. To embed a space's rows again anyway, give its number."
            )
        for space in exchanged:
            self._act("renew", space)

    def _refuse(self, space: Space, needed: str) -> NoReturn:
        if anew := spaces.renewed(space, using=self.using):
            raise CommandError(
                f"Space {space.pk} was started again as {anew.pk}, which is {anew.state}."
            )
        raise CommandError(f"Space {space.pk} is {space.state}. It must be {needed}.")

    def _prune_one(self, chosen: dict[str, specs.Spec], space: Space) -> None:
        if space.state != Space.State.RETIRED or space.pruned_at:
            state = "pruned already" if space.pruned_at else space.state
            raise CommandError(f"Space {space.pk} is {state}. It must be retired.")
        self._prune(chosen, [space])

    def _prune(self, chosen: dict[str, specs.Spec], found: Iterable[Space]) -> None:
        of_chosen = [space for space in found if space.spec in chosen]
        if not of_chosen:
            self.stdout.write("No retired space has vectors to delete.")
        for space in of_chosen:
            if not retired.prune(chosen[space.spec], space, using=self.using):
                raise CommandError(
                    f"{space} is not pruned: a worker is building an index, or it was "
                    "reopened. Try again when embed_spaces lists it as retired."
                )
            self.stdout.write(self.style.SUCCESS(f"Pruned {space}."))


def _moves(shown: status.SpaceStatus | None) -> bool:
    """Return whether a space is being filled.

    An ETA says so. Without one it may still be, if the status's sample shows no gaps: the last
    few are in no sample.
    """
    if shown is None:
        return False
    return shown.eta_seconds is not None or not (shown.coverage and shown.coverage.missing)


def _pace(left: int, now: status.SpecStatus, *, moves: bool) -> str:
    rate = now.units_per_second
    if not left:
        return ""
    if not rate:
        return ", no progress in the last minutes"
    if not moves:
        return ", stalled: embed_status says why"
    return f", {rate:.1f} rows a second, about {duration(left / rate)} to go"
