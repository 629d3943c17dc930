"""A text that does not fit may be embedded in pieces, whose mean stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pgembed_django.exceptions import InputRefused, ProviderUnavailable
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

Make = Callable[..., OpenAIProvider]
REFUSED = played.reply({"error": {"message": "not this one"}}, 400)


@pytest.fixture
def make_provider() -> Iterator[Make]:
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def test_a_text_that_does_not_fit_can_be_embedded_in_pieces():
    for make in played.making(OllamaProvider, played.Ollama):
        provider = make(played.Ollama(context=20), too_long="split")

        short, long = provider.embed_each(["fits", "one two three four five six seven"])

        assert (short.was_cut, long.was_cut) == (False, True)
        sent = {text for texts in provider.played.asked for text in texts if len(text) <= 20}
        pieces = sorted(sent - {"fits", "hello"})
        assert sorted(" ".join(pieces).split()) == sorted(
            ["one", "two", "three", "four", "five", "six", "seven"]
        )
        total = sum(len(piece) * played.vector_of(piece, 16) for piece in pieces)
        assert long.vector @ total / np.linalg.norm(total) == pytest.approx(1, abs=1e-3)


def test_a_piece_that_is_refused_is_the_texts_failure(make_provider: Make):
    provider = make_provider(played.OpenAI(context=20), too_long="split")
    provider.played.poison = lambda text: REFUSED if "poison" in text and len(text) <= 20 else None

    fitting, refused = provider.embed_each(["fits", "one two three four poison six seven"])

    assert isinstance(fitting, Embedded)
    assert isinstance(refused, InputRefused)


def test_a_text_in_pieces_is_given_back_where_the_server_goes_away(make_provider: Make):
    provider = make_provider(played.OpenAI(context=20), too_long="split")
    away = played.reply({"error": {"message": "busy"}}, 503)
    provider.played.poison = lambda text: (
        away if text.startswith("one") and len(text) <= 20 else None
    )

    fitting, left = provider.embed_each(["fits", "one two three four five six seven"])

    assert isinstance(fitting, Embedded)
    assert isinstance(left, ProviderUnavailable)


def test_a_known_context_is_kept_in_pieces_too():
    provider = DeterministicProvider(
        alias="tested", model="m", dimensions=8, max_input_tokens=4, too_long="split"
    )

    [embedded] = provider.embed_each(["one two three four five six seven eight nine"])

    assert embedded.was_cut
