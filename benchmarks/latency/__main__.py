"""``python -m benchmarks.latency NAME URL WIDTH ROWS fill|embed``: one contender, one step."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def main(name: str, url: str, width: str, rows: str, step: str) -> None:
    """Do one step, on the database that DATABASE_URL names."""
    module = import_module(f"benchmarks.latency.{name}")
    getattr(module, step)(os.environ["DATABASE_URL"], url, int(width), int(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
