"""``python -m benchmarks.chaos NAME [ROWS KILLS SECONDS LOGS]``: run a worker, or the rounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.chaos import rounds
from benchmarks.chaos.contenders import contender


def main(name: str, *sizes: str) -> None:
    """Run a worker, or with sizes the rounds, on the database that DATABASE_URL names."""
    found = contender(name)
    found.name = name
    if not sizes:
        found.work()
        return
    rows, kills, seconds, logs = sizes
    told = rounds.run(found, int(rows), int(kills), float(seconds), Path(logs))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
