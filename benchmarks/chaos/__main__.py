"""``python -m benchmarks.chaos NAME [ROWS KILLS SECONDS LOGS]``: run a worker, or the rounds.

``python -m benchmarks.chaos tasks COUNT KILLS LOGS``: the round of tasks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.chaos import rounds, tasks
from benchmarks.chaos.contenders import contender


def main(name: str, *sizes: str) -> None:
    """Run a worker, or with sizes the rounds, on the database that DATABASE_URL names."""
    if name == tasks.NAME:
        count, kills, logs = sizes
        print(json.dumps(tasks.run(int(count), int(kills), Path(logs))))
        return
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
