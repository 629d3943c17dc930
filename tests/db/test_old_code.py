"""A deploy is under way: one spec's tables are not as this process declares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Attempt, Job, ScanCursor, Space, Worker
from pgembed_django.spaces import reconcile
from tests.app.models import ArticleEmbedding, Note, NoteEmbedding
from tests.conftest import embedded_text
from tests.db.conftest import Maintenance, make_due

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

NOTE = "app.NoteEmbedding"
DRIFTS = {
    "a column is gone": (
        "ALTER TABLE app_note RENAME body TO text",
        "ALTER TABLE app_note RENAME text TO body",
    ),
    "the table is gone": (
        "ALTER TABLE app_note RENAME TO app_memo",
        "ALTER TABLE app_memo RENAME TO app_note",
    ),
    "the vectors' table is gone": (
        "ALTER TABLE app_noteembedding RENAME TO app_memoembedding",
        "ALTER TABLE app_memoembedding RENAME TO app_noteembedding",
    ),
    "a column of theirs has another type": (
        "ALTER TABLE app_noteembedding ALTER source_id TYPE bigint USING NULL",
        "ALTER TABLE app_noteembedding ALTER source_id TYPE uuid USING NULL",
    ),
}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(params=DRIFTS)
def drift(request):
    """Jobs of two specs, and the statements that take one's tables away and bring them back."""
    away, back = DRIFTS[request.param]
    for spec in specs.all():
        spaces.ensure(spec, using="default")
    execute(away)
    restored = []

    def restore() -> None:
        execute(back)
        restored.append(True)

    yield restore
    if not restored:
        restore()


@pytest.fixture
def note() -> Note:
    return Note.objects.create(body="a note")


def steps(worker) -> None:
    for _ in range(20):
        if not worker.step():
            break


def test_the_other_specs_go_on_and_no_attempt_is_spent(note, make_article, make_worker, drift):
    article = make_article(title="an article")
    worker = make_worker()

    steps(worker)

    assert embedded_text(article)
    job = Job.objects.get(spec=NOTE)
    assert (job.status, job.attempts, job.crashes) == ("pending", 0, 0)
    assert list(worker.handler.hindrances().quarantined) == [NOTE]
    assert "ProgrammingError" in job.last_error

    drift()
    make_due()
    worker.handler.live.outdate()  # as after five seconds
    steps(worker)

    assert not worker.handler.hindrances().quarantined
    assert NoteEmbedding.objects.filter(source=note).exists()


@contextmanager
def deploy(change: str, undo: str) -> Iterator[Callable[[], None]]:
    """Change a table while a worker is at work. Yields what undoes it, at the latest at the end."""
    with ExitStack() as stack:
        stack.callback(execute, undo)
        execute(change)
        yield lambda: stack.close()


STORING = {
    "a column is gone": (
        "ALTER TABLE app_noteembedding RENAME was_cut TO was_short",
        "ALTER TABLE app_noteembedding RENAME was_short TO was_cut",
    ),
    "the table is gone": DRIFTS["the vectors' table is gone"],
    "a new column has no default": (
        "ALTER TABLE app_noteembedding ADD extra int NOT NULL",
        "ALTER TABLE app_noteembedding DROP extra",
    ),
}


@pytest.mark.parametrize("change", STORING)
def test_what_cannot_be_stored_any_more_is_given_back_with_no_attempt_spent(
    note, make_article, make_worker, provider, change
):
    article = make_article(title="an article")
    worker = make_worker()
    worker.step()  # the answers are there
    with deploy(*STORING[change]) as undo:
        steps(worker)

        assert embedded_text(article)
        job = Job.objects.get(spec=NOTE)
        assert (job.status, job.attempts, job.crashes) == ("pending", 0, 0)
        assert job.last_error.startswith(("ProgrammingError", "IntegrityError"))
        assert not Attempt.objects.exists()
        assert list(worker.handler.hindrances().quarantined) == [NOTE]

        # Nor is it taken up as soon as it can be read: it would be paid for again and again.
        make_due()
        worker.handler.live.outdate()
        steps(worker)
        assert list(worker.handler.hindrances().quarantined) == [NOTE]
        undo()

    worker.handler.live.outdate()
    steps(worker)
    assert not worker.handler.hindrances().quarantined
    assert NoteEmbedding.objects.filter(source=note).exclude(embedding=None).exists()
    assert Counter(provider.embedded)["a note"] == 1


@pytest.mark.parametrize(
    ("statement", "gone"),
    [
        ("PERFORM a_function_that_is_gone()", "a_function_that_is_gone"),
        # A table of the project's own, whatever it is called.
        ("PERFORM FROM pgembed_notes", "pgembed_notes"),
    ],
)
def test_a_trigger_that_fails_on_one_row_sets_no_spec_aside(note, make_worker, statement, gone):
    """Its error is of the schema's class, but not of our table's form."""
    other = Note.objects.create(body="broken")
    with deploy(
        """
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.passage = 'broken' THEN
                STATEMENT;
            END IF;
            RETURN NEW;
        END
        $$;
        CREATE TRIGGER look BEFORE INSERT ON app_noteembedding
        FOR EACH ROW EXECUTE FUNCTION look();
        """.replace("STATEMENT", statement),
        "DROP FUNCTION look CASCADE",
    ):
        worker = make_worker()
        steps(worker)

        assert not worker.handler.hindrances().quarantined
        assert NoteEmbedding.objects.filter(source=note).exclude(embedding=None).exists()
        job = Job.objects.get(source_pk=str(other.pk), status="pending")
        assert job.attempts == 1
        assert gone in job.last_error


@pytest.mark.parametrize("change", STORING)
def test_nor_does_a_text_that_cannot_be_stored_early_cost_an_attempt(
    note, make_worker, provider, change
):
    worker = make_worker()
    provider.is_down = True
    worker.claim()
    worker.handler.planner.step()
    with deploy(*STORING[change]):
        steps(worker)

        job = Job.objects.get(spec=NOTE)
        assert (job.status, job.attempts) == ("pending", 0)
        assert NOTE in worker.handler.hindrances().quarantined


# Without the vectors' table it is refused at the start, with the remedy.
@pytest.mark.parametrize(
    "drift", [drift for drift in DRIFTS if "vectors" not in drift], indirect=True
)
def test_a_worker_starts_and_drains_the_others(note, make_article, drift):
    article = make_article(title="an article")
    Space.objects.all().delete()

    with pytest.raises(CommandError) as raised:
        call_command("embed_worker", drain=True, verbosity=0)

    assert "1 still waiting for tables that match the code. app.NoteEmbedding: " in str(
        raised.value
    )
    assert embedded_text(article)
    assert not Worker.objects.exists()
    assert Job.objects.get(spec=NOTE).attempts == 0


@pytest.mark.parametrize("drift", ["a column is gone"], indirect=True)
def test_a_drain_tells_each_thing_that_is_waited_for(provider, note, make_article, drift):
    make_article()
    provider.is_down = True

    with pytest.raises(CommandError) as raised:
        call_command("embed_worker", drain=True, verbosity=0)

    said = "2 still waiting for a provider that is down or for tables that match the code."
    assert f"{said} default: The server is down.; app.NoteEmbedding: " in str(raised.value)


def test_the_maintenance_of_the_others_goes_on(make_article, make_worker, drift, caplog):
    make_worker()
    make_article(title="an article")
    Job.objects.all().delete()
    maintenance = Maintenance(
        {spec.key: spec for spec in specs.all()},
    )

    assert maintenance.once() == 1
    assert maintenance.once() == 0
    maintenance.upkeep.open_spaces()
    for _ in specs.all():
        maintenance.upkeep.look_for_stale_rows()
    maintenance.upkeep.continue_scans()
    maintenance.upkeep.build()

    refused = [one for one in caplog.records if one.event == "pgembed.chore_refused"]
    assert {one.spec for one in refused} <= {NOTE}
    assert len({one.chore for one in refused}) == len(refused)


def test_a_key_that_is_none_takes_no_other_along(note, make_worker):
    Job.objects.create(spec=NOTE, source_pk="5")
    worker = make_worker()

    steps(worker)

    assert NoteEmbedding.objects.filter(source=note).exists()
    left = Job.objects.get(source_pk="5", status="pending")
    assert left.attempts == 1
    assert 'invalid input syntax for type uuid: "5"' in left.last_error


@pytest.mark.parametrize("scan", ["missing", "orphaned", "stale"])
def test_a_cursor_that_is_no_key_any_more_begins_anew(note, run_jobs, scan):
    run_jobs()
    spec = specs.get(NOTE)
    ScanCursor.objects.create(
        spec=NOTE, scan=scan, cursor="5000", recipe=spec.recipe, finished_recipe="another"
    )

    page = reconcile.reconcile_page(spec, scan, using="default")

    assert page == (0, True)
    assert reconcile.refreshing(spec, using="default") is None or scan != "stale"


def test_what_is_wrong_with_our_own_tables_is_no_specs(make_article, make_worker):
    make_article()
    worker = make_worker()
    execute("ALTER TABLE pgembed_job RENAME crashes TO falls")
    try:
        with pytest.raises(ProgrammingError):
            worker.step()
    finally:
        execute("ALTER TABLE pgembed_job RENAME falls TO crashes")
    assert not ArticleEmbedding.objects.exists()


def test_nor_what_is_wrong_with_them_once_a_row_is_held(make_article, make_worker):
    make_article()
    worker = make_worker()
    execute("ALTER TABLE pgembed_staging RENAME TO staged")
    try:
        with pytest.raises(ProgrammingError):
            worker.step()
    finally:
        execute("ALTER TABLE staged RENAME TO pgembed_staging")
    steps(worker)

    assert ArticleEmbedding.objects.exists()
    assert Job.objects.get().attempts == 0
