"""Settings of the benchmarks' project. The environment sets DATABASE_URL and BENCHMARK_SETTINGS.

Without these, the settings suffice for ``makemigrations``, which needs no database.
"""

from __future__ import annotations

import json
import os

import dj_database_url

DATABASES = {
    "default": dj_database_url.parse(os.environ.get("DATABASE_URL", "postgres:///benchmarks"))
}
SECRET_KEY = "only for benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.postgres",
    "pgtrigger",
    "pgembed_django",
    "benchmarks.app",
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"timed": {"format": "%(asctime)s %(threadName)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "timed"}},
    "loggers": {"pgembed_django": {"handlers": ["stderr"], "level": "INFO"}},
}

PGEMBED_PROVIDERS = {
    "default": {
        "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
        "MODEL": "none",
        "DIMENSIONS": 1,
    }
}

# Settings that a benchmark overrides for itself and for the processes that it starts.
given = json.loads(os.environ.get("BENCHMARK_SETTINGS", '{"SPANS_TABLES": true}'))
if given.pop("SPANS_TABLES", False):
    INSTALLED_APPS.append("benchmarks.related")
globals().update(given)
