"""Settings of the benchmarks' project. DATABASE_URL and BENCHMARK_SETTINGS come from outside."""

from __future__ import annotations

import json
import os

import dj_database_url

DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
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

# What one benchmark sets for itself and the processes that it starts.
globals().update(json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}")))
