"""Settings of the test project: an embedded Postgres, or the server DATABASE_URL names.

Processes that a test starts are told by TEST_SETTINGS, as JSON, what is different there.
"""

from __future__ import annotations

import json
import os

import dj_database_url

from tests import postgres

DATABASES = {"default": dj_database_url.parse(postgres.url())}
DATABASES["default"]["TEST"] = {"NAME": postgres.test_database()}
SECRET_KEY = "only for tests"
# A good one takes a third of a second for each user that logs in.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pgtrigger",
    "pgembed_django",
    "tests.app",
]
TASKS = {
    "default": {
        "BACKEND": "pgembed_django.tasks.PostgresBackend",
        "QUEUES": ["default", "llm"],
    },
}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
# Where it is not what they are about, tests count what a provider is asked.
PGEMBED_CANARY_SECONDS = 0
PGEMBED_PROVIDERS = {
    "default": {
        "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
        "MODEL": "bag-of-words",
        "DIMENSIONS": 64,
    },
}
globals().update(json.loads(os.environ.get("TEST_SETTINGS", "{}")))
