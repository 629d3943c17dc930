"""A model is renamed: the spec under its new name has all that the former one had."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.embedding import handler
from pgembed_django.models import Attempt, Job, Pause, ScanCursor, Space, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.spaces import repairs
from tests.app.models import Article, Note, NoteEmbedding
from tests.conftest import embedded_text
from tests.db.conftest import Maintenance, claim

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"
FORMER = "app.FormerEmbedding"
NOTE = "app.NoteEmbedding"


def call_it(key: str) -> None:
    """What is in the database of the articles is, until now, another spec's."""
    for model in (Space, Job, StagedVector, Attempt, ScanCursor):
        model.objects.filter(spec=KEY).update(spec=key)
    Pause.objects.filter(name=KEY).update(name=key)


@pytest.fixture
def article(make_article, run_jobs) -> Article:
    """A row with vectors."""
    one = make_article(title="old")
    run_jobs()
    return one


def jobs_of(key: str) -> list[tuple[str, str]]:
    return sorted(Job.objects.filter(spec=key).values_list("source_pk", "status"))


def test_what_was_written_before_is_not_lost(article, run_jobs):
    Article.objects.update(title="new")
    call_it(FORMER)

    repairs.follow_renames(using="default")

    assert run_jobs() == 1
    assert "new" in (embedded_text(article) or "")
    assert Space.objects.filter(spec=KEY).count() == 1
    assert not Job.objects.filter(spec=FORMER, status__in=["pending", "running"]).exists()


@pytest.mark.django_db(transaction=True)  # the writer has a connection
def test_a_worker_that_a_writer_keeps_from_following_opens_no_space(
    article, run_jobs, second_connection, monkeypatch
):
    """One with rows under the new name would keep the former one's from being adopted."""
    monkeypatch.setattr(handler, "FOLLOW_SECONDS", 0.2)
    former = Space.objects.get(spec=KEY)
    Article.objects.update(title="new")
    call_it(FORMER)
    second_connection.execute("UPDATE app_article SET title = 'newer' WHERE id = %s", [article.pk])
    known = {KEY: specs.get(KEY)}

    handler.EmbeddingHandler(known, using="default").prepare()
    second_connection.commit()

    assert not Space.objects.filter(spec=KEY).exists()
    maintenance = Maintenance(
        known,
    )
    maintenance.upkeep.build()
    assert list(Space.objects.filter(spec=KEY)) == [former]
    assert list(search(Article, "old")) == [article]
    run_jobs()
    assert "newer" in (embedded_text(article) or "")
    assert not Job.objects.filter(spec=FORMER, status="pending").exists()


def test_what_a_worker_with_the_former_name_had_at_hand_is_claimed_anew(article, run_jobs):
    Article.objects.update(title="new")
    claim()
    call_it(FORMER)

    repairs.follow_renames(using="default")

    assert Job.objects.get(spec=KEY, source_pk=str(article.pk)).status == "pending"
    assert run_jobs() == 1
    assert "new" in (embedded_text(article) or "")


def test_what_was_written_since_is_newer(article):
    Article.objects.update(title="new")
    Job.objects.update(attempts=3)
    call_it(FORMER)
    Article.objects.update(title="newer")

    repairs.follow_renames(using="default")

    [job] = Job.objects.filter(status="pending")
    assert (job.spec, job.attempts) == (KEY, 0)


def test_how_a_unit_has_failed_goes_with_it(article):
    Article.objects.update(title="new")
    Job.objects.filter(status="pending").update(attempts=2, crashes=1, last_error="refused")
    jobs.fail(claim_of_another(), "for good", using="default")
    jobs.pause("spec", KEY, by="ada", using="default")
    ScanCursor.objects.create(spec=KEY, scan="stale", cursor="7", recipe="r", finished_recipe="q")
    call_it(FORMER)

    repairs.follow_renames(using="default")

    job = Job.objects.get(spec=KEY, status="pending")
    assert (job.attempts, job.crashes, job.last_error) == (2, 1, "refused")
    assert Job.objects.get(status="failed").spec == KEY
    assert {one.spec for one in Attempt.objects.all()} == {KEY}
    assert jobs.paused(using="default").specs == {KEY: "ada"}
    scan = ScanCursor.objects.get(scan="stale")
    assert (scan.spec, scan.cursor, scan.finished_recipe) == (KEY, "7", "q")


def claim_of_another() -> jobs.Claim:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, status, worker_id, lease_expires_at,"
            " started_at, claims) VALUES (%s, '999', 'running', 1, now(), now(), 1)"
            " RETURNING id, started_at::text",
            [KEY],
        )
        [[job_id, started_at]] = cursor.fetchall()
    return jobs.Claim(job_id, 1, started_at, KEY, "999", "write", 0, "now", 0, 0, 0)


def test_a_new_model_with_the_former_name_keeps_its_own(article, run_jobs):
    Article.objects.update(title="new")
    # Under this name there is a spec: another model's, which has no vectors yet.
    for model in (Space, ScanCursor):
        model.objects.filter(spec=NOTE).delete()
    call_it(NOTE)
    assert not NoteEmbedding.objects.exists()

    repairs.follow_renames(using="default")

    assert {one.spec for one in Space.objects.filter(pk__in=spaces_of(article))} == {KEY}
    unfinished = [(str(article.pk), "pending")]
    assert [one for one in jobs_of(KEY) if one in unfinished] == unfinished
    assert [one for one in jobs_of(NOTE) if one in unfinished] == unfinished


def test_a_renaming_that_is_undone_is_followed_back(article, run_jobs):
    Article.objects.update(title="new")
    call_it(FORMER)
    # Until it was stopped, a worker went on under this name.
    spaces.ensure(specs.get(KEY), using="default")

    repairs.follow_renames(using="default")

    assert {one.spec for one in Space.objects.filter(pk__in=spaces_of(article))} == {KEY}
    assert Space.objects.filter(spec=KEY).count() == 1
    assert run_jobs() == 1
    assert "new" in (embedded_text(article) or "")


def test_two_models_that_swap_their_names_keep_each_its_own(article, run_jobs):
    note = Note.objects.create(body="a note")
    run_jobs()
    held = {KEY: set(spaces_of(article)), NOTE: set(note_spaces(note))}
    for space, key in ((held[KEY], "for a moment"), (held[NOTE], KEY), (held[KEY], NOTE)):
        Space.objects.filter(pk__in=space).update(spec=key)
    Article.objects.update(title="new")

    assert repairs.follow_renames(using="default")

    for key, ids in held.items():
        assert set(Space.objects.filter(spec=key).values_list("pk", flat=True)) == ids
    run_jobs()
    assert "new" in (embedded_text(article) or "")


def note_spaces(note: Note) -> list[int]:
    return list(NoteEmbedding.objects.filter(source=note).values_list("space", flat=True))


@pytest.mark.django_db(transaction=True)  # the other one has a connection
def test_one_process_follows_at_a_time(article, second_connection):
    call_it(FORMER)
    with second_connection.transaction():
        second_connection.execute(repairs.TRY_LOCK)
        assert not repairs.follow_renames(using="default")
    assert repairs.follow_renames(using="default")

    assert {one.spec for one in Space.objects.filter(pk__in=spaces_of(article))} == {KEY}


def test_spaces_of_others_are_left_alone(article, run_jobs):
    before = list(Space.objects.order_by("pk").values_list("pk", "spec"))

    repairs.follow_renames(using="default")

    assert list(Space.objects.order_by("pk").values_list("pk", "spec")) == before


def test_searches_find_what_is_there_once_the_migration_has_run(article):
    call_it(FORMER)
    assert not list(search(Article, "old"))

    call_command("migrate", verbosity=0)

    assert [hit.pk for hit in search(Article, "old")] == [article.pk]


@pytest.mark.django_db(transaction=True)  # the worker has connections of its own
def test_a_worker_follows_where_no_migrate_has_told_it(article):
    Article.objects.update(title="new")
    call_it(FORMER)

    call_command("embed_worker", drain=True, verbosity=0)

    assert "new" in (embedded_text(article) or "")


@pytest.mark.django_db(transaction=True)  # the writer has a connection
def test_a_busy_writer_puts_it_off(article, second_connection):
    Article.objects.update(title="new")
    call_it(FORMER)
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgembed_job WHERE status = 'pending' FOR UPDATE")
        repairs.follow_renames(using="default")
        assert {one.spec for one in Space.objects.filter(pk__in=spaces_of(article))} == {FORMER}

    repairs.follow_renames(using="default")

    assert {one.spec for one in Space.objects.filter(pk__in=spaces_of(article))} == {KEY}


def spaces_of(article: Article) -> list[int]:
    embedding = specs.get(KEY).embedding_model
    return list(embedding.objects.filter(source=article).values_list("space", flat=True))
