"""Send many numbers or times as one array literal: psycopg adapts each element of a list."""

from __future__ import annotations

from collections.abc import Iterable


def literal(values: Iterable[int | str]) -> str:
    """Return an array literal of numbers, or of times as Postgres prints them."""
    return "{" + ",".join([f'"{value}"' for value in values]) + "}"
