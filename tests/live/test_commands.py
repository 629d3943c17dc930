"""embed_worker says in one clear sentence why it cannot start, with exit status 2."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection

from pgembed_django.models import Job
from tests.app.models import Note
from tests.conftest import wait_until
from tests.live.conftest import is_asleep, providers
from tests.live.test_listening import databases

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("options", [[], ["--autoreload"]])
def test_a_spec_that_is_not_there(start_worker, options):
    worker = start_worker(*options, "--specs", "app.Nothing")

    assert_refused(worker, "No spec named 'app.Nothing'. Did you mean 'app.NoteEmbedding'? There")


def test_a_database_that_is_not_in_the_settings(start_worker):
    worker = start_worker("--database", "elsewhere")

    assert_refused(worker, "No database named 'elsewhere'. There are: default.")


def test_a_number_that_is_none(start_worker):
    worker = start_worker("--batch-size", "0")

    assert worker.wait(timeout=60) == 2
    assert "'0' is not a whole number of one or more" in worker.log.read_text()


def test_a_database_that_cannot_be_reached(start_worker):
    worker = start_worker(DATABASES=databases(HOST="127.0.0.1", PORT=1))

    assert_refused(worker, "Cannot reach the database 'default': ")


def test_a_database_without_our_tables(start_worker, make_database):
    worker = start_worker(DATABASES=databases(**where(), NAME=make_database()))

    assert_refused(worker, "The database 'default' has no job table. Run manage.py migrate.")


def test_a_database_without_the_extension(start_worker, make_database):
    name = make_database("CREATE TABLE pgembed_job ()")

    worker = start_worker(DATABASES=databases(**where(), NAME=name))

    assert_refused(worker, "The database 'default' has no extension vector.")


def test_a_database_without_a_generated_table(start_worker, make_database):
    name = make_database("CREATE TABLE pgembed_job ()", "CREATE EXTENSION vector")

    worker = start_worker(DATABASES=databases(**where(), NAME=name))

    assert_refused(worker, "The database 'default' has no table for app.ArchivedEmbedding.")


@pytest.mark.parametrize("table", ["pgembed_job", "pgembed_worker"])
def test_a_table_of_ours_that_vanishes_from_under_a_worker(start_worker, table):
    worker = start_worker()
    wait_until(is_asleep)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO away")
        try:
            assert worker.wait(timeout=60) == 1
        finally:
            cursor.execute(f"ALTER TABLE away RENAME TO {table}")

    log = worker.log.read_text()
    assert "CommandError: A table or function does not match this code: " in log
    # In a function of ours, the table's name has its schema.
    assert f'{table}" does not exist' in log
    assert "Traceback" not in log


def test_a_provider_that_answers_another_width_is_paused_and_charges_nobody(start_worker, server):
    settings = providers(server)
    settings["default"]["DIMENSIONS"] = 8
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(40))

    worker = start_worker("--drain", PGEMBED_PROVIDERS=settings)

    assert worker.wait(timeout=60) == 1
    last = worker.log.read_text().splitlines()[-1]
    assert "40 still waiting for a provider that is down" in last
    assert "16" in last
    assert "8" in last
    assert set(Job.objects.values_list("status", "attempts")) == {("pending", 0)}


@pytest.mark.parametrize("command", ["embed_worker", "embed_probe", "embed_status"])
def test_a_provider_that_cannot_be_imported(start_command, command):
    nowhere = {"default": {"BACKEND": "nowhere.Provider", "MODEL": "m", "DIMENSIONS": 8}}

    process = start_command(command, PGEMBED_PROVIDERS=nowhere)

    assert process.wait(timeout=60) == 2
    log = process.log.read_text()
    assert "(pgembed.E003) PGEMBED_PROVIDERS['default']: BACKEND is 'nowhere.Provider'" in log
    assert "Traceback" not in log


@pytest.fixture
def make_database(connect):
    made = []

    def make(*statements: str) -> str:
        name = f"{connection.settings_dict['NAME']}_{len(made)}"
        connect(autocommit=True).execute(f'CREATE DATABASE "{name}"')
        made.append(name)
        parameters = connection.get_connection_params() | {"dbname": name}
        for unwanted in ("cursor_factory", "context"):
            parameters.pop(unwanted, None)
        with psycopg.connect(**parameters) as there:
            for statement in statements:
                there.execute(statement)
        return name

    yield make
    for name in made:
        connect(autocommit=True).execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def where() -> dict[str, object]:
    settings = connection.settings_dict
    return {"HOST": settings["HOST"] or settings["OPTIONS"].get("host", "")}


def assert_refused(worker, sentence: str) -> None:
    assert worker.wait(timeout=60) == 2
    log = worker.log.read_text()
    assert log.startswith(f"CommandError: {sentence}"), log
    assert "Traceback" not in log
