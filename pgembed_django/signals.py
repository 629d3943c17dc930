"""Signals for a project's own code."""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["embedded"]

embedded = Signal(use_caching=True)
"""Sent once rows' vectors are committed, with the model as ``sender``.

``spec``: the key of the spec. ``keys``: the primary keys of its rows, as Postgres prints them.
``using``: their database.

Receivers run in the worker's loop, which renews no lease meanwhile, so they must be quick. Their
errors are logged, not raised. A worker that is killed right after the commit sends nothing.
"""
