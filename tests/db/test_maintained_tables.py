"""What operators do to our tables and indexes while workers run costs no row an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection
from pgvector.psycopg.vector import register_vector_info
from psycopg.types import TypeInfo

from pgembed_django.core import faults
from pgembed_django.core.faults import Fault
from pgembed_django.models import Job
from pgembed_django.queue import sessions
from pgembed_django.queue.maintenance import attempt
from pgembed_django.queue.sessions import PREPARE_AFTER
from pgembed_django.queue.work import Work
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleCommentEmbedding,
    Note,
    NoteEmbedding,
    Product,
    ProductEmbedding,
)
from tests.db.conftest import Writer, make_due, until_waiting

WORDS = ["badger", "buffalo", "condor", "dingo", "ferret", "gazelle"]

# What pg_repack does before it copies a table. Its indexes are made from pg_get_indexdef(), so
# that of the deferrable constraint is checked at once.
LOG = """
    CREATE TABLE log (id bigserial PRIMARY KEY, was app_articlecommentembedding,
        becomes app_articlecommentembedding);
    CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO log (was, becomes) VALUES (OLD, NEW);
        RETURN NULL;
    END $$;
    CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON app_articlecommentembedding
    FOR EACH ROW EXECUTE FUNCTION log();
    CREATE TABLE shadow AS SELECT * FROM app_articlecommentembedding;
    CREATE UNIQUE INDEX ON shadow (id);
    CREATE UNIQUE INDEX ON shadow (source_id, space_id, position)
"""
APPLY = """
    DO $$
    DECLARE
        entry log;
    BEGIN
        FOR entry IN SELECT * FROM log ORDER BY id LOOP
            DELETE FROM shadow WHERE id = (entry.was).id;
            IF (entry.becomes).id IS NOT NULL THEN
                INSERT INTO shadow SELECT (entry.becomes).*;
            END IF;
        END LOOP;
    END $$
"""
DIFFERENT = """
    (TABLE shadow EXCEPT TABLE app_articlecommentembedding)
    UNION ALL
    (TABLE app_articlecommentembedding EXCEPT TABLE shadow)
"""


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def text_of(words: list[str]) -> str:
    return "\n\n".join(f"The {word} sleeps." for word in words)


def passages(comment: ArticleComment) -> str:
    rows = ArticleCommentEmbedding.objects.filter(source=comment, embedding__isnull=False)
    return "\n\n".join(rows.order_by("position").values_list("passage", flat=True))


def assert_that_nobody_was_charged() -> None:
    ended = set(Job.objects.values_list("status", "attempts", "crashes"))
    assert ended == {("succeeded", 0, 0)}


@pytest.fixture
def copied_constraint(db: None) -> None:
    """What a REINDEX CONCURRENTLY that was canceled leaves: inserts must keep to it, too."""
    run(
        "CREATE UNIQUE INDEX app_articlecommentembedding_ccnew "
        "ON app_articlecommentembedding (source_id, space_id, position)"
    )


@pytest.fixture
def comment(provider: Any) -> ArticleComment:
    article = Article.objects.create(title="not embedded")
    return ArticleComment.objects.create(article=article, text=text_of(WORDS))


CHANGES = {
    "a word": [*WORDS[:2], "dragon", *WORDS[3:]],
    "reversed": WORDS[::-1],
    "one in front": ["aardvark", *WORDS],
    "the first one gone": WORDS[1:],
    "the last one gone": WORDS[:-1],
    "all others": ["heron", "ibis"],
}


@pytest.mark.django_db
@pytest.mark.usefixtures("copied_constraint")
@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
def test_a_text_is_replaced_under_a_constraint_that_is_not_deferred(comment, run_jobs, words):
    run_jobs()
    comment.text = text_of(words)
    comment.save()

    run_jobs()

    assert passages(comment) == comment.text
    assert_that_nobody_was_charged()


@pytest.mark.django_db
@pytest.mark.usefixtures("copied_constraint")
def test_so_is_one_that_was_stored_before_its_vectors(comment, provider, make_worker, clock):
    provider.is_down = True
    worker = make_worker()
    worker.step()
    worker.step()
    assert ArticleCommentEmbedding.objects.filter(embedding=None).count() == len(WORDS)

    provider.is_down = False
    clock.now += 4000
    for _ in range(5):
        make_due()
        worker.step()

    assert passages(comment) == comment.text
    assert_that_nobody_was_charged()


@pytest.mark.django_db
@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
def test_the_shadow_table_of_a_repack_follows(comment, run_jobs, words):
    run_jobs()
    run("SET CONSTRAINTS ALL IMMEDIATE")
    run(LOG)
    comment.text = text_of(words)
    comment.save()

    run_jobs()
    run(APPLY)

    with connection.cursor() as cursor:
        cursor.execute(DIFFERENT)
        assert cursor.fetchall() == []
    assert passages(comment) == comment.text


# What a statement may meet while others work on the database, and how often.
PASSING = {
    "a serialization failure": ("40001", "could not serialize access", 6),
    "a deadlock": ("40P01", "deadlock detected", 6),
    "a lock": ("55P03", "canceling statement due to lock timeout", 6),
    "an object in use": ("55006", "it is being used", 6),
    "an index that is gone": ("XX000", "could not open relation with OID 16500", 6),
    "a constraint that is gone": ("XX000", "cache lookup failed for constraint 16500", 6),
    "an update of the catalog": ("XX000", "tuple concurrently updated", 6),
    "a constraint of somebody else's": ("23505", 'duplicate key violates "x_ccnew"', 6),
    "pg_cancel_backend": ("57014", "canceling statement due to user request", 1),
    "a table that is renamed": ("42P01", 'relation "x" does not exist', 1),
}


@pytest.fixture
def refuse(db: None) -> Callable[..., None]:
    """Let the database refuse to store a note, so many times. A rollback takes no number back."""

    def refuse(
        state: str, message: str, times: int, *, on: str = "INSERT ON app_noteembedding"
    ) -> None:
        run("CREATE SEQUENCE refused")
        run(
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('refused') <= {times} THEN
                    RAISE EXCEPTION '{message}' USING ERRCODE = '{state}';
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER refuse BEFORE {on} FOR EACH ROW EXECUTE FUNCTION refuse()
            """
        )

    return refuse


@pytest.fixture
def work(make_worker: Callable[..., Work], clock: Any) -> Callable[[], None]:
    """Let a worker go on, over all backoffs."""

    def work() -> None:
        worker = make_worker(max_attempts=3)
        for _ in range(60):
            clock.now += 10
            make_due()
            worker.handler.live.outdate()
            worker.step()

    return work


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "message", "times"), PASSING.values(), ids=PASSING)
def test_what_passes_when_a_row_is_stored_costs_no_attempt(
    provider, refuse, work, state, message, times
):
    note = Note.objects.create(body="note")
    refuse(state, message, times)

    work()

    assert NoteEmbedding.objects.exclude(embedding=None).get().source_id == note.pk
    assert_that_nobody_was_charged()
    assert provider.embedded.count("note") == 1  # what was paid for is staged


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "message", "times"), PASSING.values(), ids=PASSING)
def test_nor_where_its_text_is_stored_early(provider, refuse, make_worker, state, message, times):
    Note.objects.create(body="note")
    worker = make_worker(max_attempts=1)
    worker.claim()
    worker.handler.planner.step()
    refuse(state, message, times)

    worker.handler.writer.store_text(list(worker.handler.units.by_id.values()))
    worker.release()

    assert set(Job.objects.values_list("status", "attempts")) == {("pending", 0)}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("state", "times"), [("40P01", 6), ("40001", 6), ("55P03", 6), ("55006", 6), ("57014", 1)]
)
def test_nor_where_a_text_method_meets_it(monkeypatch, work, state, times):
    product = Product.objects.create(title="a product")
    calls = []

    def pitch(row: Product) -> str:
        calls.append(row)
        if len(calls) <= times:
            run(f"DO $$ BEGIN RAISE 'not now' USING ERRCODE = '{state}'; END $$")
        return row.title

    monkeypatch.setattr(Product, "pitch", pitch)
    work()

    assert ProductEmbedding.objects.exclude(embedding=None).get().source_id == product.pk
    assert_that_nobody_was_charged()


@pytest.mark.django_db(transaction=True)
def test_what_a_text_method_always_meets_ends_its_job(monkeypatch, work):
    product = Product.objects.create(title="a product")
    raise_it = "DO $$ BEGIN RAISE 'not now' USING ERRCODE = '55P03'; END $$"
    monkeypatch.setattr(Product, "pitch", lambda _: run(raise_it))
    work()

    job = Job.objects.get(spec="app.ProductEmbedding", source_pk=str(product.pk))
    assert (job.status, job.attempts) == ("failed", 3)
    assert "not now" in job.last_error


@pytest.mark.django_db
def test_a_job_that_is_put_off_tells_why(refuse, make_worker):
    Note.objects.create(body="note")
    refuse("XX000", "could not open relation with OID 16500", 100)
    worker = make_worker()
    for _ in range(3):
        worker.step()

    job = Job.objects.get()
    assert (job.status, job.attempts) == ("pending", 0)
    assert "could not open relation" in job.last_error
    assert job.run_at > job.created_at


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "message"),
    [("XX000", "could not open relation with OID 1"), ("23505", "duplicate key")],
)
def test_what_does_not_pass_for_one_row_ends_its_job(refuse, work, state, message):
    Note.objects.create(body="note")
    refuse(state, message, 1000)

    work()

    job = Job.objects.get()
    assert (job.status, job.attempts) == ("failed", 3)
    assert message in job.last_error


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["22001", "23514", "54000", "P0001", "XX001"])
def test_what_a_value_is_refused_for_costs_an_attempt(refuse, make_worker, state):
    Note.objects.create(body="note")
    refuse(state, "not this value", 1000)
    worker = make_worker(max_attempts=1)
    worker.step()
    worker.step()

    assert Job.objects.get().status == "failed"


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["40P01", "40001", "55006", "57014"])
def test_a_chore_that_meets_it_comes_again(state):
    def once() -> int:
        run(f"DO $$ BEGIN RAISE 'not now' USING ERRCODE = '{state}'; END $$")
        return 1

    assert attempt(once) == 0


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_claim_meets_it_claims_again(refuse):
    refuse("40P01", "deadlock detected", 1, on="UPDATE ON pgembed_job")
    note = Note.objects.create(body="note")
    try:
        call_command("embed_worker", "--drain", verbosity=0)
    finally:
        run("DROP FUNCTION refuse() CASCADE; DROP SEQUENCE refused")

    assert NoteEmbedding.objects.exclude(embedding=None).get().source_id == note.pk
    assert_that_nobody_was_charged()


REWRITES = """
    VACUUM FULL app_noteembedding;
    VACUUM FULL pgembed_job;
    CLUSTER app_noteembedding USING app_noteembedding_pkey;
    CLUSTER pgembed_job USING pgembed_job_pkey;
    ALTER TABLE app_noteembedding SET WITHOUT CLUSTER;
    ALTER TABLE pgembed_job SET WITHOUT CLUSTER;
    ALTER TABLE app_note ADD extra timestamptz DEFAULT clock_timestamp();
    ALTER TABLE app_noteembedding ADD extra int DEFAULT 1;
    ALTER TABLE pgembed_job ADD extra int DEFAULT 1;
    ALTER TABLE app_noteembedding ALTER start_offset TYPE bigint;
    ALTER TABLE app_noteembedding ALTER embedding TYPE halfvec(64);
    ANALYZE app_noteembedding;
    ALTER EXTENSION vector UPDATE;
    ALTER TABLE app_note DROP extra;
    ALTER TABLE app_noteembedding DROP extra;
    ALTER TABLE pgembed_job DROP extra;
    ALTER TABLE app_noteembedding ALTER start_offset TYPE int;
    ALTER TABLE app_noteembedding ALTER embedding TYPE vector
"""


@pytest.fixture
def kept_plans(transactional_db: None) -> Iterator[None]:
    """A worker's direct session, whose statements stay prepared and whose plans are kept."""
    sessions.configure_sessions("default", is_direct=True)
    yield
    sessions.end_sessions("default")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept_plans")
def test_tables_are_rewritten_altered_and_exchanged_under_prepared_statements(
    make_worker, connect: Callable[..., psycopg.Connection]
):
    worker = make_worker(max_attempts=1)
    note = Note.objects.create(body="note")
    operator = connect(autocommit=True)
    statements = REWRITES.split(";")
    for number in range(PREPARE_AFTER + len(statements)):
        worker.claim()
        if number >= PREPARE_AFTER:
            operator.execute(statements[number - PREPARE_AFTER])
        note.body = f"note {number}"
        note.save()

        while not worker.held.is_empty or worker.claim():
            try:
                worker.step()
            except DatabaseError as error:
                if faults.of(error) is not Fault.OUTAGE:
                    raise
                connection.close()  # as the loop does

        stored = NoteEmbedding.objects.exclude(embedding=None).values_list("passage", flat=True)
        assert list(stored) == [note.body]
        assert_that_nobody_was_charged()


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_knows_the_type_of_a_former_extension_connects_again(make_worker):
    Note.objects.create(body="note")
    worker = make_worker(max_attempts=1)
    worker.step()
    connection.ensure_connection()
    register_vector_info(connection.connection, TypeInfo("vector", 99_999, 99_998))

    with pytest.raises(DatabaseError) as raised:
        worker.step()

    assert faults.of(raised.value) is Fault.OUTAGE
    connection.close()
    while worker.step():
        pass
    assert NoteEmbedding.objects.exclude(embedding=None).exists()
    assert_that_nobody_was_charged()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("table", ["app_noteembedding", "pgembed_job"])
def test_rows_are_updated_while_a_reindex_waits_for_a_snapshot(
    run_jobs, connect: Callable[..., psycopg.Connection], writer: Writer, table: str
):
    notes = [Note.objects.create(body=f"note {number}") for number in range(10)]
    run_jobs()
    reader = connect()
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT count(*) FROM app_noteembedding")
    writer.connection.autocommit = True
    writer.start(f"REINDEX TABLE CONCURRENTLY {table}")
    until_waiting(writer)
    for note in notes:
        note.body += ", changed"
        note.save()

    run_jobs()

    assert writer.is_waiting()
    stored = NoteEmbedding.objects.filter(embedding__isnull=False)
    assert set(stored.values_list("passage", flat=True)) == {note.body for note in notes}
    assert_that_nobody_was_charged()
    reader.rollback()
    writer.end()
