"""``@embeddable``: declare once what of a model is embedded.

Generates ``<Model>Embedding`` and the triggers, both in the model's own app, where
makemigrations finds them. Refuses what could not be kept fresh.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, get_args

import pgtrigger
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db import models
from django.db.models.signals import class_prepared

from pgembed_django import conditions, specs, tables, triggers
from pgembed_django.chunkers import Chunker
from pgembed_django.specs import Spec, Stale, TriggerLevel

M = TypeVar("M", bound=models.Model)

HIGHEST_PRIORITY = 100


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
    declaration = _Declaration(
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
class _Declaration:
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
        """Declare on each model that gets its table from an abstract base."""
        if self.name is not None and "%(class)s" not in self.name:
            _refuse(
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
        """Generate the table and the triggers, and make the spec known."""
        name = self._name(model)
        self._require_app(model)
        self._require_model(model)
        self._require_fields(model)
        self._require_values(model)
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
            _refuse(
                model,
                f"name is {name!r}. Give a name for a Python class, without '__' in it and "
                "without '_' at its ends.",
            )
        key = f"{model._meta.app_label}.{name}"
        if name.lower() in model._meta.apps.all_models[model._meta.app_label]:
            _refuse(
                model,
                f"there is a model {key!r} already. Give this declaration a name of its own: "
                f"name={model.__name__ + 'Vectors'!r}.",
            )
        return name

    def _require_app(self, model: type[models.Model]) -> None:
        if not apps.is_installed("pgembed_django"):
            _refuse(
                model,
                "'pgembed_django' is not in INSTALLED_APPS. Add it, and 'pgtrigger' and "
                "'django.contrib.postgres' with it.",
            )

    def _require_model(self, model: type[models.Model]) -> None:
        concrete = model._meta.concrete_model or model
        if not (model._meta.managed and concrete._meta.managed):
            _refuse(
                model,
                "the model is unmanaged, so no migration can put triggers on its table. Remove "
                "managed = False, or decorate a managed model of the same table.",
            )
        if getattr(model._meta, "is_composite_pk", False) or not concrete._meta.pk.column:
            _refuse(
                model,
                "its primary key is composite, and a unit has one key. Add a key of one column.",
            )

    def _require_fields(self, model: type[models.Model]) -> None:
        # The order of a set changes with every process: for each, all rows would be stale.
        if not isinstance(self.fields, (list, tuple)) or not self.fields:
            _refuse(
                model,
                f"fields is {self.fields!r}. Give a list of the fields that the text is made of"
                f"{f' by {self.text}()' if self.text else ''}.",
            )
        for name in self.fields:
            self._require_field(model, name)
        if len(set(self.fields)) != len(self.fields):
            _refuse(model, f"fields is {list(self.fields)!r}. Name each field once.")
        if self.text is not None:
            self._require_text(model, self.text)

    def _require_text(self, model: type[models.Model], name: object) -> None:
        if not isinstance(name, str):
            _refuse(model, f"text is {name!r}. Give the name of a method.")
        method = getattr(model, name, None)
        if not callable(method):
            _refuse(
                model,
                f"text is {name!r}, and {model.__name__} has no such method. "
                f"Define {name}(self) -> str, or leave text out to embed the fields.",
            )
        if inspect.iscoroutinefunction(method):
            _refuse(model, f"text is {name!r}, which is async. Name a method that is not.")

    def _require_field(self, model: type[models.Model], name: str) -> None:
        try:
            field = model._meta.get_field(name)
        except FieldDoesNotExist:
            listed = [field.name for field in model._meta.concrete_fields if _has_text(field)]
            kind = "Fields with text are" if listed else "There are"
            listed = listed or [field.name for field in model._meta.concrete_fields]
            _refuse(model, f"no field named {name!r}. {kind}: {', '.join(listed)}.")
        problem = conditions.column_problem(field, model=model)
        if problem:
            _refuse(model, f"{name!r} {problem}")
        if self.text is None and isinstance(field, models.BinaryField):
            _refuse(
                model,
                f"{name!r} is binary: there is no text in it. Leave it out, or name a method "
                "that reads it: text='...'.",
            )

    def _require_values(self, model: type[models.Model]) -> None:
        if self.when is not None and not isinstance(self.when, models.Q):
            _refuse(model, f"when is {self.when!r}. Give a Q object.")
        for refusal in conditions.refusals(self.when or models.Q(), model=model):
            # Not the whole of it: to print a queryset is to run it.
            _refuse(model, f"when: {refusal}")
        is_number = isinstance(self.priority, int) and not isinstance(self.priority, bool)
        if not is_number or abs(self.priority) > HIGHEST_PRIORITY:
            _refuse(model, f"priority is {self.priority!r}. Give a whole number from -100 to 100.")
        if self.stale not in get_args(Stale):
            _refuse(model, f"stale is {self.stale!r}. Choose 'serve' or 'hide'.")
        if not isinstance(self.store_text, bool):
            _refuse(model, f"store_text is {self.store_text!r}. Choose True or False.")
        if self.trigger_level not in get_args(TriggerLevel):
            _refuse(model, f"trigger_level is {self.trigger_level!r}. Choose 'row' or 'statement'.")
        if not isinstance(self.chunker, Chunker):
            _refuse(model, f"chunker is {self.chunker!r}. Give a Chunker(...).")
        if not isinstance(self.provider, str):
            _refuse(model, f"provider is {self.provider!r}. Name an alias of PGEMBED_PROVIDERS.")


def _refuse(model: type[models.Model], problem: str) -> NoReturn:
    raise ImproperlyConfigured(f"@embeddable on {model.__name__}: {problem}")


def _is_bound(model: type[models.Model]) -> bool:
    # A decorator is called before its class has a name in the module.
    return getattr(sys.modules.get(model.__module__), model.__name__, None) is model


def _has_text(field: models.Field[Any, Any]) -> bool:
    return isinstance(field, (models.CharField, models.TextField))
