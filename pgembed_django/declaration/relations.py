"""Follow the lookups of ``related``, and the columns of parents, to the tables that they read.

A text may span tables: an author's name, tags, a title in the parent's table (multi-table
inheritance). For each such table a ``Link`` says how a changed row leads back to units, and which
of its columns matter. Triggers on these tables insert ripples, and workers expand them.

A lookup is followed hop by hop. Where the nearer row has the foreign key, the other one is named by
its primary key, and the column with the foreign key is watched on the nearer row. Where the farther
row has it (reverse and generic relations, through rows), that row is named by its foreign key. So
whatever moves, by whichever statement, names the units that were linked before, and those after.

All models must be loaded. ``own_columns`` needs only the model itself and its parents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NoReturn

from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models import (
    BinaryField,
    CharField,
    ForeignObjectRel,
    Manager,
    Model,
    Q,
    QuerySet,
    TextField,
)
from django.db.models.functions import Cast

from pgembed_django.core import text as texts
from pgembed_django.exceptions import did_you_mean
from pgembed_django.triggers import conditions
from pgembed_django.triggers.related import Link

INSTEAD = (
    "Leave it out, and copy the value into a column. Or have a text method read it, and enqueue "
    "the rows where it changes."
)

TEXTUAL = (CharField, TextField)

Related = Mapping[str, list[Any]]
"""The values of ``related`` by source_pk."""


@dataclass(frozen=True, slots=True)
class Values:
    """What a lookup of ``related`` reads. ``relation`` is the lookup without the column.

    ``accessors`` is the same for ``prefetch_related``. ``order`` has the keys of the rows of each
    to-many relation on the way. ``is_cast``: a join would compare keys of text, of a generic
    relation, as another type. It could use no index, and a single key that is none would fail it.
    """

    lookup: str
    relation: str
    accessors: str
    order: tuple[str, ...]
    column: Any
    is_cast: bool


@dataclass(frozen=True, slots=True)
class Relations:
    """How a spec's texts span tables."""

    values: tuple[Values, ...]
    links: tuple[Link, ...]

    @property
    def compared(self) -> dict[str, Any]:
        """The field at the end of each path that a ripple may have."""
        return {link.path: link.compared for link in self.links}

    @property
    def prefetched(self) -> list[str]:
        """What to prefetch for a text method."""
        return list(dict.fromkeys(one.accessors for one in self.values))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk has come to. ``level`` is the lookup to its rows. No ``link``: the source."""

    model: type[Model]
    level: str = ""
    link: tuple[str, str, str] | None = None

    def at(self, name: str) -> str:
        """Return the lookup to one of its fields."""
        return f"{self.level}__{name}" if self.level else name


@dataclass(slots=True)
class _Walk:
    """Follows the lookups of one spec."""

    model: type[Model]
    text: str | None = None
    links: dict[tuple[str, str, str], Link] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    is_cast: bool = False
    lookup: str = ""

    def follow(self, lookup: str) -> Values:
        """Follow a lookup to its column, and watch all that it reads."""
        self.order, self.is_cast, self.lookup = (), False, lookup
        place = _Place(_concrete(self.model))
        *relations, column = lookup.split("__")
        accessors = []
        for name in relations:
            related = self._field(place.model, name)
            if not getattr(related, "path_infos", None):
                self._refuse(f"{name!r} leads to no other table. {INSTEAD}")
            is_reverse = isinstance(related, ForeignObjectRel)
            accessors.append(str(related.get_accessor_name()) if is_reverse else name)
            place = self._to_owner(place, related)
            level = place.at(name)
            for hop in related.path_infos:
                place = self._hop(place, hop, level)
        read = self._field(place.model, column)
        if read.is_relation:
            self._refuse(f"it ends in a relation. Name a column, for instance '{lookup}__name'.")
        place = self._to_owner(place, read)
        if problem := conditions.column_problem(read, model=place.model):
            self._refuse(f"{column!r} {problem}")
        if isinstance(read, BinaryField) and not self.text:
            self._refuse(f"{column!r} is binary. Name a method that reads it: text='...'.")
        self._watch(place, read)
        paths = "__".join(relations), "__".join(accessors)
        return Values(lookup, *paths, self.order, read, self.is_cast)

    def inherit(self, name: str) -> None:
        """Watch a column that may be in a parent's table."""
        self.lookup = name
        found = self.model._meta.get_field(name)
        self._watch(self._to_owner(_Place(_concrete(self.model)), found), found)

    def _to_owner(self, place: _Place, found: Any) -> _Place:
        """Go up to the parent's table that a field is in."""
        owner, options = _concrete(found.model), place.model._meta
        for hop in options.get_path_to_parent(owner) if owner is not place.model else ():
            place = self._hop(place, hop, place.at(hop.join_field.name))
        return place

    def _hop(self, place: _Place, hop: Any, level: str) -> _Place:
        """Follow one join to ``level``."""
        model, joined = _concrete(hop.to_opts.model), hop.join_field
        if hop.direct:
            near, far = self._only(joined.related_fields)
            self._watch(place, near)
            link = Link(
                model=model,
                path=f"{level}__pk",
                key=model._meta.pk,
                compared=model._meta.pk,
                columns=(far,),
                # A constraint keeps a row from coming where others point to, but for one that
                # takes another's place: by ``to_field``, it may have another primary key.
                may_vanish=not getattr(joined, "db_constraint", True) or far is not model._meta.pk,
            )
        else:
            far, near, columns = self._ends(model, joined.field)
            self.is_cast |= isinstance(far, TEXTUAL) and not isinstance(near, TEXTUAL)
            self._watch(place, near)
            link = Link(
                model=model,
                path=place.at("pk" if near is place.model._meta.pk else near.name),
                key=far,
                compared=near,
                columns=columns,
                may_vanish=True,
            )
        if hop.m2m:
            self.order += (f"{level}__pk",)
        return _Place(model, level, self._add(link))

    def _ends(self, model: type[Model], joined: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Return the far column of a reverse join, the near one, and all that link the row."""
        far, near = self._only(joined.related_fields)
        # A generic relation, or tags of django-taggit: the row's key and its kind link it. No
        # trigger can test the kind, whose id a migration cannot know. So a row of another model's
        # object with the same key leads to a job that finds nothing new.
        generic = [one for one in model._meta.private_fields if hasattr(one, "ct_field")]
        kinds = [one.ct_field for one in generic if one.fk_field == far.name]
        return far, near, tuple(model._meta.get_field(name) for name in kinds)

    def _only(self, pairs: Sequence[Any]) -> Any:
        if len(pairs) != 1:
            self._refuse(f"it joins by {len(pairs)} columns, and a ripple has one key. {INSTEAD}")
        return pairs[0]

    def _add(self, link: Link) -> tuple[str, str, str]:
        options = link.model._meta
        if not options.managed:
            self._refuse(
                f"{options.object_name} is unmanaged, so no migration can put triggers on its "
                f"table. {INSTEAD}"
            )
        if _concrete(link.key.model) is not link.model:
            self._refuse(f"{link.key.name!r} is in a parent's table of its model. {INSTEAD}")
        where = options.db_table, link.path, str(link.key.column)
        known = self.links.get(where, link)
        self.links[where] = replace(
            known,
            columns=tuple(dict.fromkeys((*known.columns, *link.columns))),
            may_vanish=known.may_vanish or link.may_vanish,
        )
        return where

    def _watch(self, place: _Place, column: Any) -> None:
        if place.link is not None:  # the source's own triggers watch its columns
            link = self.links[place.link]
            columns = dict.fromkeys((*link.columns, column))
            self.links[place.link] = replace(link, columns=tuple(columns))

    def _field(self, model: type[Model], name: str) -> Any:
        try:
            found: Any = model._meta.get_field(name)
        except FieldDoesNotExist:
            known = [one.name for one in model._meta.get_fields()]
            self._refuse(
                f"{model.__name__} has no field named {name!r}. {did_you_mean(name, known)}"
                f"It has: {', '.join(known)}."
            )
        if isinstance(found.related_model, str):
            self._refuse(f"{found.related_model!r}, which {name!r} points to, is not installed.")
        return found

    def _refuse(self, problem: str) -> NoReturn:
        raise ImproperlyConfigured(
            f"@embeddable on {self.model.__name__}: {self.lookup!r} cannot be watched: {problem}"
        )


def resolve(
    model: type[Model],
    *,
    fields: Sequence[str],
    related: Sequence[str],
    when: Q | None,
    text: str | None = None,
) -> Relations:
    """Return how texts of a model's rows span tables.

    Raises:
        ImproperlyConfigured: a lookup cannot be watched. The message says what to do instead.
    """
    walk = _Walk(model, text)
    values = tuple(walk.follow(lookup) for lookup in related)
    for name in (*fields, *conditions.names(when)):
        walk.inherit(name)
    return Relations(values, tuple(walk.links.values()))


def own_columns(
    model: type[Model], *, fields: Sequence[str], related: Sequence[str], when: Q | None
) -> tuple[str, ...]:
    """Return the fields in the model's own table that its own triggers have to watch.

    These are also its foreign keys of ``related``, and those of a condition that spans tables.
    """
    firsts = [lookup.partition("__")[0] for lookup in related]
    tested = conditions.names(when) if spans(model, when) else []
    return tuple(
        name
        for name in dict.fromkeys((*fields, *firsts, *tested))
        if (found := column(model, name)) and _concrete(found.model) is _concrete(model)
    )


def spans(model: type[Model], when: Q | None) -> bool:
    """Return whether a condition names a column of another table than the model's own."""
    fields = [model._meta.get_field(name) for name in conditions.names(when)]
    return any(_concrete(one.model) is not _concrete(model) for one in fields)


def read(spec: Any, keys: Sequence[Any], *, using: str | None) -> Related:
    """Return the values of ``related`` of rows, by source_pk and in their stated order.

    That is the order of ``related``; rows of a to-many relation come by their keys. It takes one
    query per relation.
    """
    values = spec.relations.values
    places = {one.lookup: number for number, one in enumerate(values)}
    parts: dict[str, list[list[Any]]] = defaultdict(lambda: [[] for _ in values])
    for relation in dict.fromkeys(one.relation for one in values):
        of_relation = [one for one in values if one.relation == relation]
        rows = spec.all_rows(using=using).filter(pk__in=keys)
        if of_relation[0].is_cast:
            columns = _prefetched(rows, of_relation)
        else:
            columns = rows.order_by(*of_relation[0].order).values_list(
                Cast("pk", TextField()), *(one.lookup for one in of_relation)
            )
        for source_pk, *of_row in columns:
            for one, value in zip(of_relation, of_row, strict=True):
                parts[source_pk][places[one.lookup]].append(texts.of_markup(one.column, value))
    return {source_pk: [*chain.from_iterable(lists)] for source_pk, lists in parts.items()}


def _prefetched(rows: QuerySet[Model], values: Sequence[Values]) -> Iterator[tuple[Any, ...]]:
    """Yield the source_pk, and the values of one relation, for each of its rows."""
    accessors = values[0].accessors
    found = rows.annotate(pgembed_source_pk=Cast("pk", TextField())).prefetch_related(accessors)
    for row in found:
        ends: list[Any] = [row]
        for name in accessors.split("__"):
            nearer, ends = ends, []
            for one in nearer:
                related = getattr(one, name, None)  # a missing one raises an AttributeError, too
                if isinstance(related, Manager):
                    ends += sorted(related.all(), key=attrgetter("pk"))
                elif related is not None:
                    ends.append(related)
        for end in ends:
            yield row.pgembed_source_pk, *(getattr(end, one.column.attname) for one in values)


def column(model: type[Model], name: str) -> Any:
    """Return the model's column of this name. None: it has none."""
    try:
        found: Any = model._meta.get_field(name)
    except FieldDoesNotExist:
        return None
    # Django 5.2 gives a many-to-many field a column.
    has_column = found.concrete and found.column is not None and not found.many_to_many
    return found if has_column else None


def _concrete(model: type[Model]) -> type[Model]:
    return model._meta.concrete_model or model
