"""A name that is not known is answered with the known one that is most like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Q

from pgembed_django import providers
from pgembed_django.checks import check_declarations, check_settings
from pgembed_django.declaration import specs
from tests.app.models import Article
from tests.unit.test_decorator import isolated, refusal  # noqa: F401

NAMED: list[tuple[Callable[[], Any], str]] = [
    (lambda: call_command("embed_status", "--specs", "app.Article"), "'app.ArticleEmbedding'"),
    (lambda: call_command("embed_worker", database="defualt"), "'default'"),
    (lambda: call_command("embed_probe", "defalt"), "'default'"),
    (lambda: providers.get("defalt"), "'default'"),
    (lambda: specs.of(Article, name="ArticlEmbedding"), "'ArticleEmbedding'"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("ask", "meant"), NAMED)
def test_a_name_that_is_nearly_right_is_told(ask, meant):
    with pytest.raises(Exception, match=f"Did you mean {meant}\\?"):
        ask()


@pytest.mark.filterwarnings("ignore:Model 'app.thing")
def test_so_are_the_fields_of_a_declaration():
    assert "no field named 'titel'. Did you mean 'title'? Fields with" in refusal(fields=["titel"])
    assert "named 'rnk'. Did you mean 'rank'? Fields of" in refusal(when=Q(rnk=1))


@pytest.mark.parametrize(
    ("changes", "meant"),
    [({"MODLE": "m"}, "'MODEL'"), ({"OPTIONS": {"query_prefx": "q"}}, "'query_prefix'")],
)
def test_so_are_the_keys_of_a_provider(settings, changes, meant):
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**declared, **changes}}

    [message] = check_settings()

    assert message.hint.startswith(f"Did you mean {meant}?")


def test_so_is_the_provider_of_a_declaration(settings):
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"defualt": declared}

    hints = {message.hint for message in check_declarations()}

    assert hints == {"Did you mean 'defualt'? Name one of PGEMBED_PROVIDERS: defualt."}


@pytest.mark.django_db
def test_a_name_that_is_like_none_is_answered_with_all():
    with pytest.raises(CommandError, match=r"^No database named 'x'\. There are: default\.$"):
        call_command("embed_status", database="x")
