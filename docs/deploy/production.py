"""Settings from the environment. Save it as mysite/production.py, beside settings.py."""

import os

import dj_database_url
from mysite.settings import *  # noqa: F403

DEBUG = False
SECRET_KEY = os.environ["SECRET_KEY"]
ALLOWED_HOSTS = os.environ["ALLOWED_HOSTS"].split(",")
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}

# Only if DATABASE_URL leads to a pooler: workers need connections of their own.
if "WORKER_DATABASE_URL" in os.environ:
    DATABASES["direct"] = dj_database_url.parse(os.environ["WORKER_DATABASE_URL"])
    PGEMBED_WORKER_DATABASE = "direct"

# OLLAMA_HOST says where the server is.
PGEMBED_PROVIDERS = {
    "default": {
        "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
        "MODEL": "nomic-embed-text",
        "DIMENSIONS": 768,
        "OPTIONS": {"document_prefix": "search_document: ", "query_prefix": "search_query: "},
    },
}
PGEMBED_CONCURRENCY = int(os.environ.get("PGEMBED_CONCURRENCY", "2"))
PGEMBED_STOP_GRACE_SECONDS = float(os.environ.get("PGEMBED_STOP_GRACE_SECONDS", "20"))
