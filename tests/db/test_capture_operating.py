"""What people see of changes that come from the write-ahead log: checks, status, commands."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections

from pgembed_django.capture import Streamer, slots
from pgembed_django.capture.walsender import Walsender
from pgembed_django.checks import check_databases
from pgembed_django.contrib.metrics.collectors import families
from pgembed_django.declaration import specs
from pgembed_django.models import ReplicationSlot, Worker, publication
from pgembed_django.ops import status
from tests import postgres
from tests.app.models import Article, Note
from tests.captures import catch_up
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

UNLIMITED = "pgembed.W020"
MISSING_TRIGGERS = "pgembed.W006"


def found() -> dict[str, str]:
    """Return the messages of the check, without those that are about the tests themselves.

    The server's slots are unlimited, and the model still declares the triggers of its spec.
    """
    messages = check_databases(databases=["default"])
    kept = [one for one in messages if one.id not in {UNLIMITED, MISSING_TRIGGERS}]
    return {str(one.id): f"{one.msg} {one.hint}" for one in kept}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def reader() -> Iterator[Callable[[], Walsender]]:
    """Read the slot, as a worker does."""
    opened: list[Walsender] = []

    def read() -> Walsender:
        sender = Walsender(using="default", is_stopping=lambda: False)
        opened.append(sender)
        seen = slots.look(using="default")
        sender.start(seen.name, publication=publication.name(), position=seen.confirmed)
        return sender

    yield read
    for one in opened:
        one._connection.close()


@pytest.fixture
def other_role() -> Iterator[str]:
    """A role that may not replicate, but else may do everything."""
    role = "pgembed_not_replicating"
    execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    yield role
    execute(f"DROP OWNED BY {role}")
    execute(f"DROP ROLE {role}")


@pytest.fixture
def at(monkeypatch) -> Callable[..., Any]:
    """Connect by other settings for a while."""

    @contextmanager
    def connected(**settings: str) -> Iterator[None]:
        wrapper = connections["default"]
        wrapper.close()
        with monkeypatch.context() as patch:
            patch.setattr(wrapper, "settings_dict", {**wrapper.settings_dict, **settings})
            try:
                yield
            finally:
                wrapper.close()

    return connected


def verdict(spec: Any) -> status.Verdict:
    Worker.objects.get_or_create(host="here", pid=7, version="1", specs=[spec.key])
    [one] = status.overview(specs=[spec], using="default").specs
    return one.verdict


# Checks


def test_all_is_well_once_the_migration_has_run(capture):
    capture(Note, "wal")

    assert found() == {}


def test_an_unlimited_slot_is_warned_of(capture):
    capture(Note, "message")

    [message] = [one for one in check_databases(databases=["default"]) if one.id == UNLIMITED]

    assert "max_slot_wal_keep_size is -1" in message.msg


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_a_lost_replica_identity_is_an_error(capture, identity):
    spec = capture(Note, "wal")
    execute(f"ALTER TABLE app_note REPLICA IDENTITY {identity}")
    try:
        messages = found()

        assert "app_note does not have its key" in messages["pgembed.E028"]
        assert verdict(spec).reason.count("The replica identity of app_note") == 1
    finally:
        execute("ALTER TABLE app_note REPLICA IDENTITY DEFAULT")


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_a_migration_may_mend_an_identity_before_it_publishes_the_table(capture, identity):
    capture(Note, "wal")
    execute("ALTER PUBLICATION pgembed DROP TABLE app_note")
    execute(f"ALTER TABLE app_note REPLICA IDENTITY {identity}")
    try:
        Note.objects.create(body="old")
        Note.objects.update(body="new")

        assert found().keys() == {"pgembed.W019"}  # no error, which would keep it from running
    finally:
        execute("ALTER TABLE app_note REPLICA IDENTITY DEFAULT")


def test_a_table_that_is_published_whole_may_tell_all_columns(capture, settings):
    spec = capture(Note, "wal")
    settings.PGEMBED_PUBLICATION = "theirs"
    execute("CREATE PUBLICATION theirs FOR ALL TABLES")
    execute("ALTER TABLE app_note REPLICA IDENTITY FULL")
    try:
        assert found() == {}
        assert verdict(spec).reason.count("identity") == 0

        execute("ALTER TABLE app_note REPLICA IDENTITY NOTHING")

        assert found().keys() == {"pgembed.E028"}
    finally:
        execute("ALTER TABLE app_note REPLICA IDENTITY DEFAULT")
        execute("DROP PUBLICATION theirs")


def test_a_table_that_was_taken_out_of_the_publication_is_warned_of(capture):
    spec = capture(Note, "wal")
    execute("ALTER PUBLICATION pgembed DROP TABLE app_note")

    messages = found()

    assert "does not have all changes of its table app_note" in messages["pgembed.W019"]
    assert "The publication 'pgembed' does not have" in verdict(spec).reason


def test_a_publication_without_deletions_is_warned_of(capture):
    capture(Note, "wal")
    execute("ALTER PUBLICATION pgembed SET (publish = 'insert, update')")

    assert "pgembed.W019" in found()


def test_a_missing_publication_is_warned_of(capture):
    spec = capture(Note, "message")
    execute("DROP PUBLICATION pgembed")
    catch_up()

    assert "There is no publication 'pgembed'" in found()["pgembed.W018"]
    assert verdict(spec).state == "stalled"
    assert "There is no publication 'pgembed'" in verdict(spec).reason


def test_a_role_that_may_not_replicate_is_warned_of(capture, other_role, connect):
    capture(Note, "wal")
    execute(f"SET SESSION AUTHORIZATION {other_role}")
    try:
        message = found()["pgembed.W018"]
    finally:
        execute("RESET SESSION AUTHORIZATION")

    assert f"ALTER ROLE {other_role} REPLICATION" in message


def test_a_worker_whose_role_may_not_replicate_says_what_to_do(capture, other_role, at):
    capture(Note, "wal")
    with at(USER=other_role, PASSWORD="x"):
        catch_up()

    [noted] = ReplicationSlot.objects.all()
    assert noted.problem.endswith(f"GRANT rds_replication TO {other_role}.")


@pytest.mark.parametrize("is_up", [True, False])
def test_the_role_of_the_workers_own_alias_is_looked_at(capture, other_role, settings, is_up):
    capture(Note, "wal")
    given = connections["default"].settings_dict
    connections.settings["direct"] = {**given, "USER": other_role, "PASSWORD": "x"}
    connections["direct"].connect()
    if not is_up:
        execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            f"WHERE usename = '{other_role}'"
        )
    settings.PGEMBED_WORKER_DATABASE = "direct"
    try:
        messages = found()
    finally:
        connections["direct"].close()
        del connections["direct"], connections.settings["direct"]

    assert ("pgembed.W018" in messages) == is_up
    assert "pgembed.E010" not in messages


def test_a_role_that_rds_lets_replicate_is_not_warned_of(capture, other_role):
    capture(Note, "wal")
    execute("CREATE ROLE rds_replication")
    execute(f"GRANT rds_replication TO {other_role}")
    execute(f"SET SESSION AUTHORIZATION {other_role}")
    try:
        assert found() == {}
    finally:
        execute("RESET SESSION AUTHORIZATION")
        execute("DROP ROLE rds_replication")


def test_a_slot_of_another_kind_is_warned_of_and_left_alone(capture):
    spec = capture(Note, "wal")
    name = slots.look(using="default").name
    execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    Note.objects.create(body="written")

    catch_up()

    assert f"{name!r} is used by something else" in found()["pgembed.W018"]
    assert "used by something else" in verdict(spec).reason
    assert slots.look(using="default").is_there


def test_a_slot_that_no_spec_needs_is_warned_of(capture):
    name = slots.look(using="default").name
    execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        assert "embed_forget" in found()["pgembed.W021"]
    finally:
        slots.drop(name, using="default")


@pytest.mark.parametrize("is_read", [True, False])
def test_only_a_slot_that_embed_forget_may_drop_is_told_of(capture, reader, monkeypatch, is_read):
    spec = capture(Note, "wal")
    if is_read:
        catch_up()
        reader()
    else:
        name = slots.look(using="default").name
        execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    monkeypatch.delitem(specs._registry, spec.key)

    assert found() == {}
    connection.close()


# Status


def test_the_overview_tells_how_far_the_log_was_read(capture, reader):
    spec = capture(Note, "wal")
    catch_up()
    reader()
    Note.objects.bulk_create([Note(body="x" * 1000) for _ in range(200)])

    seen = status.overview(specs=[spec], using="default").capture

    assert seen is not None
    assert seen.is_read
    assert seen.lag_bytes is not None
    assert seen.lag_bytes > 200 * 1000
    assert (seen.problem, seen.gaps, seen.faults) == ("", (), {})


def test_it_costs_nothing_where_no_spec_needs_it(django_assert_num_queries):
    [spec] = specs.of(Article)

    with django_assert_num_queries(0):
        assert status.read_capture([spec], using="default", now=None) is None


def test_changes_that_nobody_reads_stall_a_spec(capture):
    spec = capture(Note, "wal")
    catch_up()
    ReplicationSlot.objects.update(read_at="2026-01-01T00:00:00Z")
    Note.objects.bulk_create([Note(body="x" * 1000) for _ in range(200)])

    assert verdict(spec).state == "stalled"
    assert "No worker reads them" in verdict(spec).reason


def test_changes_that_are_read_late_degrade_a_spec(capture, reader, run_jobs):
    spec = capture(Note, "wal")
    catch_up()
    run_jobs()
    reader()
    ReplicationSlot.objects.update(read_at="2026-01-01T00:00:00Z")
    Note.objects.bulk_create([Note(body="x" * 1000) for _ in range(200)])

    assert verdict(spec).state == "degraded"
    assert "are yet to be read from the write-ahead log" in verdict(spec).reason


def test_the_reason_of_a_refusal_is_told_until_it_is_read_again(capture):
    spec = capture(Note, "wal")
    catch_up()
    execute("DROP PUBLICATION pgembed")
    Streamer(using="default").stream()
    [noted] = ReplicationSlot.objects.all()
    assert "There is no publication" in noted.problem

    capture(Note, "wal")
    catch_up()

    noted.refresh_from_db()
    assert noted.problem == ""
    assert status.overview(specs=[spec], using="default").capture is not None


def test_embed_status_and_the_gauges_tell_of_it(capture):
    capture(Note, "wal")
    catch_up()
    out, told = io.StringIO(), io.StringIO()

    call_command("embed_status", "--no-color", stdout=out)
    call_command("embed_status", "--json", stdout=told)

    name = slots.look(using="default").name
    assert f"Write-ahead log\n  {name}  not read, 0." in out.getvalue()
    assert json.loads(told.getvalue())["capture"]["slot"] == name
    gauges = {one.name: one for one in families(status.overview(using="default"))}
    assert gauges["pgembed_capture_is_read"].samples[0].value == 0
    assert gauges["pgembed_capture_lag_bytes"].samples[0].value >= 0
    assert gauges["pgembed_capture_lag_seconds"].samples[0].value >= 0


def test_the_admin_tells_of_it(capture, admin_client):
    capture(Note, "wal")
    catch_up()

    page = admin_client.get("/admin/pgembed/").content.decode()

    assert "Write-ahead log" in page
    assert "Not read." in page


# Drains


def test_a_drain_ends_once_nothing_is_left_to_read(capture):
    spec = capture(Note, "wal")
    catch_up()
    note = Note.objects.create(body="written")
    assert Streamer(using="default").catch_up() == 1
    assert Streamer(using="default").catch_up() == 0

    call_command("embed_worker", "--drain", verbosity=0)

    assert spec.embedding_model.objects.get().source_id == note.pk


def test_the_slot_is_free_as_soon_as_a_drain_has_read(capture):
    capture(Note, "wal")

    for _ in range(20):
        catch_up()

        assert not slots.look(using="default").is_active


# Commands


def test_the_owner_of_the_tables_can_publish_them(capture, settings):
    spec = capture(Note, "wal")
    settings.PGEMBED_PUBLICATION = "theirs"
    assert "There is no publication 'theirs'" in found()["pgembed.W018"]
    out = io.StringIO()

    call_command("embed_publication", "--specs", spec.key, stdout=out)
    try:
        execute(out.getvalue())

        assert found() == {}
        catch_up()
        assert ReplicationSlot.objects.get().specs.keys() == {spec.key}
    finally:
        execute("DROP PUBLICATION theirs")


def test_what_is_missing_in_the_publication_is_added(capture):
    capture(Note, "wal")
    capture(Article, "message")
    execute("ALTER PUBLICATION pgembed DROP TABLE app_note")
    out = io.StringIO()

    call_command("embed_publication", stdout=out)
    execute(out.getvalue())
    execute(out.getvalue())

    assert found() == {}


def test_there_is_nothing_to_publish_without_a_capture(transactional_db):
    with pytest.raises(CommandError, match="None of these specs has capture") as error:
        call_command("embed_publication")

    assert error.value.returncode == 2


def test_a_role_that_does_not_own_a_table_is_told_who_publishes_it(capture, other_role):
    spec = capture(Note, "wal")
    execute("ALTER PUBLICATION pgembed DROP TABLE app_note")
    constraint = next(one for one in [publication.Published(name="published")] if one.with_table)
    with connection.schema_editor() as editor:
        statement = constraint.create_sql(spec.embedding_model, editor)
    execute(f"SET SESSION AUTHORIZATION {other_role}")
    try:
        with pytest.raises(Exception, match="may not publish tables") as error:
            execute(statement)
    finally:
        execute("RESET SESSION AUTHORIZATION")
    assert isinstance(error.value.__cause__, psycopg.errors.RaiseException)


def forget(*options: str) -> str:
    out = io.StringIO()
    call_command("embed_forget", *options, "--no-color", stdout=out)
    return out.getvalue()


def test_a_slot_that_no_spec_needs_is_forgotten(capture, monkeypatch):
    spec = capture(Note, "wal")
    catch_up()
    name = slots.look(using="default").name
    assert forget() == "No data is left of specs that are not declared.\n"
    monkeypatch.delitem(specs._registry, spec.key)

    told = forget()
    assert f"  the replication slot {name}\n  app_note in the publication pgembed\n" in told
    assert slots.look(using="default").is_there
    forget("--yes")

    seen = slots.look(using="default")
    assert not seen.is_there
    assert seen.publication is None
    assert not ReplicationSlot.objects.exists()


def test_a_slot_that_is_read_is_not_forgotten(capture, monkeypatch, reader):
    spec = capture(Note, "wal")
    catch_up()
    reader()
    monkeypatch.delitem(specs._registry, spec.key)

    with pytest.raises(CommandError, match="A worker with other code reads it") as error:
        forget("--yes")

    assert error.value.returncode == 1
    seen = slots.look(using="default")
    assert seen.is_active
    assert seen.publication is not None
    connections["default"].close()


@pytest.mark.parametrize("owns", ["publication", "slot"])
def test_each_role_forgets_what_it_may(capture, other_role, monkeypatch, owns):
    spec = capture(Note, "wal")
    catch_up()
    monkeypatch.delitem(specs._registry, spec.key)
    if owns == "slot":
        execute(f"ALTER ROLE {other_role} REPLICATION")
    else:
        execute(f"GRANT CREATE ON DATABASE {connection.settings_dict['NAME']} TO {other_role}")
        execute(f"ALTER PUBLICATION pgembed OWNER TO {other_role}")
    execute(f"SET SESSION AUTHORIZATION {other_role}")
    try:
        with pytest.raises(CommandError, match="Run it again as a role that may") as error:
            forget("--yes")
    finally:
        execute("RESET SESSION AUTHORIZATION")

    assert error.value.returncode == 1
    seen = slots.look(using="default")
    assert seen.is_there == (owns == "publication")
    assert (seen.publication is not None) == (owns == "slot")
    forget("--yes")
    assert forget() == "No data is left of specs that are not declared.\n"


def test_what_others_need_stays_published(capture, monkeypatch):
    kept, gone = capture(Note, "wal"), capture(Article, "wal")
    catch_up()
    monkeypatch.delitem(specs._registry, gone.key)

    forget("--yes")

    assert slots.look(using="default").is_there
    assert list(slots.published([kept], using="default")) == [kept.key]
    assert not slots.published([gone], using="default")


# Other servers


@pytest.mark.live
@pytest.mark.skipif(bool(postgres.GIVEN), reason="it is not ours to copy")
def test_a_server_with_too_little_in_its_log_is_told_of(capture, at):
    spec = capture(Note, "wal")

    with postgres.copied(wal_level="replica") as folder, at(HOST=str(folder), PORT=""):
        Note.objects.create(body="writers are not disturbed")
        catch_up()

        assert "wal_level is 'replica'. Set it to 'logical'" in found()["pgembed.W018"]
        assert "wal_level is 'replica'. Set it to 'logical'" in verdict(spec).reason


@pytest.mark.live
@pytest.mark.skipif(bool(postgres.GIVEN), reason="it is not ours to copy")
def test_a_standby_tells_how_far_the_primary_was_read(capture, at):
    spec = capture(Note, "wal")
    catch_up()
    slot = slots.look(using="default").name

    with postgres.copied("-R", hot_standby="on", wal_level="replica") as folder:
        with at(HOST=str(folder), PORT=""):
            seen = status.overview(specs=[spec], using="default").capture
            assert found() == {}

        assert seen is not None
        assert (seen.slot, seen.is_read, seen.problem, seen.faults) == (slot, True, "", {})
        assert seen.lag_bytes is not None
        ReplicationSlot.objects.update(read_at="2026-01-01T00:00:00Z")

        def is_read() -> bool:
            with at(HOST=str(folder), PORT=""):
                return status.overview(specs=[spec], using="default").capture.is_read

        wait_until(lambda: not is_read(), seconds=10)
