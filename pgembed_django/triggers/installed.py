"""Whether the triggers are in the database as they are declared, and fire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from pgtrigger import registry

from pgembed_django import database, postgres
from pgembed_django.triggers.kinds import SpecTrigger

# Its comment is the hash of what was installed. It has none where a migration has given one of
# its columns another type: pgtrigger drops it meanwhile, and puts back all but the comment.
# With 'A' it fires for a replica's rows, too.
STATES = """
    SELECT
        wanted.key,
        CASE
            WHEN trigger.oid IS NULL THEN 'missing'
            WHEN obj_description(trigger.oid, 'pg_trigger') <> wanted.hash
            THEN 'outdated'
            ELSE 'disabled'
        END,
        count(*)
    FROM unnest(%(keys)s::text[], %(names)s::text[], %(tables)s::text[], %(hashes)s::text[])
        AS wanted(key, name, rows, hash)
    LEFT JOIN pg_trigger AS trigger
      ON trigger.tgname = wanted.name
     AND trigger.tgrelid = to_regclass(wanted.rows)
    WHERE trigger.oid IS NULL
       OR obj_description(trigger.oid, 'pg_trigger') <> wanted.hash
       OR trigger.tgenabled NOT IN ('O', 'A')
    GROUP BY 1, 2
    ORDER BY 1, 2
"""


# Each has a function of its own, which names the spec.
TABLES_OF = r"""
    SELECT DISTINCT tgrelid::regclass::text
    FROM pg_trigger
    JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE tgname LIKE 'pgtrigger\_pgembed\_%%'
      AND position(quote_literal(%(key)s) IN prosrc) > 0
    ORDER BY 1
"""


def tables_of(key: str, *, using: str) -> list[str]:
    """Return the tables that have triggers of a spec, declared or not."""
    return [table for [table] in database.rows(using, TABLES_OF, key=key)]


def amiss(keys: Collection[str], *, using: str) -> Mapping[str, Mapping[str, int]]:
    """Return how many triggers of specs are missing, outdated or disabled.

    By the specs' keys. A table that is not there has none of its triggers.
    """
    wanted: list[tuple[Any, SpecTrigger]] = [
        (model, trigger)
        for model, trigger in registry.registered()
        if isinstance(trigger, SpecTrigger) and trigger.watch.key in keys
    ]
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for key, state, count in database.rows(
        using,
        STATES,
        keys=[trigger.watch.key for _, trigger in wanted],
        names=[trigger.get_pgid(model) for model, trigger in wanted],
        tables=[postgres.quoted_table(model) for model, _ in wanted],
        hashes=[trigger.compile(model).hash for model, trigger in wanted],
    ):
        found[key][state] = count
    return found
