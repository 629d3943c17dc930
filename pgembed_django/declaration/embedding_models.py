"""Generate the model for a spec's table of vectors, in the decorated model's module."""

from __future__ import annotations

import re
import sys
from typing import Any, cast

from django.db import models
from django.db.backends.utils import truncate_name

NAME_LENGTH = 63
"""Postgres silently cuts longer names."""
QUALIFIED_TABLE = re.compile(r'"?(?P<schema>[^"]+)"\."[^"]+"?')


class SourceKey(models.ForeignKey):  # type: ignore[type-arg]
    """A foreign key whose reverse names are left out of migrations.

    One of them contains the model's name. In a migration, it would keep makemigrations from
    detecting that a generated model was only renamed, along with its source model.
    """

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        for reverse in ("related_name", "related_query_name"):
            kwargs.pop(reverse, None)
        return name, "django.db.models.ForeignKey", args, kwargs


def generate(model: type[models.Model], *, name: str, capture: str) -> type[models.Model]:
    """Generate the model for a spec's table of vectors."""
    # Not at the top: our models can only be imported if our app is installed.
    from pgembed_django.models import AbstractEmbedding, Published

    app_label = model._meta.app_label
    plural = name if name.endswith("s") else f"{name}s"
    meta: dict[str, Any] = {
        "app_label": app_label,
        "apps": model._meta.apps,
        "constraints": [
            models.UniqueConstraint(
                fields=["source", "space", "position"],
                name=truncate_name(f"pgembed_{app_label}_{name.lower()}_position", NAME_LENGTH, 8),
                deferrable=models.Deferrable.DEFERRED,
            )
        ],
    }
    if capture != "trigger":
        meta["constraints"].append(
            Published(
                name=truncate_name(f"pgembed_{app_label}_{name.lower()}_published", NAME_LENGTH, 8),
                with_table=capture == "wal",
            )
        )
    qualified = QUALIFIED_TABLE.fullmatch(model._meta.db_table)
    if qualified:
        meta["db_table"] = f'"{qualified["schema"]}"."{app_label}_{name.lower()}"'
    generated = type(
        name,
        (AbstractEmbedding,),
        {
            "__module__": model.__module__,
            "__qualname__": name,
            "__doc__": f"One chunk of the text of one {model.__name__} in one space.",
            "source": SourceKey(
                model,
                on_delete=models.DO_NOTHING,
                # Without a constraint, writers do not wait for our locks, and TRUNCATE needs no
                # CASCADE.
                db_constraint=False,
                # The index of the unique constraint begins with this column.
                db_index=False,
                # Packages that restore, copy or export a row with all its visible relations would
                # do so with its vectors.
                related_name="+",
                related_query_name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plural).lower(),
            ),
            "Meta": type("Meta", (), meta),
        },
    )
    if is_of_module(model):
        setattr(sys.modules[model.__module__], name, generated)
    return cast("type[models.Model]", generated)


def is_of_module(model: type[models.Model]) -> bool:
    """Return whether a model is defined in its module, rather than in a function or class."""
    return model.__qualname__ == model.__name__
