"""A server that cuts what is too long and answers 200: nothing is cut without being marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pgembed_django.exceptions import InputTooLong, ProviderError, ProviderUnavailable
from pgembed_django.providers import batching, probes, recognition
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from tests import played
from tests.played import Cutting

# What the servers take for a token.
WORD = r"\S+"
PIECE = r"[A-Za-z]{1,5}|\S"
LETTER = r"\w|\S"
CHARACTER = r"(?s:.)"

LANGUAGES = {
    "English": "The harbour master wrote down which of the {} ships had come in before the storm. ",
    "German": "Der Hafenmeister notierte, welche der {} Schiffe vor dem Sturm eingelaufen waren. ",
    "Russian": "Начальник порта записал, какие из {} судов вошли в гавань до начала шторма. ",
    "Chinese": "港务长记下了暴风雨来临之前哪{}艘船只已经驶入港口。",
    "hexadecimal digits": "5f0{0:02x}3a91be77{0:04x}c2d04d",
    "code": "if (x[i] != y->next) {{ z += f(&x, 0x{:04x}); }}\n",
}


@pytest.fixture
def make_provider() -> Iterator[Callable[..., Any]]:
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def text_of(length: int, *, token: str = PIECE, language: str = "English") -> str:
    """A text of so many tokens, all parts of which differ."""
    text = "".join(LANGUAGES[language].format(number) for number in range(length // 8 + 1))
    pieces = list(re.finditer(token, text))
    return text[: pieces[length - 1].end()]


def assert_is_embedded(outcome: Embedded | ProviderError, text: str, server: Cutting) -> None:
    """Its vector is that of the whole text, or of a start of it which the server did not cut."""
    assert isinstance(outcome, Embedded)
    fits = len(server.tokens(text)) <= server.limit
    assert outcome.was_cut is not fits
    sent = {one for texts in server.asked for one in texts if text.startswith(one)}
    whole = [one for one in sent if len(server.tokens(one)) <= server.limit]
    cosines = [float(server.vector_of(one) @ outcome.vector) for one in whole]
    assert max(cosines) > 0.999999
    if outcome.was_cut:  # and not more than need be
        best = whole[int(np.argmax(cosines))]
        assert len(server.tokens(best)) > server.limit * 0.4


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("limit", [128, 512])
def test_what_does_not_fit_is_cut_here_and_marked(make_provider, limit, language):
    provider = make_provider(Cutting(limit=limit, token=PIECE))
    lengths = [3, limit // 2, limit * 9 // 10, limit * 11 // 10, limit * 2, limit * 12]
    texts = [text_of(length, language=language) for length in lengths]

    for text, outcome in zip(texts, provider.embed_each(texts), strict=True):
        assert_is_embedded(outcome, text, provider.played)
    assert len(provider.played.asked) < 60
    asked = len(provider.played.asked)
    provider.embed_each([text_of(limit // 3, language=language)] * 32)
    assert len(provider.played.asked) - asked <= 2  # the limit is known by now


def test_a_vocabulary_may_know_no_part_of_what_is_no_word(make_provider):
    provider = make_provider(Cutting(limit=300, token=LETTER))
    texts = [text_of(n, token=LETTER, language="hexadecimal digits") for n in (200, 330, 600)]

    for text, outcome in zip(texts, provider.embed_each(texts), strict=True):
        assert_is_embedded(outcome, text, provider.played)


@pytest.mark.parametrize("token", [WORD, LETTER, CHARACTER])
def test_whatever_a_vocabulary_makes_of_a_text(make_provider, token):
    provider = make_provider(Cutting(limit=300, token=token))
    texts = [text_of(length, token=token) for length in (30, 250, 330, 900)]

    for text, outcome in zip(texts, provider.embed_each(texts), strict=True):
        assert_is_embedded(outcome, text, provider.played)


def test_if_it_is_not_to_be_cut_it_fails_alone(make_provider):
    provider = make_provider(Cutting(limit=256, token=PIECE), too_long="refuse")
    short, long = text_of(200), text_of(400)

    one, other = provider.embed_each([short, long])

    assert isinstance(one, Embedded)
    assert isinstance(other, InputTooLong)
    assert "cuts texts silently" in str(other)


def test_a_configured_limit_is_not_taken_for_the_servers(make_provider):
    provider = make_provider(Cutting(limit=128, token=PIECE), max_input_tokens=512)
    text = text_of(300)

    assert_is_embedded(provider.embed_each([text])[0], text, provider.played)


def test_where_nothing_is_cut_it_costs_two_requests_once(make_provider):
    provider = make_provider(Cutting(limit=10**6, token=PIECE))

    for _ in range(4):
        outcomes = provider.embed_each([text_of(number) for number in range(300, 332)])
        assert not any(outcome.was_cut for outcome in outcomes)

    assert len(provider.played.asked) == 4 + 2


def test_nor_is_a_text_marked_that_fills_most_of_a_long_context(make_provider):
    provider = make_provider(Cutting(limit=8192, token=PIECE))
    text = text_of(8000)

    assert_is_embedded(provider.embed_each([text])[0], text, provider.played)


def test_a_server_that_refuses_is_not_asked(make_provider):
    provider = make_provider(played.OpenAI(context=1000))
    text = text_of(1000)

    [outcome] = provider.embed_each([text])

    assert outcome.was_cut
    assert all(text.startswith(one) for [one] in provider.played.asked if one != "hello")


def test_an_outage_meanwhile_charges_nobody(make_provider):
    provider = make_provider(Cutting(limit=128, token=PIECE))
    text = text_of(300)
    down = played.reply({"error": {"message": "restarting"}}, 503)
    provider.played.faults.extend([None, None, down])

    with pytest.raises(ProviderUnavailable):
        provider.embed_each([text])
    assert_is_embedded(provider.embed_each([text])[0], text, provider.played)


def test_a_text_that_kills_only_with_more_to_it_is_not_held_up(make_provider):
    provider = make_provider(Cutting(limit=10**6, token=PIECE))
    broken = played.reply({"error": {"message": "internal error"}}, 500)
    provider.played.poison = lambda text: broken if "ship rain king" in text else None

    [outcome] = provider.embed_each([text_of(300)])

    assert isinstance(outcome, Embedded)
    assert batching.check_health(provider) is None


def test_a_limit_in_characters_says_nothing_about_tokens(make_provider):
    server = Cutting(limit=128, token=PIECE, kin="infinity", context=4000)
    provider = make_provider(server)
    texts = [text_of(100), text_of(200), text_of(2000)]

    outcomes = provider.embed_each(texts)
    later = provider.embed_each(texts)

    assert [one.was_cut for one in [*outcomes, *later]] == [False, True, True] * 2


def test_a_smaller_context_is_noticed_within_an_hour(make_provider):
    clock = played.Clock()
    provider = make_provider(Cutting(limit=1000, token=PIECE), clock=clock)
    text = text_of(300)
    assert not provider.embed_each([text])[0].was_cut

    provider.played.limit = 100
    clock.now += recognition.RECHECK_SECONDS
    assert_is_embedded(provider.embed_each([text])[0], text, provider.played)


def test_a_server_with_one_vector_for_all_texts_cuts_none(make_provider):
    provider = make_provider()
    provider.played.vector_of = lambda text: played.vector_of("", 16)

    assert not provider.embed_each([text_of(300)])[0].was_cut


def test_a_server_that_our_own_texts_bring_down_embeds_in_the_end(make_provider):
    provider = make_provider(Cutting(limit=10**6, token=PIECE))
    away = played.plain(502, "upstream closed the connection")
    provider.played.poison = lambda text: away if "ship rain king" in text else None

    outages = 0
    while outages < 9:
        with suppress(ProviderUnavailable):
            assert not provider.embed_each([text_of(300)])[0].was_cut
            break
        outages += 1

    assert outages == recognition.MAX_OUTAGES


def test_an_old_ollama_cuts_too():
    class Old(played.Ollama):
        def embed(self, seen: played.Seen) -> played.Reply:
            if seen.path == "/api/embeddings":
                seen.payload["prompt"] = " ".join(seen.payload["prompt"].split()[:100])
            return super().embed(seen)

    for make in played.making(OllamaProvider, Old):
        provider = make(Old(version="0.1.48"))
        fits, longer = provider.embed_each([text_of(99, token=WORD), text_of(101, token=WORD)])

        assert [fits.was_cut, longer.was_cut] == [False, True]


def test_a_probe_tells_the_context(make_provider):
    cutting = make_provider(Cutting(limit=300, token=WORD))
    whole = make_provider(Cutting(limit=10**6, token=WORD))
    refusing = make_provider(played.OpenAI(context=100))

    told = re.fullmatch(
        r"(\d+) tokens, and what is longer is cut silently", probes.context(cutting)
    )
    assert told
    assert 280 <= int(told[1]) <= 300
    assert probes.context(whole) == "at least 640 tokens"
    assert probes.context(refusing) == "longer texts are refused"
