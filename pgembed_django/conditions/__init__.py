"""The condition of a spec: its ``when``, as SQL about one row."""

from __future__ import annotations

from pgembed_django.conditions.compiling import (
    UNWRITABLE,
    Row,
    changed,
    columns_read,
    compiled,
    declared,
    trials,
)
from pgembed_django.conditions.refusing import column_problem, refusals

__all__ = [
    "UNWRITABLE",
    "Row",
    "changed",
    "column_problem",
    "columns_read",
    "compiled",
    "declared",
    "refusals",
    "trials",
]
