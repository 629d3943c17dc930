"""Models of every shape that the app supports."""

from __future__ import annotations
