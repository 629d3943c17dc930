"""What a role defines in the schema of our tables is not run with the rights of our functions.

Postgres prefers an operator or a function for exactly the given types to a built-in one that needs
a cast. So a role defines each name that our functions use, for all types that they meet.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pgtrigger
import psycopg
import pytest
from django.db import connection

from pgembed_django.testing import run_jobs
from pgembed_django.triggers import sql
from tests.app.models import Article, Note
from tests.db.test_triggers_by_statement import by_statement

pytestmark = pytest.mark.django_db

SOURCES = """
    SELECT prosrc
    FROM pg_proc
    WHERE proname ~ '^(pgembed|pgtrigger_pgembed)_'
"""
# Those of our columns and arguments, and those that they are compared with or cast to.
TYPES = r"""
    SELECT DISTINCT format_type(type, NULL)
    FROM (
        SELECT atttypid
        FROM pg_attribute
        WHERE attrelid IN ('pgembed_job'::regclass, 'app_pageembedding'::regclass)
          AND attnum > 0
          AND NOT attisdropped
        UNION ALL
        SELECT unnest(proargtypes)
        FROM pg_proc
        WHERE proname LIKE 'pgembed\_%'
        UNION ALL
        SELECT unnest('{oid, regclass, regprocedure, regtype, name, numeric, float8}'::regtype[])
    ) AS used(type)
    WHERE type <> ALL ('{vector, tsvector, pgembed_job, pgembed_task}'::regtype[])
"""
THERE = """
    SELECT proname || oidvectortypes(proargtypes)
    FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
"""
LITERAL_OR_COMMENT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
# One of ours is called by its schema, with all arguments in its own types.
CALL = re.compile(r"(?<!\.)\b(\w+)\(")
OPERATOR = re.compile(r"[-+*/<>=~!|&]+")
TRAP = """
    CREATE FUNCTION public.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql
    AS $$ BEGIN RAISE 'reached {name}({arguments}) as %', current_user; END $$
"""
ARTICLE = """
    INSERT INTO app_article (title, contents, author, published_time)
    VALUES ('wool', '', '', now())
"""
# Written so that they do not reach the traps themselves.
WRITES = [
    ARTICLE,
    "INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'wool', 0)",
    "UPDATE app_note SET body = 'granite'",
    "UPDATE app_page SET slug = 'c' WHERE slug OPERATOR(pg_catalog.=) 'a'::text",
    "DELETE FROM app_page WHERE slug OPERATOR(pg_catalog.=) 'b'::text",
    "UPDATE app_article SET published_time = NULL",
    "TRUNCATE app_note",
    """SELECT pgembed_enqueue_tasks_v1('a.b', '[{}, {"once": "k"}, {"coalesce_key": "k"}]')""",
    "SELECT pgembed_record_partitions_v1()",
]
STATES = [
    "status = 'running', worker_id = 1, lease_expires_at = now(), claims = 1",
    "status = 'failed', worker_id = NULL, lease_expires_at = NULL, finished_at = now(), "
    "last_error = 'no'",
    "status = 'dismissed', settled_at = now()",
    "status = 'succeeded', settled_at = NULL",
]


def execute(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def column(statement: str) -> set[str]:
    return {value for [value] in execute(statement)}


def traps() -> Iterator[str]:
    text = "\n".join(LITERAL_OR_COMMENT.sub("''", source) for source in column(SOURCES))
    functions, there = column("SELECT proname FROM pg_proc"), column(THERE)
    operators = column("SELECT oprname FROM pg_operator").intersection(OPERATOR.findall(text))
    types = sorted(column(TYPES))

    yield "CREATE TYPE public.bait AS (number integer)"
    for name in types:
        yield TRAP.format(name="bait", arguments=name, returns="bait")
        yield f"CREATE CAST ({name} AS bait) WITH FUNCTION public.bait({name}) AS IMPLICIT"
        yield f'CREATE DOMAIN public."{name}" AS integer CHECK (false)'
    types.append("bait")
    for call in {(call[1], count_arguments(text[call.end() :])) for call in CALL.finditer(text)}:
        name, count = call
        if name not in functions or not count:
            continue
        some = types if count < 3 else ["text", "integer", "bigint", "regclass", "timestamptz"]
        for arguments in map(", ".join, itertools.product(some, repeat=count)):
            if name + arguments not in there:
                yield TRAP.format(name=name, arguments=arguments, returns="text")
    for left, right in itertools.product(types, repeat=2):
        yield TRAP.format(name="compared", arguments=f"{left}, {right}", returns="boolean")
        for name in operators | {"<=", ">="}:  # of BETWEEN
            yield (
                f"CREATE OPERATOR public.{name} "
                f"(LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.compared)"
            )


def count_arguments(text: str) -> int:
    depth = commas = 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        commas += character == "," and not depth
        if depth < 0:
            return commas + 1 if text[:place].strip() else 0
    raise ValueError(text)


@pytest.fixture
def surrounded() -> None:
    """Let a role without other rights define all of that, beside rows that are embedded."""
    # An autovacuum that analyzes one of them would wait for the GRANT below, and TRUNCATE for it.
    execute("LOCK TABLE app_article, app_note, app_page IN SHARE UPDATE EXCLUSIVE MODE")
    execute("INSERT INTO app_page (slug, body) VALUES ('a', 'wool'), ('b', 'wool')")
    execute("INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'wool', 0)")
    execute(ARTICLE)
    run_jobs()
    execute("CREATE ROLE pgembed_hostile; CREATE ROLE pgembed_writer")
    execute("GRANT CREATE ON SCHEMA public TO pgembed_hostile")
    execute("GRANT ALL ON app_article, app_note, app_page TO pgembed_writer")
    execute("SET LOCAL check_function_bodies = off; SET LOCAL ROLE pgembed_hostile")
    execute(";\n".join(traps()))
    # The session must not use what it has planned before.
    execute("RESET ROLE; RESET check_function_bodies; DISCARD PLANS")


@pytest.fixture
def asleep(db: None, second_connection: psycopg.Connection) -> None:
    """Let a worker sleep, which writers notify."""
    for spec in ("app.ArticleEmbedding", "app.NoteEmbedding", "app.PageEmbedding"):
        second_connection.execute(
            "SELECT pg_advisory_lock(hashtextextended(%s, 'pgembed_job'::regclass::oid::bigint))",
            [spec],
        )


def test_no_write_reaches_it(asleep: None, surrounded: None) -> None:
    execute("SET LOCAL ROLE pgembed_writer")
    for statement in WRITES:
        execute(statement)
    execute("SELECT pgembed_enqueue_all_v1('app.Other', ARRAY['1'], 0)")
    execute("RESET ROLE")

    assert not execute("SELECT FROM app_noteembedding")
    assert not execute("SELECT FROM app_articleembedding")
    assert not execute("SELECT FROM app_pageembedding")


def test_no_change_of_a_jobs_state_reaches_it(surrounded: None) -> None:
    execute("DELETE FROM pgembed_job; SELECT pgembed_enqueue_v1('app.Other', '1', 0)")

    for state in STATES:
        execute(f"UPDATE pgembed_job SET {state}")

    assert column("SELECT status FROM pgembed_job") == {"succeeded"}
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        connection.connection.execute("UPDATE pgembed_job SET claims = -1")
    assert refused.value.diag.constraint_name == "pgembed_job_counts_are_counts"


def test_installing_functions_and_triggers_does_not_reach_it(surrounded: None) -> None:
    with connection.schema_editor() as editor:
        sql.install(None, editor)
        for model, trigger in pgtrigger.registered():
            if model is Note:
                editor.execute(trigger.compile(model).uninstall_sql, params=None)
                editor.execute(trigger.compile(model).install_sql, params=None)


def test_a_trigger_for_each_statement_does_not_reach_it(surrounded: None) -> None:
    by_statement().install(Article)
    execute("SET LOCAL ROLE pgembed_writer")

    execute(ARTICLE)


def test_temporary_tables_of_the_same_names_are_not_written() -> None:
    execute(ARTICLE)
    run_jobs()
    shadows = "pgembed_job", "pgembed_staging", "pgembed_space", "app_articleembedding"
    for name in shadows:
        execute(f"CREATE TEMPORARY TABLE {name} (LIKE public.{name})")
    execute("DISCARD PLANS")

    execute("DELETE FROM app_article")

    assert all(not execute(f"SELECT FROM pg_temp.{name}") for name in shadows)
    assert not execute("SELECT FROM public.app_articleembedding")


def test_functions_with_the_owners_rights_search_pg_catalog_alone() -> None:
    """So this holds for whatever they will call."""
    paths = execute(
        "SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND proname ~ '^pgembed_'"
    )

    # It needs no rights: what it calls, anybody may call.
    assert {name for name, _ in paths} == set(sql.FUNCTIONS) - {"pgembed_emit_v1"}
    assert all("search_path=pg_catalog, pg_temp" in settings for _, settings in paths)
