"""What users' own tests are given: inside of a transaction, on one connection."""

from __future__ import annotations

import asyncio
import inspect
import re

import pgtrigger
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now
from django.test import TestCase

from pgembed_django import conf, search
from pgembed_django.models import Job
from pgembed_django.testing import (
    assert_embedding_pending,
    assert_fresh,
    fake_providers,
    run_jobs,
    without_triggers,
)
from tests.app.models import Article, Category, Note, Product

pytestmark = pytest.mark.django_db


def refused(assertion, *arguments, **keywords) -> str:
    """Return what a failing assertion says."""
    with pytest.raises(AssertionError) as raised:
        assertion(*arguments, **keywords)
    return str(raised.value)


class TestAssertEmbeddingPending:
    def test_a_saved_row_is_pending_until_its_job_has_run(self, make_article):
        article = make_article()
        assert_embedding_pending(article)

        run_jobs()

        said = refused(assert_embedding_pending, article)
        assert said == (
            f"Article {article.pk} (app.ArticleEmbedding): no job is pending. Stored: 1 chunk of "
            "the row's text, with vectors. There is no job. One comes when a row is inserted or "
            "one of title, contents changes, unless the triggers are off."
        )

    def test_a_row_outside_of_the_condition_is_told_so(self, make_article):
        article = make_article(published_time=None)

        said = refused(assert_embedding_pending, article)

        assert "The row is outside of the spec's condition, when=(AND: ('published_time__" in said

    def test_a_row_that_failed_for_good_is_told_with_its_error(self, make_article):
        article = make_article()
        Job.objects.update(
            status="failed", last_error="the model is gone", attempts=5, finished_at=Now()
        )

        said = refused(assert_embedding_pending, article)

        assert "A job is failed (attempts: 5, last error: the model is gone)." in said


class TestAssertFresh:
    def test_a_row_is_fresh_when_its_vectors_are_those_of_its_text(self, make_article):
        article = make_article()
        said = refused(assert_fresh, article)
        assert "There is no space yet: no worker has run here. Call run_jobs()." in said
        assert "A job is pending (attempts: 0)." in said

        run_jobs()
        assert_fresh(article)

        article.title = "another one"
        article.save()
        said = refused(assert_fresh, article)
        assert "Stored: 1 chunk of another text than the row has now." in said

    def test_a_change_past_the_triggers_is_noticed(self, make_article):
        article = make_article()
        run_jobs()
        with without_triggers():
            Article.objects.update(title="nobody is told")

        said = refused(assert_fresh, article)

        assert "another text" in said
        assert "unless the triggers are off" in said

    def test_what_is_only_in_memory_does_not_count(self, make_article):
        article = make_article()
        run_jobs()

        article.title = "not saved"

        assert_fresh(article)

    def test_a_row_that_is_gone_is_told_so(self, make_article):
        article = make_article()
        pk = article.pk
        article.delete()
        article.pk = pk

        said = refused(assert_fresh, article)

        assert "There is no such row in the database 'default': was it saved there?" in said

    def test_chunks_without_a_vector_are_told(self, make_article, provider):
        article = make_article()
        provider.is_down = True
        run_jobs()

        said = refused(assert_fresh, article)

        assert "Stored: 1 chunk of the row's text, 1 without a vector." in said

    def test_a_text_method_that_fails_is_told(self, monkeypatch):
        product = Product.objects.create(title="a")
        monkeypatch.setattr(Product, "pitch", lambda _: 1 / 0)

        said = refused(assert_fresh, product, name="ProductEmbedding")

        assert "Its text cannot be made: ZeroDivisionError: division by zero." in said

    def test_all_declarations_of_a_model_have_to_be_fresh_unless_one_is_named(self):
        product = Product.objects.create(title="a")
        run_jobs()
        assert_fresh(product)
        with without_triggers():
            Product.objects.update(price=2)

        assert_fresh(product, name="ProductTitle")
        assert refused(assert_fresh, product).startswith(f"Product {product.pk} (app.ProductEmb")
        with pytest.raises(ImproperlyConfigured, match="no @embeddable named 'ProductTitel'"):
            assert_fresh(product, name="ProductTitel")

    @pytest.mark.parametrize("given", [Article, None])
    def test_what_is_no_row_is_refused(self, given):
        with pytest.raises(TypeError, match=r"is not a row\. Give an instance of an embeddable"):
            assert_fresh(given)

    def test_a_model_that_is_not_embeddable_is_refused(self):
        with pytest.raises(ImproperlyConfigured, match="Category is not embeddable"):
            assert_fresh(Category.objects.create(name="a"))


class TestWithoutTriggers:
    def test_writes_within_leave_no_jobs_and_later_ones_do(self, make_article):
        with without_triggers():
            make_article()
            connection.cursor().execute("UPDATE app_article SET title = 'raw'")
        assert not Job.objects.exists()

        Article.objects.update(title="seen")

        assert Job.objects.count() == 1

    def test_only_the_triggers_of_the_named_models_are_off(self, make_article):
        with without_triggers(Article):
            make_article()
            Note.objects.create(body="a")

        assert [job.spec for job in Job.objects.all()] == ["app.NoteEmbedding"]

    def test_blocks_add_up_and_end_one_by_one(self, make_article):
        with without_triggers(Note):
            with without_triggers(Article):
                make_article()
                Note.objects.create(body="a")
            assert not Job.objects.exists()
            Note.objects.create(body="b")
            make_article()

        assert [job.spec for job in Job.objects.all()] == ["app.ArticleEmbedding"]

    def test_it_decorates_functions(self, make_article):
        @without_triggers()
        def load() -> str:
            make_article()
            return "loaded"

        assert load() == "loaded"
        assert load.__name__ == "load"
        assert not Job.objects.exists()

    def test_a_class_is_refused(self):
        with pytest.raises(TypeError, match=r"TestCase is a class.*Decorate its functions"):
            without_triggers()(TestCase)

    def test_an_error_within_is_the_one_that_is_seen(self, make_article):
        first = make_article()
        Job.objects.all().delete()

        with pytest.raises(IntegrityError), transaction.atomic(), without_triggers():
            connection.cursor().execute("INSERT INTO app_article (id) VALUES (%s)", [first.pk])
        make_article()

        assert Job.objects.count() == 1

    def test_async_tests_use_async_with(self):
        @async_to_sync
        async def write() -> None:
            async with without_triggers():
                await Note.objects.acreate(body="a")
            await Note.objects.acreate(body="b")

        write()

        assert Job.objects.count() == 1

    def test_pgtriggers_own_switch_does_not_reach_the_thread_of_async_writes(self):
        """Which is why there is one of ours, and why the page says so."""

        @async_to_sync
        async def write() -> None:
            with pgtrigger.ignore():
                await Note.objects.acreate(body="a")

        write()

        assert Job.objects.count() == 1

    def test_it_decorates_async_functions(self):
        @without_triggers()
        async def write() -> str:
            await Note.objects.acreate(body="a")
            return "written"

        assert asyncio.iscoroutinefunction(write)
        assert async_to_sync(write)() == "written"
        assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_triggers_stay_off_over_the_transactions_of_a_block(make_article):
    with without_triggers():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            make_article(title=1 / 0)
        make_article()
    assert not Job.objects.exists()

    make_article()

    assert Job.objects.count() == 1


class TestFakeProviders:
    @pytest.fixture(autouse=True)
    def real_ones(self, settings):
        """As a project has them: on a server that no test may call."""
        settings.PGEMBED_PROVIDERS = {
            "default": {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "MODEL": "nomic-embed-text",
                "DIMENSIONS": 768,
                "OPTIONS": {"base_url": "http://localhost:1"},
                "REQUESTS_PER_MINUTE": 1,
            }
        }

    def test_rows_are_embedded_and_found_without_a_network(self, make_article):
        article = make_article(title="rust")
        with fake_providers():
            run_jobs()
            found = search(Article, "rust")

            assert [hit.instance for hit in found.hits] == [article]
            assert not found.degraded
            assert_fresh(article)
        assert "Ollama" in conf.current().providers["default"]["BACKEND"]

    @fake_providers()
    def test_it_decorates_functions(self, make_article):
        assert conf.current().providers == {
            "default": {
                "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
                "MODEL": "nomic-embed-text",
                "DIMENSIONS": 768,
            }
        }


def test_every_public_name_is_told_on_the_page(request):
    from pgembed_django import pytest_plugin, testing

    page = (request.config.rootpath / "docs/reference/testing.md").read_text()
    code = inspect.getsource(pytest_plugin)
    fixtures = re.findall(r"^def (pgembed_\w+)", code, re.MULTILINE)

    for name in [*testing.__all__, *fixtures]:
        assert f"`{name}" in page or f"testing.{name}" in page, name
    assert len(fixtures) == 4


def test_a_worker_in_a_test_case_is_refused_with_what_does_its_work(make_article):
    make_article()

    with pytest.raises(CommandError, match=r"run_jobs\(\) does its work") as caught:
        call_command("embed_worker", drain=True)

    assert caught.value.returncode == 2
    assert Job.objects.get().status == "pending"
