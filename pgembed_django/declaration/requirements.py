"""Check what ``@embeddable`` refuses: models and keywords that triggers could not keep fresh."""

from __future__ import annotations

import functools
import inspect
from contextlib import suppress
from typing import NoReturn, get_args

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db import models

from pgembed_django.chunking import Chunker
from pgembed_django.declaration.relations import TEXTUAL
from pgembed_django.declaration.specs import Capture, Declaration, Stale, TriggerLevel
from pgembed_django.exceptions import did_you_mean
from pgembed_django.triggers import conditions, sql

HIGHEST_PRIORITY = 100


def check(declaration: Declaration, model: type[models.Model]) -> None:
    """Check a declaration, and the model that it is for.

    Raises:
        ImproperlyConfigured: something is wrong. The message says what, and what to do.
    """
    if not apps.is_installed("pgembed_django"):
        refuse(
            model,
            "'pgembed_django' is not in INSTALLED_APPS. Add it, and 'pgtrigger' and "
            "'django.contrib.postgres' with it.",
        )
    concrete = model._meta.concrete_model or model
    is_managed = model._meta.managed and concrete._meta.managed
    if not is_managed and declaration.capture != "wal":
        refuse(
            model,
            "the model is unmanaged, so no migration can put triggers on its table. Remove "
            "managed = False, decorate a managed model of the same table, or read its changes from "
            "the write-ahead log: capture='wal'.",
        )
    if getattr(model._meta, "is_composite_pk", False) or not concrete._meta.pk.column:
        refuse(
            model,
            "its primary key is composite, and a unit has one key. Add a key of one column.",
        )
    _require_fields(declaration, model)
    _require_values(declaration, model)
    _require_capture(declaration, model)
    if declaration.language is not None:
        _require_language(declaration, model)


def refuse(model: type[models.Model], problem: str) -> NoReturn:
    """Raise ``ImproperlyConfigured`` for a declaration on a model."""
    raise ImproperlyConfigured(f"@embeddable on {model.__name__}: {problem}")


def shown(value: object) -> str:
    """Return a value for a message.

    The type of what is not built in: a queryset's ``repr`` runs its query, and a lazy text's
    translates it, which both fail while models are loaded.
    """
    kind = type(value)
    return repr(value) if kind.__module__ == "builtins" else f"a {kind.__name__}"


def _require_fields(declaration: Declaration, model: type[models.Model]) -> None:
    # A set's order differs between processes, and each would consider all rows stale.
    if not isinstance(declaration.fields, (list, tuple)) or not declaration.fields:
        refuse(
            model,
            f"fields is {shown(declaration.fields)}. Give a list of the fields that the text is "
            f"made of{f' by {declaration.text}()' if declaration.text else ''}.",
        )
    for name in declaration.fields:
        _require_field(declaration, model, name)
    if len(set(declaration.fields)) != len(declaration.fields):
        refuse(model, f"fields is {list(declaration.fields)!r}. Name each field once.")
    _require_related(declaration, model)
    if declaration.text is not None:
        _require_text(model, declaration.text)
    _require_prefetch(declaration, model)


def _require_related(declaration: Declaration, model: type[models.Model]) -> None:
    """Check what can be checked before all models are loaded: see ``relations.resolve``."""
    related = declaration.related
    if not isinstance(related, (list, tuple)):
        refuse(model, f"related is {shown(related)}. Give a list of lookups: 'author__name'.")
    for lookup in related:
        if not isinstance(lookup, str):
            refuse(model, f"related has {shown(lookup)} in it. Give lookups: 'author__name'.")
        if "__" not in lookup:
            refuse(
                model,
                f"related names {lookup!r}, which has no column of another table. Name one, for "
                f"instance '{lookup}__name'. A column of {model.__name__} belongs in fields.",
            )
    if len(set(related)) != len(related):
        refuse(model, f"related is {list(related)!r}. Name each lookup once.")


def _require_text(model: type[models.Model], name: object) -> None:
    if not isinstance(name, str) or not name:
        refuse(model, f"text is {shown(name)}. Give the name of a method.")
    method = getattr(model, name, None)
    if isinstance(method, (property, functools.cached_property)):
        refuse(model, f"text is {name!r}, which is a property. Make it a method.")
    if not callable(method):
        methods = [one for one, _ in inspect.getmembers_static(model, inspect.isroutine)]
        refuse(
            model,
            f"text is {name!r}, and {model.__name__} has no such method. "
            f"{did_you_mean(name, methods)}Define {name}(self) -> str, or leave text out to embed "
            "the fields.",
        )
    if inspect.iscoroutinefunction(method):
        refuse(model, f"text is {name!r}, which is async. Name a method that is not.")
    bound = getattr(object.__new__(model), name)
    try:
        # A builtin may have no signature.
        with suppress(ValueError):
            inspect.signature(bound).bind()
    except TypeError as error:
        refuse(
            model,
            f"text is {name!r}, and it is called without arguments: {error}. "
            f"Define {name}(self) -> str.",
        )


def _require_prefetch(declaration: Declaration, model: type[models.Model]) -> None:
    given: object = declaration.prefetch
    if not isinstance(given, (list, tuple)):
        refuse(model, f"prefetch is {shown(given)}. Give a list, as for prefetch_related().")
    for one in given:
        if not isinstance(one, (str, models.Prefetch)) or not one:
            refuse(
                model,
                f"prefetch has {shown(one)} in it. Give the names of relations, or Prefetch "
                "objects.",
            )
    if given and declaration.text is None:
        refuse(
            model,
            "prefetch is for a text method, and without one no relation is read. Name a method: "
            "text='...', or leave prefetch out.",
        )


def _require_field(declaration: Declaration, model: type[models.Model], name: object) -> None:
    if not isinstance(name, str):
        refuse(model, f"fields has {shown(name)} in it. Give a list of the names of fields.")
    try:
        field = model._meta.get_field(name)
    except FieldDoesNotExist:
        first, is_path, _ = name.partition("__")
        # get_fields() would need relations, which are unknown until all models are loaded.
        with suppress(FieldDoesNotExist):
            if is_path and model._meta.get_field(first):
                refuse(
                    model,
                    f"fields name {name!r}, which is in another table. Name it in related: "
                    f"related=[{name!r}].",
                )
        fields = model._meta.concrete_fields
        with_text = [field.name for field in fields if isinstance(field, TEXTUAL)]
        kind = "Fields with text are" if with_text else "There are"
        listed = with_text or [field.name for field in fields]
        refuse(
            model,
            f"no field named {name!r}. {did_you_mean(name, listed)}{kind}: {', '.join(listed)}.",
        )
    problem = conditions.column_problem(field, model=model)
    if problem:
        refuse(model, f"{name!r} {problem}")
    if declaration.text is None and isinstance(field, models.BinaryField):
        refuse(
            model,
            f"{name!r} is binary: there is no text in it. Leave it out, or name a method "
            "that reads it: text='...'.",
        )
    if declaration.text is None and field.is_relation:
        refuse(
            model,
            f"{name!r} is a foreign key, and without a text method only the other row's key is "
            f"embedded. Leave it out, and name what to embed: related=['{name}__...']. Or name a "
            "method that reads it: text='...'.",
        )


def _require_language(declaration: Declaration, model: type[models.Model]) -> None:
    """Check what is known without a database: checks and searches ask it for the configuration."""
    given: object = declaration.language
    if not isinstance(given, str) or not (given and given.isprintable()):
        refuse(
            model,
            f"language is {shown(given)}. Give a full-text configuration such as 'german', a "
            "language code such as 'de', or the name of a column that holds one for each row.",
        )
    if declaration.store_text == "nothing":
        refuse(
            model,
            f"language is {given!r}, and store_text='nothing' stores no words. Leave one of the "
            "two out.",
        )
    try:
        field = model._meta.get_field(given.partition("__")[0])
    except FieldDoesNotExist:
        return
    if "__" in given or field.is_relation:
        problem: str | None = "leads to another table. Copy the language into a column."
    else:
        problem = conditions.column_problem(field, model=model)
    if not problem and not isinstance(getattr(field, "output_field", field), TEXTUAL):
        problem = f"is a {type(field).__name__}. Name a column of text."
    if problem:
        refuse(model, f"language is {given!r}: {field.name!r} {problem}")


def _require_values(declaration: Declaration, model: type[models.Model]) -> None:
    of = declaration
    is_priority = type(of.priority) is int and abs(of.priority) <= HIGHEST_PRIORITY
    for name, is_right, remedy in (
        ("when", isinstance(of.when, models.Q | None), "Give a Q object."),
        ("priority", is_priority, "Give a whole number from -100 to 100."),
        ("stale", of.stale in get_args(Stale), "Choose 'serve' or 'hide'."),
        (
            "store_text",
            isinstance(of.store_text, bool) or of.store_text == "nothing",
            "Choose True, False or 'nothing'.",
        ),
        (
            "trigger_level",
            of.trigger_level in get_args(TriggerLevel),
            "Choose 'row' or 'statement'.",
        ),
        ("capture", of.capture in get_args(Capture), "Choose 'trigger', 'message' or 'wal'."),
        ("chunker", isinstance(of.chunker, Chunker | None), "Give a Chunker(...)."),
        ("provider", isinstance(of.provider, str), "Name an alias of PGEMBED_PROVIDERS."),
    ):
        if not is_right:
            refuse(model, f"{name} is {shown(getattr(of, name))}. {remedy}")
    for refusal in conditions.refusals(of.when or models.Q(), model=model):
        # Do not show repr(when): if it contains a queryset, that would run its query.
        refuse(model, f"when: {refusal}")


def _require_capture(declaration: Declaration, model: type[models.Model]) -> None:
    capture = declaration.capture
    if capture == "trigger":
        return
    if declaration.stale == "hide":
        refuse(
            model,
            f"stale is 'hide', and capture {capture!r}. A row is hidden as soon as it has a job, "
            "and changes that are read from the write-ahead log get theirs after the commit. Leave "
            "one of the two out.",
        )
    if capture == "wal" and declaration.trigger_level != "row":
        refuse(
            model,
            f"trigger_level is {declaration.trigger_level!r}, and with capture='wal' there are no "
            "triggers. Leave trigger_level out.",
        )
    if declaration.related and not model._meta.managed:
        refuse(
            model,
            f"related is {list(declaration.related)!r}, and the model is unmanaged: no migration "
            "of it can put triggers on other tables. Leave related out.",
        )
    if not sql.is_in_one_schema():
        refuse(
            model,
            f"capture is {capture!r}, and PGTRIGGER_SCHEMA None: with a schema per tenant, changes "
            "cannot be read from the write-ahead log. Leave capture out.",
        )
