"""``trigger_level="statement"``: what a row trigger promises, promised for a whole INSERT."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import pgtrigger
import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Q
from django.db.utils import ProgrammingError

from pgembed_django.checks import check_databases
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.testing import without_triggers
from pgembed_django.triggers import SpecTrigger, triggers
from tests.app.models import Article, Contact
from tests.conftest import PUBLISHED, embedded_text
from tests.db.test_sql import call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

NAME = "pgembed_insert_ArticleEmbedding"
# Every second row matches.
MANY = """
    INSERT INTO app_article (title, contents, author, category_id, published_time)
    SELECT 'Title ' || n, '', '', NULL, CASE n % 2 WHEN 0 THEN now() END
    FROM generate_series(1, {count}) AS n
"""


def by_row() -> SpecTrigger:
    [trigger] = [
        trigger
        for model, trigger in pgtrigger.registered()
        if model is Article and trigger.name == NAME
    ]
    return trigger


def by_statement() -> SpecTrigger:
    return next(triggers(dataclasses.replace(by_row().watch, is_by_statement=True)))


@pytest.fixture(autouse=True)
def installed(transactional_db: None) -> Iterator[None]:
    """Put the trigger for each statement in the place of that for each row."""
    by_statement().install(Article)
    yield
    by_row().install(Article)


def units() -> list[str]:
    found = Job.objects.filter(spec="app.ArticleEmbedding", status="pending")
    return sorted(found.values_list("source_pk", flat=True), key=int)


def matching() -> list[str]:
    found = Article.objects.filter(published_time__isnull=False)
    return [str(pk) for pk in found.order_by("pk").values_list("pk", flat=True)]


def execute(statement: str, *parameters: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


def article(title: str = "a", **values: Any) -> Article:
    return Article(**{"title": title, "contents": "x", "published_time": PUBLISHED, **values})


def test_a_row_that_comes_alone_is_enqueued():
    row = article()
    row.save()

    assert units() == [str(row.pk)]


def test_all_rows_of_a_statement_that_match_are_enqueued_and_no_others():
    execute(MANY.format(count=20_100))

    assert len(units()) == 10_050
    assert units() == matching()


def test_a_condition_may_contain_what_bodies_are_quoted_with():
    watch = dataclasses.replace(by_row().watch, is_by_statement=True, when=Q(title="costs $$"))
    next(triggers(watch)).install(Article)

    Article.objects.bulk_create([article(title="costs $$"), article(title="costs $")])

    assert len(units()) == 1


def test_the_condition_does_not_depend_on_the_writers_search_path():
    """There ``=`` may be another type's, or none."""
    watch = dataclasses.replace(
        by_row().watch, key="app.Other", name="Other", is_by_statement=True, when=Q(name="ADA")
    )
    trigger = next(triggers(watch))
    with transaction.atomic():
        trigger.install(Contact)
        execute("SET LOCAL search_path = ''")
        execute("INSERT INTO public.app_contact (name, binary_json) VALUES ('Ada', '{}')")
        execute("SET LOCAL search_path = public")

        assert Contact.objects.filter(name="ADA").exists()
        assert Job.objects.filter(spec="app.Other").exists()
        trigger.uninstall(Contact)


def test_a_statement_that_brings_no_row_that_matches_enqueues_nothing():
    execute(MANY.format(count=1))
    execute(MANY.format(count=0))

    assert units() == []


def test_copied_rows_are_enqueued():
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY app_article (title, contents, author, published_time) FROM STDIN") as to,
    ):
        to.write_row(("a", "", "", PUBLISHED))
        to.write_row(("b", "", "", None))
        to.write_row(("c", "", "", PUBLISHED))

    assert len(units()) == 2
    assert units() == matching()


def test_of_an_upsert_the_rows_that_came_and_those_that_changed_are_enqueued():
    changed, same = Article.objects.bulk_create([article("old"), article("same")])
    Job.objects.all().delete()

    Article.objects.bulk_create(
        [
            article("new", pk=changed.pk),
            article("same", pk=same.pk),
            article("c", pk=1_000_000_000),
        ],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["title"],
    )

    assert units() == [str(changed.pk), "1000000000"]


def test_of_a_merge_the_rows_that_came_and_those_that_changed_are_enqueued():
    changed = article("old")
    changed.save()
    Job.objects.all().delete()

    execute(
        """
        MERGE INTO app_article AS known
        USING (VALUES (%s::bigint, 'new'), (1000000000, 'came')) AS given(id, title)
           ON given.id = known.id
        WHEN MATCHED THEN UPDATE SET title = given.title
        WHEN NOT MATCHED THEN
            INSERT (id, title, contents, author, published_time)
            VALUES (given.id, given.title, '', '', now())
        """,
        changed.pk,
    )

    assert units() == [str(changed.pk), "1000000000"]


def test_what_a_trigger_before_the_row_makes_of_it_counts():
    execute(
        """
        CREATE FUNCTION publish() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.published_time := now();
            RETURN NEW;
        END
        $$;
        CREATE TRIGGER publish BEFORE INSERT ON app_article
        FOR EACH ROW EXECUTE FUNCTION publish();
        """
    )
    try:
        Article.objects.bulk_create([article(published_time=None), article(published_time=None)])
    finally:
        execute("DROP FUNCTION publish() CASCADE")

    assert len(units()) == 2


def test_pgtrigger_ignore_and_tests_without_triggers_still_write_past_it():
    with pgtrigger.ignore(f"app.Article:{NAME}"):
        Article.objects.bulk_create([article(), article()])
    with without_triggers(Article):
        Article.objects.bulk_create([article(), article()])
    assert units() == []

    row = article()
    row.save()
    assert units() == [str(row.pk)]


def test_a_role_without_any_right_on_our_tables_and_another_search_path_may_write():
    with transaction.atomic():
        execute("CREATE ROLE pgembed_guest")
        execute("GRANT ALL ON app_article TO pgembed_guest")
        execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO pgembed_guest")
        execute("SET LOCAL ROLE pgembed_guest")
        execute("SET LOCAL search_path = pg_catalog")
        execute(MANY.format(count=4).replace("app_article", "public.app_article"))
        execute("RESET ROLE")
        execute("SET LOCAL search_path = public")
        assert len(units()) == 2
        transaction.set_rollback(True)


def test_a_row_that_comes_back_while_its_job_is_parked_brings_it_forward():
    Article.objects.bulk_create([article(pk=1), article(pk=2)])
    Article.objects.all().delete()
    Job.objects.update(run_at="2999-01-01T00:00Z", attempts=3, kind="reconciler", last_error="x")

    Article.objects.bulk_create([article(pk=1), article(pk=2)])

    assert units() == ["1", "2"]
    for job in Job.objects.all():
        assert job.run_at.year < 2999
        assert (job.attempts, job.kind, job.last_error) == (0, "write", "")


def test_a_key_that_is_there_twice_stops_no_writer():
    call("pgembed_enqueue_all_v1", "app.ArticleEmbedding", ["1", "2", "1"], 0)

    assert units() == ["1", "2"]


def test_one_function_treats_a_job_that_is_there_as_the_other_does():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT prosrc FROM pg_proc "
            "WHERE proname IN ('pgembed_enqueue_v1', 'pgembed_enqueue_all_v1')"
        )
        one, many = (body.partition("ON CONFLICT")[2] for [body] in cursor.fetchall())

    assert "DO UPDATE SET" in one
    assert "pg_notify" in one
    assert one == many


def test_a_statement_that_commits_after_the_look_for_jobs_is_embedded_too(
    second_connection, run_jobs
):
    row = article("old")
    row.save()
    row.delete()
    assert units() != []  # a deletion leaves a job, which the row that comes back meets
    pk = Job.objects.get().source_pk
    second_connection.execute(
        "INSERT INTO app_article (id, title, contents, author, published_time) "
        "VALUES (%s, 'new', '', '', now())",
        [pk],
    )

    run_jobs()  # must not take the job while the write is open
    assert units() == [pk]
    second_connection.commit()
    run_jobs()

    assert embedded_text(Article.objects.get()).startswith("new")


def test_two_open_statements_do_not_wait_for_each_other(second_connection):
    Article.objects.bulk_create([article(pk=pk) for pk in range(1, 5)])
    Article.objects.all().delete()  # their jobs stay
    insert = (
        "INSERT INTO app_article (id, title, contents, author, published_time) "
        "SELECT pk, '', '', '', now() FROM unnest(%s::int[]) AS pk"
    )

    with transaction.atomic():
        second_connection.execute(insert, [[4, 2]])
        execute(insert, [1, 3])
    second_connection.commit()

    assert units() == ["1", "2", "3", "4"]


def test_a_worker_on_watch_is_told_once_and_none_where_none_sleeps(second_connection):
    second_connection.autocommit = True
    second_connection.execute("LISTEN pgembed")
    execute(MANY.format(count=30_000))
    assert list(second_connection.notifies(timeout=0)) == []

    second_connection.execute(
        "SELECT pg_advisory_lock("
        "hashtextextended('app.ArticleEmbedding', 'pgembed_job'::regclass::oid::bigint))"
    )
    execute(MANY.format(count=30_000))

    [told] = second_connection.notifies(timeout=5, stop_after=1)
    assert told.channel == "pgembed"
    assert list(second_connection.notifies(timeout=0)) == []


@pytest.fixture
def partitioned() -> Iterator[None]:
    """Make the articles' table, as far as the trigger is concerned, the whole of partitions."""
    with transaction.atomic():
        execute("ALTER TABLE app_article RENAME TO gone")
        execute("CREATE TABLE app_article (LIKE gone) PARTITION BY LIST (id)")
        execute("CREATE TABLE first PARTITION OF app_article FOR VALUES IN (1)")
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize("which", ["whole", "part"])
def test_a_partitioned_table_is_refused_with_the_remedy(partitioned, which):
    if which == "part":
        execute("ALTER TABLE app_article RENAME TO whole")
        execute("ALTER TABLE first RENAME TO app_article")

    by_row().install(Article)
    with pytest.raises(ProgrammingError, match='"app_article" is partitioned') as caught:
        by_statement().install(Article)

    assert 'Take trigger_level="statement" off' in str(caught.value)


def ids_of_checks() -> list[str | None]:
    return [message.id for message in check_databases(databases=["default"])]


def test_a_table_that_was_partitioned_later_is_found_by_a_check(partitioned, monkeypatch):
    assert "pgembed.E017" not in ids_of_checks()

    spec = dataclasses.replace(specs.get("app.ArticleEmbedding"), trigger_level="statement")
    monkeypatch.setitem(specs._registry, spec.key, spec)
    [message, *_] = check_databases(databases=["default"])

    assert message.id == "pgembed.E017"
    assert "app_article of app.ArticleEmbedding is partitioned" in message.msg


def test_makemigrations_replaces_the_trigger_when_its_level_changes(monkeypatch):
    others = [trigger for trigger in Article._meta.triggers if trigger.name != NAME]
    monkeypatch.setattr(Article._meta, "triggers", [*others, by_statement()])
    monkeypatch.setitem(Article._meta.original_attrs, "triggers", Article._meta.triggers)
    written = io.StringIO()

    call_command("makemigrations", "app", dry_run=True, verbosity=3, stdout=written)

    operations = [
        line.strip() for line in written.getvalue().splitlines() if "pgtrigger.migrations." in line
    ]
    assert [line for line in operations if line.endswith("(")] == [
        "pgtrigger.migrations.RemoveTrigger(",
        "pgtrigger.migrations.AddTrigger(",
    ]
    assert "pgembed_django.triggers.CompiledTrigger(" in written.getvalue()
    assert "REFERENCING NEW TABLE AS inserted" in written.getvalue()
