"""Fixtures for all tests. Factories named ``make_…`` build only possible rows."""

from __future__ import annotations
