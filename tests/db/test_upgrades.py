"""Two versions at once: older functions under newer workers, older workers beside newer ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pgtrigger
import pytest
from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.models import Value
from django.db.models.functions import Now

from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.testing import assert_fresh, run_jobs
from pgembed_django.triggers import sql
from tests.app.models import Article, ArticleEmbedding, Note, NoteEmbedding
from tests.conftest import embedded_text
from tests.db.conftest import expire_leases, reap

RECORDED = Path(__file__).parent / "recorded"
KEY = "app.ArticleEmbedding"

pytestmark = pytest.mark.django_db


def execute(statement: str, **parameters: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


class OldWorker:
    """Claims and ends jobs with the statements of an older version."""

    def __init__(self) -> None:
        text = (RECORDED / "worker_v0.sql").read_text()
        parts = re.split(r"^-- (\w+)\n", text, flags=re.MULTILINE)[1:]
        self.verbs = dict(zip(parts[::2], parts[1::2], strict=True))

    def run(self, verb: str, **parameters: Any) -> list[Any]:
        return execute(self.verbs[verb], **parameters)

    def claim(self, limit: int = 100) -> list[Any]:
        return self.run("claim", worker=77, lease=600, specs=[KEY], limit=limit)


@pytest.fixture
def old_worker() -> OldWorker:
    return OldWorker()


class TestOlderFunctions:
    """A user's migration still calls version 0, which stands beside the present one."""

    @pytest.fixture(autouse=True)
    def triggers_of_version_0(self) -> None:
        execute((RECORDED / "functions_v0.sql").read_text())
        for trigger in triggers_of(Article):
            if trigger.verb in ("insert", "delete"):
                older = trigger.compile(Article).install_sql.replace("_v1", "_v0")
                assert "_v0(" in older
                execute(older)

    def test_rows_written_through_either_version_become_fresh(self, make_article):
        article = make_article(title="through version 0")
        [job] = Job.objects.all()
        assert (job.spec, job.source_pk, job.kind) == (KEY, str(article.pk), "write")
        run_jobs()
        assert_fresh(article)

        Article.objects.update(title="through version 1")
        run_jobs()

        assert_fresh(article)
        assert embedded_text(article).startswith("through version 1")

    def test_both_meet_in_one_pending_job(self, make_article):
        article = make_article()
        Job.objects.update(run_at="2999-01-01T00:00:00Z", attempts=3, outages=2)
        Article.objects.update(title="through version 1")
        execute("SELECT public.pgembed_enqueue_v0(%(key)s, %(pk)s, 0)", key=KEY, pk=str(article.pk))

        [job] = Job.objects.all()
        assert (job.attempts, job.outages) == (0, 0)
        run_jobs()
        assert_fresh(article)

    def test_a_row_that_goes_through_version_0_is_forgotten(self, make_article):
        make_article()
        run_jobs()

        execute("DELETE FROM app_article")

        assert not ArticleEmbedding.objects.exists()
        run_jobs()
        assert not Job.objects.filter(status__in=["pending", "running"]).exists()


def triggers_of(model: type[models.Model]) -> Iterator[Any]:
    return (trigger for of, trigger in pgtrigger.registered() if of is model)


class TestOlderWorkers:
    def test_what_one_of_each_version_claims_is_claimed_once(self, make_article, old_worker):
        for _ in range(4):
            make_article()

        old = old_worker.claim(limit=2)
        settled = run_jobs()

        # Not two each: whether its IN runs the LIMIT again for each row is up to the planner.
        assert len(old) + settled == 4
        assert Job.objects.filter(status="running").count() == len(old)

    def test_what_an_older_worker_completes_is_settled(self, make_article, old_worker):
        make_article()
        [[job_id, token, _]] = old_worker.claim()

        old_worker.run("complete", id=job_id, token=token)

        assert Job.objects.get().status == "succeeded"

    def test_what_an_older_worker_gives_back_is_taken_up(self, make_article, old_worker):
        article = make_article()
        [[job_id, token, _]] = old_worker.claim()
        old_worker.run("retry", id=job_id, token=token, error="a time-out")

        assert run_jobs() == 1
        assert_fresh(article)

    def test_what_an_older_worker_died_with_is_reaped(self, make_article, old_worker):
        article = make_article()
        old_worker.claim()
        expire_leases()

        assert reap() == ["requeued"]
        run_jobs()
        assert_fresh(article)

    def test_the_fencing_token_is_one_for_both(self, make_article, old_worker):
        make_article()
        [[job_id, token, _]] = old_worker.claim()
        expire_leases()
        reap()
        run_jobs()

        old_worker.run("complete", id=job_id, token=token)  # too late

        assert not Job.objects.filter(pk=job_id, status="running").exists()
        assert ArticleEmbedding.objects.exists()


class TestNewerJobs:
    def test_a_spec_of_a_newer_version_is_left_alone(self):
        newer = Job.objects.create(spec="app.NotHereYet", source_pk="1")

        assert run_jobs() == 0
        assert jobs.fail_unknown([spec.key for spec in specs.all()], using="default") == 0

        newer.refresh_from_db()
        assert (newer.status, newer.claims) == ("pending", 0)

    def test_a_kind_of_a_newer_version_makes_its_row_fresh_like_a_write(self, make_article):
        """It tells where a job comes from. What it asks for is the same, in each version."""
        article = make_article()
        Job.objects.update(kind="oracle")

        assert run_jobs() == 1

        assert_fresh(article)
        assert Job.objects.get().status == "succeeded"


# Adding a declaration to a table that is in use


@pytest.fixture
def undeclared() -> Iterator[None]:
    """Note, before it was decorated."""
    for trigger in triggers_of(Note):
        execute(trigger.compile(Note).uninstall_sql)
    execute("ALTER TABLE app_noteembedding RENAME TO hidden")
    yield
    execute("ALTER TABLE hidden RENAME TO app_noteembedding")
    for trigger in triggers_of(Note):
        execute(trigger.compile(Note).install_sql)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("undeclared")
def test_adding_a_declaration_locks_no_reader_out_and_rewrites_nothing(connect):
    """What its migration does: the table of the vectors, then the triggers."""
    execute("INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'a', 0)")
    [[file]] = execute(FILE)
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        editor.create_model(NoteEmbedding)
    migration = connect()

    for statement in editor.collected_sql:
        # Constraints and indexes have the names of those that are hidden.
        migration.execute(statement.replace("app_noteembedding_", "shown_"))
    assert migration.execute(LOCKS).fetchall() == []
    for trigger in triggers_of(Note):
        migration.execute(trigger.compile(Note).install_sql)

    # Readers go on, and so does who locks single rows; writers wait until this commits.
    assert {mode for [mode] in migration.execute(LOCKS)} <= {
        "AccessShareLock",
        "ShareRowExclusiveLock",
    }
    assert migration.execute(FILE).fetchall() == [(file,)]
    migration.rollback()


@pytest.mark.django_db(transaction=True)
def test_taking_a_trigger_off_locks_readers_out_until_it_commits(connect):
    """As docs/how-to/upgrade.md says of a changed condition."""
    migration = connect()
    [*_, trigger] = triggers_of(Note)

    migration.execute(trigger.compile(Note).uninstall_sql)

    assert ("AccessExclusiveLock",) in migration.execute(LOCKS).fetchall()
    migration.rollback()


FILE = "SELECT relfilenode FROM pg_class WHERE oid = 'app_note'::regclass"
LOCKS = """
    SELECT mode
    FROM pg_locks
    WHERE pid = pg_backend_pid()
      AND relation = 'app_note'::regclass
"""


# Our own migrations, after the first one, which makes empty tables

AT_ONCE = (
    migrations.CreateModel,
    migrations.AlterModelOptions,
    migrations.AlterModelManagers,
    migrations.RunPython,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    AddConstraintNotValid,
    ValidateConstraint,
)
"""What takes no long lock. RunPython is for functions; rows go in steps, by the worker."""


def long_locks(migration: migrations.Migration) -> list[str]:
    """Return what would hold our tables locked for as long as they are large."""
    found = []
    for operation in migration.operations:
        if isinstance(operation, migrations.AddField):
            # Postgres notes a constant or NULL, and rewrites the table for all else.
            field = operation.field
            is_noted = field.null or isinstance(field.db_default, Value | str | int | bool)
            if not is_noted or field.remote_field or field.unique or field.db_index:
                found.append(operation.describe())
        elif isinstance(operation, migrations.RemoveField | migrations.AlterField):
            found.append(f"{operation.describe()}: old workers still run, and types are rewritten")
        elif not isinstance(operation, AT_ONCE):
            found.append(operation.describe())
    return found


def test_our_migrations_hold_no_table_locked_for_long():
    loader = MigrationLoader(None)
    later = [
        migration
        for (app, _), migration in loader.disk_migrations.items()
        if app == "pgembed" and not migration.initial
    ]

    assert [problem for migration in later for problem in long_locks(migration)] == []


@pytest.mark.parametrize(
    ("operation", "is_long"),
    [
        (migrations.AddField("job", "a", models.TextField(null=True)), False),
        (migrations.AddField("job", "a", models.IntegerField(db_default=0)), False),
        (migrations.AddField("job", "a", models.DateTimeField(db_default=Now())), True),
        (migrations.AddField("job", "a", models.IntegerField(default=0)), True),
        (migrations.AlterField("job", "id", models.UUIDField(primary_key=True)), True),
        (migrations.RemoveField("job", "outages"), True),
        (migrations.AddIndex("job", models.Index(fields=["kind"], name="i")), True),
        (AddIndexConcurrently("job", models.Index(fields=["kind"], name="i")), False),
        (migrations.RunSQL("UPDATE pgembed_job SET kind = 'write'"), True),
        (migrations.RunPython(sql.install, sql.uninstall), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, Operation) else "",
)
def test_which_operations_hold_a_table_locked_for_long(operation, is_long):
    migration = migrations.Migration("0002_later", "pgembed")
    migration.operations = [operation]

    assert bool(long_locks(migration)) == is_long
