"""Full text in the language of each row, of the declaration, or of the settings."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pgtrigger
import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from django.utils import translation

from pgembed_django import search
from pgembed_django.checks import check_databases
from pgembed_django.core.adapting import AdaptiveSize
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import SearchError
from pgembed_django.models import Job, ScanCursor, Worker
from pgembed_django.ops import status
from pgembed_django.retrieval import fusion
from pgembed_django.spaces import reconcile, words
from tests.app.models import Article, ArticleEmbedding, Product, ProductTitle
from tests.db.conftest import Maintenance
from tests.played.provider import PlayedProvider
from tests.unit.test_decorator import isolated  # noqa: F401

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/languages.md"

every = pytest.mark.parametrize


def example(*, having: str) -> str:
    """Return the block of the page with this text in it."""
    [found] = [code for code in blocks() if having in code]
    return found


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def mend(spec: Spec) -> int:
    """Do what workers do while the words of a spec are to be made again. Returns how many looks."""
    looks = 0
    while "words" in reconcile.under_way([spec], using="default").get(spec, ()):
        if reconcile.reconcile_page(spec, "words", using="default") is None:
            break  # it waits for jobs
        looks += 1
    return looks


def verdict(model: type[Any]) -> str:
    """Return the reason of the verdict while a worker is running."""
    [spec] = specs.of(model)
    Worker.objects.update_or_create(host="here", pid=7, version="1", specs=[spec.key])
    [seen] = status.overview(using="default", specs=[spec]).specs
    return seen.verdict.reason


def found(where: Any, text: str, **options: Any) -> list[str]:
    return [row.title for row in search(where, text, mode="lexical", **options)]


def languages(model: type[Any]) -> list[str | None]:
    return [*model.objects.order_by("source_id", "position").values_list("language", flat=True)]


@pytest.fixture
def tales(
    db: None,
    monkeypatch: pytest.MonkeyPatch,
    provider: type[PlayedProvider],
) -> ModuleType:
    """A module of the app with the example of the page, and its tables."""
    module = ModuleType("tests.app.tales")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(example(having="class Tale"), vars(module))
    [spec] = specs.of(module.Tale)
    with connection.schema_editor() as editor:
        for model in (module.Tale, spec.embedding_model):
            editor.create_model(model)
        for model, trigger in pgtrigger.registered():
            if model is module.Tale:
                editor.execute(trigger.compile(model).install_sql, params=None)
    return module


# A column that holds the language of each row


@every(
    ("value", "configuration"),
    [
        ("de", "german"),
        ("de-at", "german"),
        ("pt_BR", "portuguese"),
        ("German", "german"),
        ("simple", "simple"),
        ("ja", "simple"),
        ("", "simple"),
        ("klingon", "simple"),
        ("'; DROP --", "simple"),
        (None, "english"),
    ],
)
def test_each_row_is_stored_in_its_own_language(tales, run_jobs, value, configuration):
    tales.Tale.objects.create(title="Die Häuser", body="swimming", locale=value)
    run_jobs()

    [chunk] = tales.TaleEmbedding.objects.all()

    assert chunk.language == configuration
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_tsvector(%s::regconfig, %s)", [configuration, chunk.passage])
        assert cursor.fetchone() == (chunk.fulltext,)
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_a_changed_language_alone_changes_the_words_and_asks_no_provider(tales, run_jobs):
    tale = tales.Tale.objects.create(title="Die Häuser", body="am Fluss", locale="en")
    run_jobs()
    assert found(tales.Tale, "Haus", language="de") == []
    asked = list(PlayedProvider.embedded)

    tales.Tale.objects.filter(pk=tale.pk).update(locale="de")
    assert run_jobs() == 1

    assert found(tales.Tale, "Haus", language="de") == ["Die Häuser"]
    assert tales.TaleEmbedding.objects.get().embedding is not None
    assert PlayedProvider.embedded == asked


def test_a_column_that_does_not_say_the_language_changes_nothing(tales, run_jobs):
    tales.Tale.objects.create(title="Die Häuser", body="am Fluss", locale="de")
    run_jobs()

    tales.Tale.objects.update(locale="de")

    assert run_jobs() == 0


def test_a_query_is_in_the_active_language(tales, run_jobs):
    tales.Tale.objects.create(title="Die Häuser", locale="de")
    tales.Tale.objects.create(title="Houses", locale="en")
    run_jobs()

    with translation.override("de-at"):
        assert found(tales.Tale, "Haus") == ["Die Häuser"]
        assert found(tales.Tale, "house", language="en") == ["Houses"]
    with translation.override("en"):
        assert found(tales.Tale, "house") == ["Houses"]
    with translation.override("ja"):
        assert found(tales.Tale, "hous") == ["Houses"]  # by ``simple``
    with translation.override(None):
        assert found(tales.Tale, "house") == ["Houses"]  # by the setting


@every("code", ["ja", "zh-hans"])
def test_a_language_without_a_configuration_is_no_error_of_the_server(tales, run_jobs, code):
    run_jobs()
    failed = []

    def watch(execute, *statement: Any) -> Any:
        try:
            return execute(*statement)
        except DatabaseError as error:
            failed.append(error)
            raise

    with translation.override(code), connection.execute_wrapper(watch):
        found(tales.Tale, "house")

    assert not failed


def test_a_new_language_column_is_followed_without_a_provider(tales, run_jobs):
    """As after a deploy that declares one: all chunks are of the setting, whatever it says."""
    spec = specs.of(tales.Tale)[0]
    tales.Tale.objects.create(title="Die Häuser", locale="de")
    tales.Tale.objects.create(title="Houses", locale="en")
    run_jobs()
    execute("UPDATE app_taleembedding SET language = 'english', fulltext = NULL")
    ScanCursor.objects.filter(scan="words").update(recipe="english", finished_recipe="english")
    asked = list(PlayedProvider.embedded)

    mend(spec)

    assert languages(tales.TaleEmbedding) == ["german", "english"]
    assert found(tales.Tale, "Haus", language="de") == ["Die Häuser"]
    assert (Job.objects.filter(status="pending").count(), PlayedProvider.embedded) == (0, asked)


def test_a_language_that_changes_while_the_former_is_mended_is_not_missed(tales, run_jobs):
    """Its job may find that nothing is to be done: a page is looked at until nothing is."""
    spec = specs.of(tales.Tale)[0]
    tales.Tale.objects.create(title="Die Häuser", locale="de")
    run_jobs()
    execute("UPDATE app_tale SET locale = 'fr'; DELETE FROM pgembed_job WHERE status = 'pending'")
    ScanCursor.objects.filter(scan="words").update(recipe="", finished_recipe="")
    reconcile.reconcile_page(spec, "words", using="default")
    assert languages(tales.TaleEmbedding) == ["french"]
    # Its job saw the former words, in a transaction that overlaps with the page's.
    execute("UPDATE app_tale SET locale = 'de'; DELETE FROM pgembed_job WHERE status = 'pending'")

    mend(spec)

    assert languages(tales.TaleEmbedding) == ["german"]


def test_the_deep_reconciler_finds_a_language_that_was_written_past_the_triggers(tales, run_jobs):
    spec = specs.of(tales.Tale)[0]
    tales.Tale.objects.create(title="Die Häuser", locale="en")
    run_jobs()
    execute("UPDATE app_tale SET locale = 'de'; DELETE FROM pgembed_job WHERE status = 'pending'")

    assert reconcile.reconcile_once(spec, using="default", scans=reconcile.ALL_SCANS) == 1
    run_jobs()

    assert languages(tales.TaleEmbedding) == ["german"]


# A changed setting


@pytest.mark.django_db
def test_a_changed_setting_is_followed_from_the_passages_without_a_provider(
    make_article, run_jobs, settings, provider
):
    [spec] = specs.of(Article)
    for number in range(3):
        make_article(title=f"Swimming {number}")
    run_jobs()
    asked = list(provider.embedded)
    vectors = list(ArticleEmbedding.objects.values("id", "embedding"))
    provider.is_down = True
    assert search(Article, "swimming", mode="lexical").note == ""
    assert "by now" not in verdict(Article)

    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"
    assert search(Article, "swimming", mode="lexical").note == fusion.OTHER_LANGUAGE
    assert found(Article, "swimming") == []
    assert "about 0% of the texts have them in the declared language by now" in verdict(Article)
    mend(spec)

    assert len(found(Article, "swimming")) == 3
    assert search(Article, "swimming", mode="lexical").note == ""
    assert "by now" not in verdict(Article)
    assert [*ArticleEmbedding.objects.values("id", "embedding")] == vectors
    assert (provider.embedded, Job.objects.filter(status="pending").count()) == (asked, 0)


@pytest.mark.django_db
def test_texts_that_are_not_stored_are_followed_from_their_rows(run_jobs, settings, provider):
    [spec] = specs.of(Product, name="ProductTitle")
    Product.objects.create(title="Swimming trousers", in_stock=False)
    run_jobs()
    asked = list(provider.embedded)
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"

    mend(spec)
    assert search(Product, "x", name="ProductTitle", mode="lexical").note != ""
    assert run_jobs() == 1
    assert reconcile.reconcile_page(spec, "words", using="default") == (0, True)

    assert found(Product, "swimming", name="ProductTitle") == ["Swimming trousers"]
    [chunk] = ProductTitle.objects.all()
    assert (chunk.language, chunk.passage, chunk.embedding is None) == ("simple", None, False)
    assert provider.embedded == asked
    assert search(Product, "swimming", name="ProductTitle", mode="lexical").note == ""


@pytest.mark.django_db
def test_a_worker_follows_a_changed_setting_by_itself(make_article, run_jobs, settings):
    known = {spec.key: spec for spec in specs.of(Article)}
    make_article(title="Swimming")
    run_jobs()
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"

    Maintenance(known).upkeep.continue_scans()

    assert languages(ArticleEmbedding) == ["simple"]


@pytest.mark.django_db
def test_progress_is_told_by_the_chunks_that_were_passed(make_article, run_jobs, settings):
    [spec] = specs.of(Article)
    for _ in range(10):
        make_article()
    run_jobs()
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"
    fourth = ArticleEmbedding.objects.order_by("id")[3].pk
    ScanCursor.objects.filter(spec=spec.key, scan="words").update(
        recipe="simple", cursor=str(fourth)
    )

    assert "about 40% of the texts" in verdict(Article)


@pytest.mark.django_db
def test_nothing_is_read_again_once_all_is_mended(make_article, run_jobs, settings):
    [spec] = specs.of(Article)
    make_article()
    run_jobs()
    assert mend(spec) == 0
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"

    assert mend(spec) == 2  # the second sees that nothing is left
    assert mend(spec) == 0


# Other transactions


@pytest.mark.django_db(transaction=True)
class TestWriters:
    @pytest.fixture
    def article(self, make_article, run_jobs, settings) -> Article:
        made = make_article(title="Swimming")
        run_jobs()
        settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"
        return made

    def test_a_writer_does_not_wait_for_a_page(self, article, connect):
        [spec] = specs.of(Article)
        writer: psycopg.Connection = connect()
        writer.execute("SET lock_timeout = '1s'")

        with transaction.atomic():
            assert reconcile.reconcile_page(spec, "words", using="default") is not None
            assert languages(ArticleEmbedding) == ["simple"]
            writer.execute("UPDATE app_article SET title = 'Flying'")
            writer.commit()

    def test_a_page_does_not_wait_for_a_writer(self, article, connect):
        [spec] = specs.of(Article)
        writer: psycopg.Connection = connect()
        writer.execute("DELETE FROM app_article")  # which locks the chunk

        assert reconcile.reconcile_page(spec, "words", using="default") == (0, True)
        writer.rollback()

        assert languages(ArticleEmbedding) == ["english"]
        # A later pass over all rows finds what was passed over.
        assert reconcile.reconcile_once(spec, using="default", scans=["stale"]) == 1

    def test_chunks_after_those_that_a_writer_has_locked_are_mended(
        self, article, connect, make_article, run_jobs, settings, monkeypatch
    ):
        [spec] = specs.of(Article)
        settings.PGEMBED_TEXT_SEARCH_CONFIG = "english"
        make_article(title="Flying")
        run_jobs()
        settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"
        one_by_one = defaultdict(lambda: AdaptiveSize(1, most=1))
        monkeypatch.setattr(words, "_sizes", one_by_one)
        writer: psycopg.Connection = connect()
        writer.execute("DELETE FROM app_article WHERE id = %s", [article.pk])

        mend(spec)
        writer.rollback()

        assert languages(ArticleEmbedding) == ["english", "simple"]

    def test_new_words_are_not_overwritten_with_old_ones(self, article, connect, run_jobs):
        """A worker replaces the chunk between the page's look and its write."""
        [spec] = specs.of(Article)
        worker: psycopg.Connection = connect()
        worker.execute("DELETE FROM app_articleembedding")
        worker.execute("UPDATE app_article SET title = 'Flying'")
        reconcile.reconcile_page(spec, "words", using="default")
        worker.commit()
        run_jobs()

        mend(spec)

        assert found(Article, "swimming") == []
        assert found(Article, "flying") == ["Flying"]


# What is refused, and what is told


@pytest.mark.django_db
@every("language", ["englsh", "no.such", "two words", "\0", "", "-", "99999", 7])
def test_a_search_in_an_unknown_language_is_refused(make_article, run_jobs, language):
    make_article(title="trout")
    run_jobs()

    with pytest.raises(SearchError, match="language is") as raised:
        search(Article, "trout", language=language)

    assert repr(language) in str(raised.value)
    if language == "englsh":
        assert "Did you mean 'english'" in str(raised.value)
    assert Article.objects.count() == 1  # in the caller's transaction


@pytest.mark.django_db
def test_a_configuration_that_is_missing_sets_the_spec_aside(make_article, make_worker, settings):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "klingon"
    make_article()
    worker = make_worker()

    for _ in range(3):
        worker.step()

    [why] = worker.handler.hindrances().quarantined.values()
    assert '"klingon" does not exist' in why
    assert set(Job.objects.values_list("status", "attempts")) == {("pending", 0)}


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Spec]:
    """Declare the language of the articles."""
    [spec] = specs.of(Article)

    def declare(language: str) -> Spec:
        monkeypatch.setitem(vars(spec), "language", language)
        vars(spec).pop("language_column", None)
        return spec

    return declare


@pytest.mark.django_db
def test_a_declared_language_is_that_of_its_model_alone(make_article, run_jobs, declare):
    declare("de-ch")
    make_article(title="Die Häuser")
    Product.objects.create(title="Swimming", in_stock=False)
    run_jobs()

    assert languages(ArticleEmbedding) == ["german"]
    assert found(Article, "Haus") == ["Die Häuser"]
    assert languages(ProductTitle) == ["english"]


@pytest.mark.django_db
def test_a_declared_configuration_that_is_missing_is_told(declare):
    declare("germn")

    [message] = check_databases(databases=["default"])
    with pytest.raises(ImproperlyConfigured, match=r"@embeddable on Article: language is 'germn'"):
        search(Article, "Haus")

    assert message.id == "pgembed.E015"
    assert "app.ArticleEmbedding: language is 'germn'" in message.msg
    assert "Did you mean 'german'?" in (message.hint or "")


@pytest.mark.django_db
def test_a_migration_that_creates_the_configuration_is_not_stopped(settings):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "french_unaccent"
    execute("DELETE FROM django_migrations WHERE app = 'app'")

    assert "pgembed.E015" not in [one.id for one in check_databases(databases=["default"])]


# The page


@pytest.mark.django_db
def test_the_migration_of_the_page_finds_words_without_their_accents(
    make_article, run_jobs, settings
):
    names: dict[str, Any] = {}
    exec(example(having="french_unaccent (COPY"), names)
    exec(example(having="PGEMBED_TEXT_SEARCH_CONFIG ="), names)
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_available_extensions WHERE name = 'unaccent'")
        has_unaccent = cursor.rowcount == 1
    stand_in = "TEXT SEARCH DICTIONARY unaccent (TEMPLATE = simple, ACCEPT = false)"
    execute(f"CREATE {'EXTENSION IF NOT EXISTS unaccent' if has_unaccent else stand_in}")
    execute(names["CREATE"])
    settings.PGEMBED_TEXT_SEARCH_CONFIG = names["PGEMBED_TEXT_SEARCH_CONFIG"]
    make_article(title="Les hôtels")
    make_article(title="Le hotel")
    run_jobs()

    for text, title in (("hotel", "Le hotel"), ("hôtel", "Les hôtels")):
        either = ["Le hotel", "Les hôtels"] if has_unaccent else [title]
        assert sorted(found(Article, text)) == either
