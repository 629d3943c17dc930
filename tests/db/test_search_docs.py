"""The example view of the docs answers as they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.app.models import Article

pytestmark = pytest.mark.django_db

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "search.md"


@pytest.fixture
def view() -> Any:
    [example] = [
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "JsonResponse" in code
    ]
    names: dict[str, Any] = {}
    exec(example.replace("blog.models", "tests.app.models"), names)
    return names["search_articles"]


def test_the_json_view_of_the_docs_answers(view, rf, make_article, run_jobs):
    article: Article = make_article(title="A <b>trout</b>", contents="")
    run_jobs()

    answer = json.loads(view(rf.get("/", {"q": "trout"})).content)

    assert answer == {
        "results": [
            {
                "id": article.pk,
                "title": "A <b>trout</b>",
                "score": 1.0,
                "highlight": "A &lt;b&gt;<mark>trout</mark>&lt;/b&gt;",
            }
        ],
        "ranking": "hybrid",
        "degraded": False,
        "note": "",
        "next_offset": None,
    }


@pytest.mark.parametrize("offset", ["-1", "99999", "one", ""])
def test_the_json_view_of_the_docs_refuses_what_is_no_page(view, rf, offset):
    answer = view(rf.get("/", {"q": "trout", "offset": offset}))

    assert answer.status_code == 400
    assert "offset" in answer.content.decode() or "invalid literal" in answer.content.decode()
