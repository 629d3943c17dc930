"""What is deleted softly is not found, and what is restored is found again."""

from __future__ import annotations

import pytest
from django.apps import apps

from pgembed_django import search
from pgembed_django.models import Job
from pgembed_django.testing import assert_fresh
from tests.packages.with_softdelete.models import Article, Author, Comment, Note

pytestmark = pytest.mark.django_db


@pytest.fixture
def article(run_jobs) -> Article:
    article = Article.objects.create(title="Trout", author=Author.objects.create(name="Ann"))
    for body in ("good", "better"):
        Comment.objects.create(article=article, body=body)
    run_jobs()
    return article


def passages(model: str) -> list[str]:
    chunks = apps.get_model(f"with_softdelete.{model}Embedding").objects
    return list(chunks.order_by("pk").values_list("passage", flat=True))


def test_a_deletion_takes_the_vectors_along_at_once(article):
    article.delete()

    assert passages("Article") == []
    assert list(search(Article, "trout")) == []
    assert list(search(Article.global_objects.all(), "trout")) == []


def test_a_restored_row_is_embedded_again_with_its_comments(article, run_jobs):
    article.delete()
    run_jobs()

    article.restore()
    run_jobs()

    assert passages("Article") == ["Trout\nAnn\ngood\nbetter"]
    assert [hit.pk for hit in search(Article, "trout")] == [article.pk]
    assert_fresh(article)


def test_rows_are_deleted_and_restored_by_querysets_and_cascades(article, run_jobs):
    Author.objects.all().delete()

    assert not Article.objects.exists()
    assert passages("Article") == []

    Author.deleted_objects.all().restore()
    run_jobs()

    assert passages("Article") == ["Trout\nAnn\ngood\nbetter"]


def test_a_comment_leaves_the_text_and_returns(article, run_jobs):
    comment = Comment.objects.get(body="good")
    comment.delete()
    run_jobs()
    assert passages("Article") == ["Trout\nAnn\nbetter"]

    comment.restore(strict=False)
    run_jobs()
    assert passages("Article") == ["Trout\nAnn\ngood\nbetter"]

    comment.hard_delete()
    run_jobs()
    assert passages("Article") == ["Trout\nAnn\nbetter"]


def test_a_row_whose_vectors_stay_is_found_again_without_a_job(run_jobs):
    note = Note.objects.create(body="Trout")
    run_jobs()

    note.delete()

    assert list(search(Note, "trout")) == []
    assert [hit.pk for hit in search(Note.deleted_objects.all(), "trout")] == [note.pk]
    note.restore()
    assert [hit.pk for hit in search(Note, "trout")] == [note.pk]
    assert not Job.objects.filter(status="pending").exists()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_hard_deletion_leaves_nothing(article, run_jobs, is_deleted):
    note = Note.objects.create(body="Trout")
    run_jobs()
    for row in (article, note):
        if is_deleted:
            row.delete()
        row.hard_delete()

    assert passages("Article") == passages("Note") == []
    run_jobs()
    assert passages("Article") == passages("Note") == []


def test_a_hard_deletion_cascades(article):
    article.author.hard_delete()

    assert not Article.global_objects.exists()
    assert passages("Article") == []
