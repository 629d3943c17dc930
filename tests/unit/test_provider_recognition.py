"""Whether the model behind a provider is the same, by its vectors of a few fixed texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.openai import OpenAIProvider
from pgembed_django.providers.recognition import TEXTS, Known
from tests import played


@pytest.fixture
def make_provider() -> Iterator[Callable[..., Any]]:
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def known_of(provider: Any, noise: float = 0.0) -> Known:
    """What a space knows, off by so much that the cosine is ``1 - noise``."""
    vectors = np.stack([provider.played.vector_of(text) for text in TEXTS])
    other = np.random.default_rng(7).standard_normal(vectors.shape)
    other -= (other * vectors).sum(axis=1, keepdims=True) * vectors
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    cosine = 1 - noise
    turned = cosine * vectors + np.sqrt(1 - cosine**2) * other
    return Known(turned.astype("<f4").tobytes(), "space 7", "")


@pytest.mark.parametrize(("noise", "is_strange"), [(0, False), (0.008, False), (0.012, True)])
def test_what_another_device_makes_is_no_other_model(make_provider, noise, is_strange):
    provider = make_provider()
    known = known_of(provider, noise)

    assert (known in provider.canary.look([known], seconds=300).strangers) is is_strange


def test_one_odd_text_is_no_other_model(make_provider):
    provider = make_provider()
    vectors = np.frombuffer(known_of(provider).vectors, dtype="<f4").reshape(len(TEXTS), -1).copy()
    vectors[:2] *= -1
    known = Known(vectors.tobytes(), "space 7", "")

    assert provider.canary.look([known], seconds=300).strangers == {}


def test_one_odd_answer_is_no_other_model(make_provider):
    provider = make_provider()
    known = known_of(provider)
    odd = played.OpenAI(width=provider.dimensions)
    odd.weights = "odd"
    payload = {"model": odd.model, "input": list(TEXTS)}
    provider.played.faults.append(odd.embed(played.Seen("POST", "", {}, payload, ("", 0))))

    assert provider.canary.look([known], seconds=300).strangers == {}
    assert len(provider.played.asked) == 2


def test_it_is_one_request_for_each_connection_and_time(make_provider):
    clock = played.Clock()
    provider = make_provider(clock=clock)
    known = known_of(provider)
    provider.embed_documents(["hello"])
    server = provider.played

    def ask() -> int:
        before = len(server.asked)
        provider.canary.look([known], seconds=300)
        return len(server.asked) - before

    assert [ask(), ask()] == [1, 0]
    clock.now += 300
    assert [ask(), ask()] == [1, 0]
    server.exchange("")  # restarted, with the same model
    provider.embed_documents(["hello"])
    assert [ask(), ask()] == [1, 0]


def test_a_batch_of_any_size_will_do(make_provider):
    provider = make_provider(batch_size=2)
    known = known_of(provider)

    assert provider.canary.look([known], seconds=300).strangers == {}
    assert len(provider.played.asked) == 3


def test_a_server_that_does_not_answer_has_no_other_model(make_provider):
    provider = make_provider()
    known = known_of(provider)
    provider.played.poison = lambda text: played.reply({"error": "out of memory"}, 500)

    with pytest.raises(ProviderUnavailable):
        provider.canary.look([known], seconds=300)


def test_a_model_in_this_process_is_asked_once():
    class Counted(DeterministicProvider):
        asked = 0

        def embed_batch(self, texts):
            Counted.asked += 1
            return super().embed_batch(texts)

    provider = Counted(alias="tested", model="bag-of-words", dimensions=64)

    for _ in range(2):
        assert provider.canary.look([], seconds=300).strangers == {}

    assert Counted.asked == 1
