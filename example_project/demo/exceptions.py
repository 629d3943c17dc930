"""What ends the demo early. The message is one sentence for the person at the terminal."""

from __future__ import annotations


class DemoFailed(Exception):
    """The demo cannot go on."""
