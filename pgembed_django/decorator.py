"""``@embeddable``: declare what is embedded of a model's rows.

Generates ``<Model>Embedding`` and the triggers, both in the model's own app, where
makemigrations finds them. Refuses what could not be kept fresh.
"""

from __future__ import annotations

import functools
import keyword
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pgtrigger
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.signals import class_prepared

from pgembed_django import requirements, specs, tables, triggers
from pgembed_django.chunkers import Chunker
from pgembed_django.requirements import refuse
from pgembed_django.specs import Spec, Stale, TriggerLevel

M = TypeVar("M", bound=models.Model)


def embeddable(
    *,
    fields: Sequence[str],
    text: str | None = None,
    when: models.Q | None = None,
    provider: str = "default",
    chunker: Chunker | None = None,
    priority: int = 0,
    name: str | None = None,
    stale: Stale = "serve",
    store_text: bool = True,
    trigger_level: TriggerLevel = "row",
) -> Callable[[type[M]], type[M]]:
    """Keep embeddings of a model's rows.

    ``fields`` are watched and, without ``text``, embedded. ``text`` names a method that
    returns the text instead. Rows that do not match ``when`` are neither embedded nor found.
    ``priority``, from -100 to 100: higher first. ``name`` is that of the generated model, by
    default ``<Model>Embedding``; on an abstract base it may hold ``%(class)s``.
    ``trigger_level="statement"`` enqueues the rows of an INSERT together.

    Raises:
        ImproperlyConfigured: the model or a value cannot be kept fresh by triggers.
    """
    declaration = Declaration(
        fields=fields,
        text=text,
        when=when,
        provider=provider,
        chunker=Chunker() if chunker is None else chunker,
        priority=priority,
        name=name,
        stale=stale,
        store_text=store_text,
        trigger_level=trigger_level,
    )

    def decorate(model: type[M]) -> type[M]:
        if not (isinstance(model, type) and issubclass(model, models.Model)):
            raise ImproperlyConfigured(
                f"@embeddable on {model!r}: that is no model. Put it above a class of "
                "django.db.models.Model."
            )
        if model._meta.abstract:
            declaration.declare_on_subclasses(model)
        else:
            declaration.declare(model)
        return model

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The keywords of one ``@embeddable``."""

    fields: Sequence[str]
    text: str | None
    when: models.Q | None
    provider: str
    chunker: Chunker
    priority: int
    name: str | None
    stale: Stale
    store_text: bool
    trigger_level: TriggerLevel

    def declare_on_subclasses(self, base: type[models.Model]) -> None:
        """Declare on each concrete model of an abstract base, unless its parent is covered."""
        if self.name is not None and "%(class)s" not in self.name:
            refuse(
                base,
                f"name is {self.name!r}, and each model that inherits from {base.__name__} needs "
                f"one of its own. Write for instance '%(class)s{self.name}'.",
            )
        class_prepared.connect(functools.partial(self._on_class_prepared, base), weak=False)

    def _on_class_prepared(
        self, base: type[models.Model], *, sender: type[models.Model], **_: object
    ) -> None:
        parents = sender._meta.all_parents
        is_covered = any(issubclass(parent, base) for parent in parents)
        if issubclass(sender, base) and not sender._meta.proxy and not is_covered:
            self.declare(sender)

    def declare(self, model: type[models.Model]) -> None:
        """Generate the table's model and the triggers, and register the spec."""
        name = self._name(model)
        requirements.check(self, model)
        embedding_model = tables.embedding_model(model, name=name)
        spec = Spec(
            key=f"{model._meta.app_label}.{name}",
            model=model,
            embedding_model=embedding_model,
            fields=tuple(self.fields),
            text=self.text,
            when=self.when or None,
            provider=self.provider,
            chunker=self.chunker,
            priority=self.priority,
            stale=self.stale,
            store_text=self.store_text,
            trigger_level=self.trigger_level,
            is_from_outside=_is_bound(model),
        )
        watch = triggers.Watch(
            key=spec.key,
            name=name,
            fields=spec.fields,
            when=spec.when,
            priority=spec.priority,
            embedding_table=embedding_model._meta.db_table,
            is_by_statement=spec.trigger_level == "statement",
        )
        pgtrigger.register(*triggers.triggers(watch))(model)
        specs.register(spec)

    def _name(self, model: type[models.Model]) -> str:
        template = "%(class)sEmbedding" if self.name is None else self.name
        name = str(template).replace("%(class)s", model.__name__)
        if (
            not name.isidentifier()
            or keyword.iskeyword(name)
            or "__" in name
            or name != name.strip("_")
        ):
            refuse(
                model,
                f"name is {name!r}. Give a name for a Python class, without '__' in it and "
                "without '_' at its ends.",
            )
        key = f"{model._meta.app_label}.{name}"
        if name.lower() in model._meta.apps.all_models[model._meta.app_label]:
            refuse(
                model,
                f"there is a model {key!r} already. Give this declaration a name of its own: "
                f"name={model.__name__ + 'Vectors'!r}.",
            )
        return name


def _is_bound(model: type[models.Model]) -> bool:
    # A decorator is called before its class has a name in the module.
    return getattr(sys.modules.get(model.__module__), model.__name__, None) is model
