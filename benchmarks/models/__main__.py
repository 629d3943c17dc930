"""``python -m benchmarks.models STEP CONFIG OPTIONS``: run one function of ``alone``."""

from __future__ import annotations

import json
import sys

from benchmarks.models import alone

if __name__ == "__main__":
    step, config, options = sys.argv[1:]
    print(json.dumps(getattr(alone, step)(json.loads(config), **json.loads(options))))
