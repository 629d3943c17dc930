"""Rerankers: what is sent to servers on real sockets, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django import rerankers
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured, ProviderTimeout
from pgembed_django.rerankers import Reranker
from pgembed_django.rerankers.http import HttpReranker
from tests import played

QUERY = "the bread rises"
PASSAGES = ["granite", "the slow rise of bread", "the bread rises slowly", "bread"]
SCORES = [0.0, 2.0, 3.0, 1.0]


@pytest.fixture
def make_reranker() -> Iterator[Callable[..., HttpReranker]]:
    with ExitStack() as stack:

        def make(kin: str = "jina", *, path: str = "", **options: Any) -> HttpReranker:
            server = stack.enter_context(played.serving(played.Reranking(kin=kin)))
            options = {"api": "tei" if kin == "tei" else "jina", **options}
            made = HttpReranker(alias="tested", model="m", base_url=server.url + path, **options)
            stack.callback(made.close)
            made.played = server
            return made

        yield make


def scores(reranker: Reranker, passages: list[str] = PASSAGES) -> list[float]:
    return reranker.scores(QUERY, passages, timeout_seconds=60)


@pytest.mark.parametrize(("kin", "path"), [("jina", "/v1"), ("jina", "/v2"), ("tei", "")])
def test_the_scores_are_in_the_order_of_the_passages(make_reranker, kin, path):
    reranker = make_reranker(kin, path=path)

    assert scores(reranker) == SCORES


def test_jinas_kin_is_sent_only_what_all_of_them_take(make_reranker):
    reranker = make_reranker()

    scores(reranker)

    [seen] = reranker.played.seen
    assert seen.payload == {"model": "m", "query": QUERY, "documents": PASSAGES, "top_n": 4}


def test_tei_is_told_to_cut_what_is_too_long(make_reranker):
    reranker = make_reranker("tei")

    scores(reranker)

    [seen] = reranker.played.seen
    assert seen.payload == {"query": QUERY, "texts": PASSAGES, "truncate": True}


@pytest.mark.parametrize(("kin", "sizes"), [("jina", [50]), ("tei", [32, 18])])
def test_no_request_has_more_passages_than_the_server_takes(make_reranker, kin, sizes):
    reranker = make_reranker(kin)

    assert scores(reranker, [f"{'bread' * (n % 2)} {n}" for n in range(50)]) == [0.0, 1.0] * 25
    assert [len(texts) for texts in reranker.played.asked] == sizes


def test_long_texts_are_cut(make_reranker):
    reranker = make_reranker(max_characters=5)

    scores(reranker, ["bread and butter"])

    [seen] = reranker.played.seen
    assert (seen.payload["query"], seen.payload["documents"]) == ("the b", ["bread"])


def test_the_key_comes_from_the_environment(make_reranker, monkeypatch):
    monkeypatch.setenv("RERANK_KEY", "0123456789")
    reranker = make_reranker(api_key_env="RERANK_KEY")

    scores(reranker)

    assert reranker.played.seen[0].headers["authorization"] == "Bearer 0123456789"


def test_a_key_that_is_not_set_is_told_with_the_setting(make_reranker):
    with pytest.raises(ProviderMisconfigured, match=r"PGEMBED_RERANKERS\['tested'\] names"):
        scores(make_reranker(api_key_env="NO_SUCH_KEY"))


def test_tei_that_is_asked_as_another_is_told_of(make_reranker):
    with pytest.raises(ProviderMisconfigured, match='Set api to "tei"'):
        scores(make_reranker("tei", api="jina"))


def test_an_address_without_the_route_is_told_of(make_reranker):
    with pytest.raises(ProviderMisconfigured, match="Is base_url right"):
        scores(make_reranker(path="/v9"))


def row(index: object, score: object) -> dict[str, object]:
    return {"index": index, "relevance_score": score}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"results": None},
        {"results": []},
        {"results": [0.5, 0.5]},
        {"results": [row(0, 0.5)]},
        {"results": [row(0, 0.5), row(0, 0.25)]},
        {"results": [row(0, 0.5), row(1, 0.5), row(1, 0.25)]},
        {"results": [row(0, 0.5), row(2, 0.25)]},
        {"results": [row(0, 0.5), row(-1, 0.25)]},
        {"results": [row(0, 0.5), row(True, 0.25)]},
        {"results": [row(0, 0.5), row("1", 0.25)]},
        {"results": [row(0, 0.5), row(1, "0.25")]},
        {"results": [row(0, 0.5), row(1, None)]},
        {"results": [row(0, 0.5), row(1, True)]},
        {"results": [row(0, 0.5), row(1, float("nan"))]},
        {"results": [row(0, 0.5), row(1, float("inf"))]},
        {"results": [row(0, 0.5), "1"]},
        {"results": [row(0, 0.5), {"index": 1, "score": 0.25}]},
    ],
)
def test_an_answer_without_one_score_for_each_passage_is_refused(make_reranker, answer):
    reranker = make_reranker()
    reranker.played.faults.append(played.reply(answer))

    with pytest.raises(ProviderError, match="did not answer a finite relevance_score") as raised:
        scores(reranker, ["one", "two"])
    assert type(raised.value) is ProviderError


def test_whole_numbers_are_scores_too(make_reranker):
    reranker = make_reranker()
    reranker.played.faults.append(played.reply({"results": [row(1, 2), row(0, -3)]}))

    assert scores(reranker, ["one", "two"]) == [-3.0, 2.0]


class Own(Reranker):
    """A project's own class, which answers whatever a test says."""

    def __init__(self, answer: Callable[..., Any], **common: Any) -> None:
        super().__init__(alias="tested", model="m", **common)
        self.answer = answer

    def rerank(self, query, passages, *, timeout_seconds):
        return self.answer(passages, timeout_seconds)


@pytest.mark.parametrize(
    "answer", [None, 1.0, [1.0], [1.0, None], ["1", "2"], [True, False], [[1.0, 2.0]], [1, np.nan]]
)
def test_a_class_of_ones_own_that_answers_no_scores_is_told_of(answer):
    reranker = Own(lambda passages, seconds: answer)

    with pytest.raises(ProviderError, match="a finite score for each of 2 passages"):
        scores(reranker, ["one", "two"])


def test_whatever_a_class_of_ones_own_raises_is_an_error_of_ours_without_the_texts():
    def fail(passages, seconds):
        raise KeyError(passages[0])

    with pytest.raises(ProviderError) as raised:
        scores(Own(fail), ["a secret passage"])
    assert "secret" not in str(raised.value)


def test_all_batches_together_have_the_time_of_one_search():
    clock = played.Clock()
    given = []

    def answer(passages, seconds):
        given.append(seconds)
        clock.now += 0.75
        return np.zeros(len(passages), dtype=np.float32)

    with pytest.raises(ProviderTimeout):
        Own(answer, batch_size=1, clock=clock).scores(QUERY, PASSAGES, timeout_seconds=2)
    assert given == [2.0, 1.25, 0.5]


HTTP = "pgembed_django.rerankers.http.HttpReranker"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"MODEL": "m"}, "has no BACKEND"),
        ({"BACKEND": HTTP}, "has no MODEL"),
        ({"BACKEND": HTTP, "MODEL": "m"}, "base_url is ''"),
        ({"BACKEND": HTTP, "MODEL": "m", "DIMENSIONS": 3}, "unknown key 'DIMENSIONS'"),
        ({"BACKEND": HTTP, "MODEL": "", "OPTIONS": {"base_url": "http://h"}}, "MODEL is ''"),
        ({"BACKEND": f"{HTTP}s", "MODEL": "m"}, "cannot be imported"),
        (
            {"BACKEND": "pgembed_django.providers.ollama.OllamaProvider", "MODEL": "m"},
            "not a subclass of pgembed_django.rerankers.Reranker",
        ),
        ({"BACKEND": HTTP, "MODEL": "m", "OPTIONS": {"url": "http://h"}}, "no option 'url'"),
        ({"BACKEND": HTTP, "MODEL": "m", "OPTIONS": {"api": "x"}}, "api is 'x'"),
        ({"BACKEND": HTTP, "MODEL": "m", "OPTIONS": {"batch_size": 0}}, "batch_size is 0"),
        (
            {"BACKEND": HTTP, "MODEL": "m", "OPTIONS": {"timeout_seconds": 0}},
            "timeout_seconds is 0",
        ),
        ({"BACKEND": HTTP, "MODEL": "m", "OPTIONS": []}, "OPTIONS is not a dict"),
        ("cohere", "is not a dict"),
    ],
)
def test_a_wrong_setting_is_told_with_its_place(settings, config, said):
    if isinstance(config, dict) and isinstance(options := config.get("OPTIONS"), dict):
        config = {**config, "OPTIONS": {"base_url": "http://h", **options}}
    settings.PGEMBED_RERANKERS = {"best": config}

    with pytest.raises(ImproperlyConfigured, match=r"^PGEMBED_RERANKERS\['best'\]") as raised:
        rerankers.get("best")
    assert said in str(raised.value)


def test_a_reranker_is_built_once(settings):
    options = {"base_url": "http://host"}
    settings.PGEMBED_RERANKERS = {"best": {"BACKEND": HTTP, "MODEL": "m", "OPTIONS": options}}
    first = rerankers.get("best")
    assert rerankers.get("best") is first

    settings.PGEMBED_RERANKERS = {"best": {"BACKEND": HTTP, "MODEL": "n", "OPTIONS": options}}

    assert rerankers.get("best").model == "n"
