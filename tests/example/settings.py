"""The example project's settings, on the tests' server.

Processes that a test starts are told by TEST_SETTINGS, as JSON, what is different there.
"""

import json
import os
import sys
from pathlib import Path

from tests.postgres import test_database, url

sys.path.append(str(Path(__file__).resolve().parents[2] / "example_project"))
url()

from config.settings import *  # noqa: E402, F403
from config.settings import DATABASES  # noqa: E402

DATABASES["default"]["TEST"] = {"NAME": f"{test_database()}_example"}
globals().update(json.loads(os.environ.get("TEST_SETTINGS", "{}")))
