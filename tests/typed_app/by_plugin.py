"""What mypy knows by the plugin of django-stubs, and pyright does not."""

from __future__ import annotations

from typing import assert_type

from pgembed_django import Results
from tests.typed_app.models import Author, Letter, Named, Note, Plain


def a_manager_that_names_no_model() -> None:
    assert_type(Plain.objects.search("trout"), Results[Plain])
    assert_type(Plain.objects.filter(title="trout").search("trout"), Results[Plain])


def managers_of_an_own_queryset() -> None:
    assert_type(Letter.objects.search("trout"), Results[Letter])
    assert_type(Letter.objects.filter(title="trout").sent().search("trout"), Results[Letter])
    assert_type(Letter.rows.search("trout"), Results[Letter])
    assert_type(Letter.rows.filter(title="trout").sent().search("trout"), Results[Letter])


def related_managers(author: Author) -> None:
    assert_type(author.plain.search("trout"), Results[Plain])
    assert_type(author.named.filter(title="trout").search("trout"), Results[Named])
    assert_type(author.notes.recent().search("trout"), Results[Note])
    author.notes.filter(titel="trout")  # type: ignore[misc]
