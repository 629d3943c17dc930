"""``@embeddable``: declare what to embed of a model's rows.

Generates the model ``<Model>Embedding`` and the triggers, both in the model's own app, where
makemigrations finds them. Refuses declarations that could not be kept fresh.
"""

from __future__ import annotations

import functools
import keyword
import sys
from dataclasses import dataclass
from typing import Self, TypeVar

import pgtrigger
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.signals import class_prepared

from pgembed_django import triggers
from pgembed_django.chunking import Chunker
from pgembed_django.declaration import embedding_models, relations, requirements, specs
from pgembed_django.declaration.requirements import refuse, shown
from pgembed_django.declaration.specs import Declaration, Spec
from pgembed_django.triggers import related

M = TypeVar("M", bound=models.Model)

_unresolved: list[tuple[Spec, triggers.Watch]] = []
"""Specs whose relations are to be followed once all models are loaded."""


class _KeywordsOnly:
    """Explains the mistake where ``@embeddable`` has no parentheses, or a value has no keyword.

    A base class, so that the signature that people and their editors see is that of ``__init__``.
    """

    def __new__(cls, *given: object, **keywords: object) -> Self:
        if keywords and not given:
            return super().__new__(cls)
        on = "()"
        if given:
            model = given[0]
            on = (
                f" on {model.__name__}" if isinstance(model, type) else f" was given {shown(model)}"
            )
        raise ImproperlyConfigured(
            f"@embeddable{on}: say with keywords what to embed, for instance "
            "@embeddable(fields=['title'])."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class embeddable(Declaration, _KeywordsOnly):  # noqa: N801 - used as a decorator
    """Keep embeddings of a model's rows.

    ``fields`` are watched for changes and, without ``text``, embedded. So are the columns of other
    tables that the lookups of ``related`` lead to, such as ``author__name`` or ``tags__name``.
    ``text`` names a method that returns the text instead, and finds ``related`` and ``prefetch``
    prefetched. Rows that do not match ``when`` are neither embedded nor found. ``fields`` and
    ``when`` may name columns of parents (multi-table inheritance).
    ``language`` is the full-text configuration of the texts, a language code, or the name of the
    column that holds either for each row.
    ``priority`` is from -100 to 100, higher first. ``name`` is the name of the generated model,
    by default ``<Model>Embedding``; on an abstract base it may contain ``%(class)s``.
    ``trigger_level="statement"`` enqueues all rows of an INSERT at once.
    ``capture="wal"`` reads changes from the write-ahead log, without triggers on the table, and
    ``"message"`` has them write there only, so that no job is written with a row.

    Raises:
        ImproperlyConfigured: triggers cannot keep this model fresh, or a keyword is wrong.
    """

    def __call__(self, model: type[M]) -> type[M]:
        if not (isinstance(model, type) and issubclass(model, models.Model)):
            raise ImproperlyConfigured(
                f"@embeddable on {model!r}: that is not a model. Put it above a subclass of "
                "django.db.models.Model."
            )
        if model._meta.abstract:
            _declare_on_subclasses(self, model)
        else:
            _declare(self, model)
        return model


def _declare_on_subclasses(declaration: Declaration, base: type[models.Model]) -> None:
    """Declare on each concrete subclass of an abstract base, unless its parent is one already."""
    if declaration.name is not None and "%(class)s" not in str(declaration.name):
        refuse(
            base,
            f"name is {declaration.name!r}, and each model that inherits from {base.__name__} "
            f"needs one of its own. Write for instance '%(class)s{declaration.name}'.",
        )
    if missed := base.__subclasses__():
        refuse(
            base,
            f"{', '.join(model.__name__ for model in missed)} inherit from it already, and would "
            "be left out. Decorate it where it is defined, or decorate those.",
        )
    prepared = functools.partial(_on_class_prepared, declaration, base)
    class_prepared.connect(prepared, weak=False)


def _on_class_prepared(
    declaration: Declaration,
    base: type[models.Model],
    *,
    sender: type[models.Model],
    **_: object,
) -> None:
    is_covered = any(issubclass(parent, base) for parent in sender._meta.all_parents)
    if issubclass(sender, base) and not sender._meta.proxy and not is_covered:
        _declare(declaration, sender)


def _declare(declaration: Declaration, model: type[models.Model]) -> None:
    """Generate the embedding model and the triggers, and register the spec."""
    name = _name(declaration, model)
    requirements.check(declaration, model)
    _refuse_taken_name(model, name)
    keywords = vars(declaration) | {
        "fields": tuple(declaration.fields),
        "related": tuple(declaration.related),
        "when": declaration.when or None,
        "chunker": declaration.chunker or Chunker(),
        "name": name,
    }
    spec = Spec(
        **keywords,
        key=f"{model._meta.app_label}.{name}",
        model=model,
        embedding_model=embedding_models.generate(model, name=name, capture=declaration.capture),
        is_from_outside=_is_bound(model),
    )
    watch = triggers.Watch(
        key=spec.key,
        name=name,
        fields=relations.own_columns(
            model, fields=spec.watched, related=spec.related, when=spec.when
        ),
        when=spec.tested,
        priority=spec.priority,
        embedding_table=spec.embedding_model._meta.db_table,
        is_by_statement=spec.trigger_level == "statement",
        is_by_message=spec.capture == "message",
    )
    if spec.capture != "wal":
        pgtrigger.register(*triggers.triggers(watch))(model)
    specs.register(spec)
    _unresolved.append((spec, watch))
    if apps.models_ready:
        follow_relations()


def follow_relations() -> None:
    """Put triggers on the other tables that texts are made of. All models must be loaded.

    Raises:
        ImproperlyConfigured: a relation cannot be watched.
    """
    while _unresolved:
        spec, watch = _unresolved.pop(0)
        for trigger in related.triggers(watch, spec.relations.links):
            trigger.register(spec.model)


def _name(declaration: Declaration, model: type[models.Model]) -> str:
    template: object = "%(class)sEmbedding" if declaration.name is None else declaration.name
    name = template.replace("%(class)s", model.__name__) if isinstance(template, str) else ""
    if (
        not name.isidentifier()
        or keyword.iskeyword(name)
        or "__" in name
        or name != name.strip("_")
    ):
        refuse(
            model,
            f"name is {shown(name or template)}. Give a name for a Python class, without '__' in "
            "it and without '_' at its ends.",
        )
    key = f"{model._meta.app_label}.{name}"
    if name.lower() in model._meta.apps.all_models[model._meta.app_label]:
        refuse(
            model,
            f"there already is a model {key!r}. Give this declaration a name of its own: "
            f"name={model.__name__ + 'Vectors'!r}.",
        )
    return name


def _refuse_taken_name(model: type[models.Model], name: str) -> None:
    """Refuse a name that the model's module has for something else, which it would replace."""
    from pgembed_django.models import AbstractEmbedding  # can only be imported if it is installed

    taken = getattr(sys.modules.get(model.__module__), name, None)
    # As where a module is loaded anew. One that was imported from another app is not.
    is_ours = (
        isinstance(taken, type)
        and issubclass(taken, AbstractEmbedding)
        and taken.__module__ == model.__module__
    )
    if taken is not None and not is_ours and embedding_models.is_of_module(model):
        refuse(
            model,
            f"the generated model is to be {name!r}, and {model.__module__} has another {name!r} "
            "already, which it would replace. Give this declaration a name of its own: "
            f"name={model.__name__ + 'Vectors'!r}.",
        )


def _is_bound(model: type[models.Model]) -> bool:
    # A decorator runs before its class is bound to a name in the module.
    return getattr(sys.modules.get(model.__module__), model.__name__, None) is model
