"""System checks. Each finds a mistake in a project, and has an id and a remedy.

Checks of settings and declarations query no database. Checks of databases run with ``migrate``
and ``check --database``. Checks with the tag ``pgembed_probe`` send requests to the providers, and
run only with ``check --deploy``.
"""

from __future__ import annotations

from django.core.checks import Tags, register

from pgembed_django.checks.databases import check_databases
from pgembed_django.checks.declarations import check_declarations
from pgembed_django.checks.settings import check_providers, check_settings

__all__ = ["IDS", "check_databases", "check_declarations", "check_providers", "check_settings"]

IDS = {
    "pgembed.E001": "An app that pgembed_django needs is not in INSTALLED_APPS.",
    "pgembed.E002": "A PGEMBED_ setting is unknown or unusable.",
    "pgembed.E003": "A provider in PGEMBED_PROVIDERS is unusable, for instance its DIMENSIONS.",
    "pgembed.E004": "An @embeddable names a provider that is not in PGEMBED_PROVIDERS.",
    "pgembed.E005": "The database of an embeddable model is not PostgreSQL.",
    "pgembed.E006": "The condition of an @embeddable cannot be written as SQL.",
    "pgembed.E007": "A primary key prints differently from one connection to the next.",
    "pgembed.E008": "A router keeps tables apart that an embeddable model needs in its database.",
    "pgembed.E009": "PGEMBED_TRACING is on, and opentelemetry-api is not installed.",
    "pgembed.E010": "The database cannot be reached.",
    "pgembed.E011": "Django talks to PostgreSQL through psycopg 2.",
    "pgembed.E012": "The server is older than PostgreSQL 15.",
    "pgembed.E013": "The extension vector is missing, or not in the search_path.",
    "pgembed.E014": "The extension vector is too old.",
    "pgembed.E015": "A full-text configuration is unknown to the database.",
    "pgembed.E016": "The SQL functions that triggers call write to another schema.",
    "pgembed.E017": "A table with a trigger for each statement is partitioned.",
    "pgembed.E018": "A model has taken the place of the one that holds vectors.",
    "pgembed.E019": "The count of a Chunker is not a function that can be imported.",
    "pgembed.E020": "A provider cannot be reached. Only looked at with --deploy.",
    "pgembed.E021": "A provider answers, but not as it should. Only looked at with --deploy.",
    "pgembed.E022": "The condition of an @embeddable fails, and each write would fail with it.",
    "pgembed.E023": "A relation that an @embeddable prefetches does not exist.",
    "pgembed.E024": "TASKS names our backend, and pgembed_django is not in INSTALLED_APPS.",
    "pgembed.E025": "The database that tasks are kept in is not PostgreSQL.",
    "pgembed.E026": "QUEUES or OPTIONS of a backend in TASKS are unknown or unusable.",
    "pgembed.E027": "A reranker in PGEMBED_RERANKERS is unusable, for instance its BACKEND.",
    "pgembed.E028": "A published table has lost its replica identity: its own UPDATEs fail.",
    "pgembed.W001": "The job table is unlogged: a crash of the server empties it.",
    "pgembed.W002": "pgtrigger is told to keep triggers out of migrations.",
    "pgembed.W003": "Our tables are missing where an embeddable model has its own.",
    "pgembed.W004": "Migrations of an installed package's model would be written into the package.",
    "pgembed.W005": "The key of an embeddable model has another type than that of its vectors.",
    "pgembed.W006": "Triggers of an embeddable model are missing, outdated or disabled.",
    "pgembed.W007": "Vectors are in another schema than the one where functions look for them.",
    "pgembed.W008": "Rows have come without their sequences: new ones get numbers that are taken.",
    "pgembed.W009": "The encoding of the database is not UTF-8.",
    "pgembed.W010": "Vectors belong to a role that the triggers' functions do not trust.",
    "pgembed.W011": "Queries of tables that triggers and workers write are cached.",
    "pgembed.W012": "The content of an encrypted field is stored in plain.",
    "pgembed.W013": "A server does not list the model. Only looked at with --deploy.",
    "pgembed.W014": "A field is embedded as it is stored, not as people read it.",
    "pgembed.W015": "A translated field is watched, and not the columns of its languages.",
    "pgembed.W016": "A text method may read columns of parents, which are not watched.",
    "pgembed.W017": "Our tables are missing where tasks are kept.",
    "pgembed.W018": "The write-ahead log cannot be read: its level, publication, slot or role.",
    "pgembed.W019": "A publication does not have all changes of a table that is read from the log.",
    "pgembed.W020": "An unread slot may fill the disk: max_slot_wal_keep_size is -1.",
    "pgembed.W021": "A replication slot is left that no spec needs.",
    "pgembed.W022": "A lease is too short for a model to start. Only looked at with --deploy.",
}

register(check_settings)
register(check_declarations, Tags.models)
register(check_databases, Tags.database)
register(check_providers, "pgembed_probe", deploy=True)
