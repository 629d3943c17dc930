"""Rows that came without their sequences: a restore of single tables, logical replication."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from pgembed_django.checks import check_databases
from pgembed_django.models import Job, Worker
from pgembed_django.spaces import repairs
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db

SEQUENCES = {
    "pgembed_job": "pgembed_job_id_seq",
    "pgembed_worker": "pgembed_worker_id_seq",
    "app_noteembedding": "app_noteembedding_id_seq",
}

TAKEN_ON = "SELECT setval('pgembed_job_id_seq', max(id) + 1000000) FROM pgembed_job"
WAITS = """
    SELECT
    FROM pg_stat_activity
    WHERE wait_event_type = 'Lock'
      AND datname = current_database()
"""


def execute(statement: str, *parameters: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


@pytest.fixture
def came_without_sequences(run_jobs):
    """A job, a worker and a chunk with the next number that each sequence would give."""
    for number in (1, 2):
        Note.objects.create(body=f"note {number}")
    run_jobs()
    Worker.objects.create(host="elsewhere", pid=1, version="1")
    for table, model in (
        ("pgembed_job", Job),
        ("pgembed_worker", Worker),
        ("app_noteembedding", NoteEmbedding),
    ):
        lowest = model._base_manager.order_by("pk").values_list("pk", flat=True)[0]
        execute("SELECT setval(%s, %s, false)", SEQUENCES[table], lowest)


def catch_up_elsewhere() -> None:
    try:
        repairs.advance_sequences(using="default")
    finally:
        connection.close()


def ids() -> list[str | None]:
    return [message.id for message in check_databases(databases=["default"])]


@pytest.mark.usefixtures("came_without_sequences")
class TestRowsBeyondTheirSequences:
    def test_a_check_tells_before_a_write_fails(self):
        [message] = check_databases(databases=["default"])

        assert message.id == "pgembed.W008"
        assert '"app_noteembedding", "pgembed_job", "pgembed_worker" would give' in message.msg
        assert "manage.py migrate" in (message.hint or "")

    def test_after_a_migrate_writes_succeed_and_are_embedded(self, run_jobs, caplog):
        call_command("migrate", verbosity=0)

        Note.objects.create(body="the third")
        run_jobs()

        assert NoteEmbedding.objects.filter(passage="the third").count() == 1
        assert ids() == []
        [told] = [one for one in caplog.records if one.event == "pgembed.numbers_caught_up"]
        assert '"pgembed_job"' in told.tables

    def test_a_role_that_may_not_alter_sequences_leaves_them(self):
        execute("CREATE ROLE pgembed_reader")
        execute("GRANT SELECT ON ALL TABLES IN SCHEMA public, archive TO pgembed_reader")
        execute("REVOKE SELECT ON app_pageembedding FROM pgembed_reader")
        execute("GRANT USAGE ON SCHEMA archive TO pgembed_reader")
        execute("SET LOCAL ROLE pgembed_reader")

        repairs.advance_sequences(using="default")

        execute("RESET ROLE")
        assert ids() == ["pgembed.W008"]


@pytest.mark.django_db(transaction=True)
def test_a_worker_starts_and_lets_writes_succeed(came_without_sequences):
    call_command("embed_worker", drain=True, verbosity=0)

    with transaction.atomic():
        Note.objects.create(body="the third")

    assert ids() == []


def test_tables_whose_sequences_are_ahead_are_left_as_they_are():
    Note.objects.create(body="a note")
    Job.objects.all().delete()
    last = "SELECT pg_sequence_last_value('pgembed_job_id_seq')"
    with connection.cursor() as cursor:
        cursor.execute(last)
        before = cursor.fetchone()

        repairs.advance_sequences(using="default")

        cursor.execute(last)
        assert cursor.fetchone() == before


@pytest.mark.django_db(transaction=True)
def test_a_sequence_that_others_have_taken_on_meanwhile_is_not_set_back(
    came_without_sequences, connect
):
    """Two workers start at once, and what the first lets writers add, the second leaves."""
    locks, others = connect(), connect(autocommit=True)
    # It is looked at after that of the jobs.
    locks.execute("ALTER SEQUENCE pgembed_worker_id_seq INCREMENT BY 1")
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(catch_up_elsewhere)
        wait_until(lambda: others.execute(WAITS).fetchall())
        [[taken]] = others.execute(TAKEN_ON).fetchall()
        locks.rollback()
        late.result(timeout=30)

    [[number]] = others.execute("SELECT nextval('pgembed_job_id_seq')").fetchall()
    assert number == taken + 1


def test_what_wraps_statements_is_given_text(came_without_sequences):
    seen: list[object] = []

    def wrapper(execute: Any, statement: Any, *rest: Any) -> Any:
        seen.append(statement)
        return execute(statement, *rest)

    with connection.execute_wrapper(wrapper):
        repairs.advance_sequences(using="default")

    assert repairs.sequences_behind(using="default") == []
    assert {type(statement) for statement in seen} == {str}
