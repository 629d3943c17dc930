"""The error that ends the demo early. Its message is shown on the terminal."""

from __future__ import annotations


class DemoFailed(Exception):
    """The demo cannot go on."""
