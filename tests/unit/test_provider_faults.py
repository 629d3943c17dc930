"""Faults drawn at random: no text is lost, no innocent one is charged, every one ends.

``PGEMBED_TEST_FAULTS=500`` draws as many examples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgembed_django.exceptions import (
    InputRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers.base import Embedded, Provider
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

EXAMPLES = int(os.environ.get("PGEMBED_TEST_FAULTS", "10"))
MAX_ATTEMPTS = 5
MAX_ROUNDS = 80
"""Without faults of the server. Each of those may cost a round of its own."""

OUTAGES = [
    played.reply({"error": "server busy, please try again.  maximum pending requests"}, 503),
    played.reply({"error": {"message": "slow down"}}, 429, Retry_After="30"),
    played.plain(502, "<html><title>Bad Gateway</title></html>"),
    played.reply({"error": "llama-server process has terminated: signal: killed"}, 500),
    played.reply({"error": "unauthorized"}, 401),
    played.reply({"error": 'model "played" not found, try pulling it first'}, 404),
    played.HTML,
    played.NO_ROUTE,
]

UNCLEAR = [
    played.reply({"error": {}}, 500),
    played.reply({"error": 'do embedding request: Post "http://127.0.0.1:9": EOF'}, 400),
    played.plain(500, "Internal Server Error"),
    played.EMPTY,
    played.plain(200, '{"embeddings": [[0.1, 0.'),
    played.reply({"embeddings": [], "data": []}),
    played.reply({"embeddings": [[1.0], [1.0, 2.0]], "data": [{"index": 7}]}),
    played.Reply(body=b"[" * 500, how="cut"),
    played.HANG_UP,
]

POISON = [
    *UNCLEAR,
    played.reply({"error": "failed to encode response: json: unsupported value: NaN"}, 500),
    played.reply({"error": {"message": "this text is refused"}}, 422),
]

DENIED = [
    played.plain(403, "<html><title>403 Forbidden</title></html>"),
    played.reply({"error": "model tokenizer: a special token was not found"}, 400),
]
"""Of a text alone, these look like an outage until a health check succeeded before."""

# What passes hits a text once and lets it be then: twice in a row would be its own fault.
passing = st.sampled_from(UNCLEAR).map(lambda fault: [fault, None, None])
lasting = st.tuples(st.sampled_from(UNCLEAR), st.integers(2, 25)).map(lambda it: [it[0]] * it[1])
outages = st.sampled_from(OUTAGES).map(lambda fault: [fault])
faults = st.lists(outages | passing | lasting, max_size=12)
poisons = st.lists(st.none() | st.none() | st.sampled_from(POISON), min_size=1, max_size=12)
denied = st.lists(
    st.none() | st.none() | st.sampled_from(POISON) | st.sampled_from(DENIED),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module", params=["ollama", "openai"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with ExitStack() as stack:
        server = played.Ollama() if request.param == "ollama" else played.OpenAI()
        stack.enter_context(played.serving(server))
        provider_class = OllamaProvider if request.param == "ollama" else OpenAIProvider
        path = "" if request.param == "ollama" else "/v1"
        provider = provider_class(
            alias="tested",
            model=server.model,
            dimensions=server.width,
            base_url=server.url + path,
            clock=played.Clock(),
        )
        provider.played = server
        stack.callback(provider.close)
        yield provider


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(faults=faults, poisons=denied, batch_size=st.integers(1, 8))
def test_no_text_is_lost_and_no_innocent_one_is_charged(
    provider: Provider,
    faults: list[list[played.Reply | None]],
    poisons: list[played.Reply | None],
    batch_size: int,
):
    replies = {f"text {number}": poison for number, poison in enumerate(poisons)}
    provider.played.faults.clear()
    provider.played.faults.extend(fault for group in faults for fault in group)
    provider.played.poison = replies.get
    provider.batch_size = batch_size
    embedded: dict[str, Embedded] = {}
    attempts: Counter[str] = Counter()
    pending = list(replies)
    is_down = False

    for _ in range(MAX_ROUNDS + sum(map(len, faults))):
        provider.clock.now += 4000
        asked = len(pending)
        provider.played.seen.clear()
        try:
            outcomes = provider.embed_each(
                pending, suspected=ProviderMisconfigured if is_down else None
            )
            is_down = any(isinstance(outcome, ProviderUnavailable) for outcome in outcomes)
        except ProviderUnavailable:
            outcomes, is_down = [], True
        assert len(provider.played.asked) <= 8 * asked + 8
        for text, outcome in zip(list(pending), outcomes, strict=False):
            if isinstance(outcome, Embedded):
                embedded[text] = outcome
                pending.remove(text)
            elif not isinstance(outcome, ProviderUnavailable):
                assert isinstance(outcome, ProviderError)
                attempts[text] += MAX_ATTEMPTS if isinstance(outcome, InputRefused) else 1
                if attempts[text] >= MAX_ATTEMPTS:
                    pending.remove(text)
        if not pending:
            break

    assert pending == []
    assert set(attempts) == {text for text, poison in replies.items() if poison}
    for text, outcome in embedded.items():
        assert outcome.vector == pytest.approx(played.vector_of(text, 16), abs=1e-5)
    assert set(embedded) == {text for text, poison in replies.items() if not poison}
