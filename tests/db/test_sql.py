from __future__ import annotations

from typing import Any

import pgtrigger
import pytest
from django.apps import apps
from django.db import IntegrityError, ProgrammingError, connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import unmigrated
from pgembed_django.models import Job
from pgembed_django.testing import run_jobs
from tests.app.models import Note, NoteEmbedding, Page, PageEmbedding


def call(function: str, *arguments: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT public.{function}({', '.join(['%s'] * len(arguments))})", arguments)


@pytest.mark.django_db
def test_many_writes_leave_one_pending_job() -> None:
    call("pgembed_enqueue_v1", "app.S", "1", 0)
    call("pgembed_enqueue_v1", "app.S", "1", 0)

    [job] = Job.objects.all()
    assert (job.spec, job.source_pk, job.kind, job.status) == ("app.S", "1", "write", "pending")


@pytest.mark.django_db
def test_a_write_brings_a_parked_job_forward_and_starts_it_afresh() -> None:
    call("pgembed_enqueue_v1", "app.S", "1", -5)
    Job.objects.update(run_at="2999-01-01T00:00Z", attempts=3, kind="reconciler", last_error="x")

    call("pgembed_enqueue_v1", "app.S", "1", 0)

    [job] = Job.objects.all()
    assert job.run_at.year < 2999
    assert (job.attempts, job.priority, job.kind, job.last_error) == (0, 0, "write", "")


@pytest.mark.django_db
@pytest.mark.parametrize("table", ["pgembed_job", "no_such_table"])
def test_only_embedding_tables_are_deleted_from_and_no_writer_is_stopped(table: str) -> None:
    call("pgembed_enqueue_v1", "app.S", "1", 0)

    call("pgembed_forget_v1", "app.S", "2", 0, table)
    call("pgembed_forget_units_v1", "app.S", ["2", "3"], 0, table)
    call("pgembed_forget_all_v1", "app.T", table)

    assert Job.objects.filter(source_pk="1").exists()


@pytest.mark.django_db
def test_a_key_of_an_extensions_type_is_compared_with_the_types_own_operator() -> None:
    """As of citext or ulid: none of their operators is in pg_catalog."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE TABLE chunks (
                source_id vector PRIMARY KEY, space_id bigint, chunk_digest bytea,
                text_digest bytea, embedding vector
            );
            INSERT INTO chunks (source_id) VALUES ('[1,2]'), ('[3,4]'), ('[5,6]'), ('[7,8]')
            """
        )

        call("pgembed_forget_v1", "app.S", "[1,2]", 0, "chunks")
        call("pgembed_forget_units_v1", "app.S", ["[5,6]", "[7,8]"], 0, "chunks")

        cursor.execute("SELECT source_id::text FROM chunks")
        assert cursor.fetchall() == [("[3,4]",)]


@pytest.mark.django_db
def test_of_many_units_those_are_forgotten_whose_keys_their_table_can_hold() -> None:
    gone, kept = (Note.objects.create(body=body) for body in ("gone", "kept"))
    run_jobs()
    keys = ["no uuid", str(gone.pk), str(gone.pk), "9" * 30]

    call("pgembed_forget_units_v1", "app.NoteEmbedding", keys, 5, "app_noteembedding")

    assert set(NoteEmbedding.objects.values_list("source_id", flat=True)) == {kept.pk}
    pending = Job.objects.filter(status="pending", priority=5)
    assert set(pending.values_list("source_pk", flat=True)) == set(keys)


@pytest.mark.django_db
@pytest.mark.parametrize("conflict", ["error", "use_variable", "use_column"])
def test_settings_of_a_role_that_change_how_sql_is_read_stop_no_writer(conflict: str) -> None:
    Note.objects.create(body="first")
    Page.objects.create(slug="it's", body="first")
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SET LOCAL plpgsql.variable_conflict = {conflict};
            SET LOCAL plpgsql.extra_errors = 'all';
            SET LOCAL quote_all_identifiers = on;
            SET LOCAL transform_null_equals = on;
            SET LOCAL standard_conforming_strings = off;
            SET LOCAL backslash_quote = off;
            SET LOCAL array_nulls = off;
            SET LOCAL row_security = off;
            SET LOCAL plan_cache_mode = force_generic_plan;
            SET LOCAL search_path = '';
            DISCARD PLANS;
            """
        )
        cursor.execute("UPDATE public.app_note SET body = 'second'")
        cursor.execute("DELETE FROM public.app_page")
        cursor.execute("DELETE FROM public.app_note")
        cursor.execute("SET LOCAL search_path = public")
    call("pgembed_enqueue_all_v1", "app.S", ["NULL", "it's"], 0)
    call("pgembed_forget_v1", "app.NoteEmbedding", "no uuid", 0, '"app_noteembedding"')
    several = ["NULL", "it's", "", "\\", "\\"]
    call("pgembed_forget_units_v1", "app.PageEmbedding", several, 0, "app_pageembedding")
    call("pgembed_forget_units_v1", "app.NoteEmbedding", several, 0, "app_noteembedding")
    call("pgembed_forget_all_v1", "app.NoteEmbedding", "app_noteembedding")

    assert set(Job.objects.filter(spec="app.S").values_list("source_pk", flat=True)) == {
        "NULL",
        "it's",
    }
    assert not NoteEmbedding.objects.exists()
    assert not PageEmbedding.objects.exists()


@pytest.mark.django_db
def test_without_migrations_what_they_bring_is_created_and_only_once(settings: Any) -> None:
    settings.MIGRATION_MODULES = {"pgembed": None}
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgembed_job DROP CONSTRAINT pgembed_job_is_possible")
        cursor.execute("DROP FUNCTION pgembed_job_is_possible_v1")
        cursor.execute("DROP FUNCTION pgembed_enqueue_v1")
    ours = apps.get_app_config("pgembed")

    for _ in range(2):
        unmigrated.before_migrate(ours, using="default")
        Note.objects.create(body="a note that another app has received post_migrate for")
        unmigrated.after_migrate(ours, using="default")

    assert Job.objects.count() == 2
    with pytest.raises(IntegrityError):
        Job.objects.update(status="failed")


@pytest.mark.django_db
def test_without_migrations_functions_come_before_the_tables_and_their_triggers_after(
    settings: Any,
) -> None:
    settings.MIGRATION_MODULES = {"pgembed": None}
    ours = apps.get_app_config("pgembed")
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION pgembed_task_ended_v1, pgembed_tasks_truncated_v1 CASCADE")
        cursor.execute("ALTER TABLE pgembed_task DROP CONSTRAINT pgembed_task_is_possible")
        cursor.execute("DROP FUNCTION pgembed_task_is_possible_v1")
        cursor.execute("ALTER TABLE pgembed_task RENAME TO not_there_yet")

        unmigrated.before_migrate(ours, using="default")
        cursor.execute("ALTER TABLE not_there_yet RENAME TO pgembed_task")
        unmigrated.after_migrate(ours, using="default")

        cursor.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'pgembed_task'::regclass "
            "AND tgfoid = ANY(ARRAY['pgembed_task_ended_v1'::regproc::oid, "
            "'pgembed_tasks_truncated_v1'::regproc::oid])"
        )
        assert cursor.fetchone() == (3,)
        call("pgembed_enqueue_task_v1", "a")
        with pytest.raises(IntegrityError):
            cursor.execute("UPDATE pgembed_task SET status = 'failed'")


@pytest.mark.django_db
def test_with_migrations_the_extension_is_left_to_them() -> None:
    with CaptureQueriesContext(connection) as captured:
        unmigrated.before_migrate(apps.get_app_config("pgembed"), using="default")
    assert not [query for query in captured if "CREATE" in query["sql"]]


@pytest.mark.django_db
def test_with_migrations_they_are_left_to_them() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION pgembed_enqueue_v1")
    unmigrated.before_migrate(apps.get_app_config("pgembed"), using="default")
    unmigrated.after_migrate(apps.get_app_config("pgembed"), using="default")
    with pytest.raises(ProgrammingError, match="pgembed_enqueue_v1"):
        Note.objects.create(body="a note")


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["public", "own, public"])
def test_functions_are_where_the_triggers_of_another_schema_call_them(
    settings: Any, path: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA triggers")
        # Made after our migration, as a role's own schema is, which comes first.
        cursor.execute("CREATE SCHEMA own")
        cursor.execute(f"SET LOCAL search_path = {path}")
    settings.PGTRIGGER_SCHEMA = "triggers"

    unmigrated.before_migrate(apps.get_app_config("pgembed"), using="default")
    for model, trigger in pgtrigger.registered():
        if model is Note:  # as the migration does that makemigrations writes then
            trigger.install(model)

    Note.objects.create(body="a note")
    Note.objects.update(body="another text")
    assert Job.objects.get().status == "pending"
