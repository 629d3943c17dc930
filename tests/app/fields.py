"""Columns that Postgres finds equal although their content is not."""

from __future__ import annotations

from typing import Any

from django.db import models


class IgnoreCaseField(models.TextField):  # type: ignore[type-arg]
    """Like citext, or a case-insensitive collation, which not every server has."""

    def db_type(self, connection: Any) -> str:
        return "app_ignore_case"


class PlainJSONField(models.JSONField):
    """``json``, not ``jsonb``: it has no equality at all."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        # psycopg has parsed it, while jsonb is left to Django.
        return value

    def db_type(self, connection: Any) -> str:
        return "json"
