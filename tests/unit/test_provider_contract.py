"""What every provider keeps: one suite over all of them, servers on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from pgembed_django.exceptions import InputRefused, ProviderMisconfigured
from pgembed_django.providers import recognition
from pgembed_django.providers.base import Embedded, Provider
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from pgembed_django.providers.wordllama import WordLlamaProvider
from tests import played

Make = Callable[..., Provider]
TEXTS = [f"text number {number} of many" for number in range(70)]

LOCAL = {
    "wordllama": (WordLlamaProvider, "l2_supercat", 64),
    "deterministic": (DeterministicProvider, "hashes", 32),
}
SERVERS = {
    "ollama": lambda: played.Ollama(),
    "ollama 0.3.0, out of order": lambda: played.Ollama(version="0.3.0"),
    "ollama 0.2.5, one by one": lambda: played.Ollama(version="0.2.5"),
    "openai": lambda: played.OpenAI(),
    "openai without base64": lambda: played.OpenAI(takes_base64=False),
    "tei": lambda: played.OpenAI(kin="tei"),
}


@pytest.fixture(params=[*LOCAL, *SERVERS])
def make_provider(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(**options: object) -> Provider:
            if request.param in LOCAL:
                provider_class, model, width = LOCAL[request.param]
                options = {"model": model, "dimensions": width, **options}
                return provider_class(alias="tested", **options)
            server = stack.enter_context(played.serving(SERVERS[request.param]()))
            is_ollama = isinstance(server, played.Ollama)
            provider_class = OllamaProvider if is_ollama else OpenAIProvider
            options = {
                "model": server.model,
                "dimensions": server.width,
                "base_url": server.url + ("" if is_ollama else "/v1"),
                **options,
            }
            provider = provider_class(alias="tested", **options)
            stack.callback(provider.close)
            return provider

        yield make


def test_any_number_of_texts_come_back_as_float32_vectors_of_length_one(make_provider: Make):
    provider = make_provider()

    vectors = provider.embed_documents(TEXTS)

    assert vectors.shape == (len(TEXTS), provider.dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_each_text_has_its_own_vector_whatever_the_batch(make_provider: Make):
    provider = make_provider()

    together = provider.embed_documents(TEXTS)

    for position in (0, 31, 32, 69):
        alone = provider.embed_documents([TEXTS[position]])[0]
        assert together[position] == pytest.approx(alone, abs=1e-5)


def test_no_texts_are_no_vectors(make_provider: Make):
    provider = make_provider()
    assert provider.embed_documents([]).shape == (0, provider.dimensions)
    assert provider.embed_each([]) == []


def test_an_empty_text_fails_alone(make_provider: Make):
    first, empty, blank, last = make_provider().embed_each(["one", "", " \n", "two"])

    assert isinstance(first, Embedded)
    assert isinstance(empty, InputRefused)
    assert isinstance(blank, InputRefused)
    assert isinstance(last, Embedded)


def test_prefixes_are_part_of_the_text_and_of_the_identity(make_provider: Make):
    bare = make_provider()
    prefixed = make_provider(document_prefix="document: ", query_prefix="query: ")

    [document] = prefixed.embed_documents(["cats"])
    query = prefixed.embed_query("cats")

    assert document == pytest.approx(bare.embed_documents(["document: cats"])[0], abs=1e-5)
    assert query == pytest.approx(bare.embed_query("query: cats"), abs=1e-5)
    assert bare.identity() != prefixed.identity()
    assert prefixed.identity()["document_prefix"] == "document: "


def test_a_query_without_prefixes_is_embedded_like_a_document(make_provider: Make):
    provider = make_provider()
    assert provider.embed_query("cats") == pytest.approx(
        provider.embed_documents(["cats"])[0], abs=1e-5
    )


def test_an_empty_query_is_refused(make_provider: Make):
    with pytest.raises(InputRefused, match="empty"):
        make_provider().embed_query("  ")


@pytest.mark.parametrize("text", ["\x00", "🦄 naïve 漢字", "a" * 5000, "' \" \\ \n {}", "\ud800"])
def test_odd_texts_are_embedded_or_fail_alone(make_provider: Make, text: str):
    odd, plain = make_provider().embed_each([text, "plain"])

    assert isinstance(odd, (Embedded, InputRefused))
    assert isinstance(plain, Embedded)


def test_threads_share_a_provider(make_provider: Make):
    provider = make_provider()
    alone = provider.embed_documents(TEXTS)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: provider.embed_documents([text])[0], TEXTS))

    assert np.stack(together) == pytest.approx(alone, abs=1e-5)


def test_a_probe_tells_the_width_and_finds_nothing_wrong(make_provider: Make):
    provider = make_provider()

    probe = provider.probe()

    assert probe.ok, probe.message
    assert probe.reachable
    assert probe.model_present
    assert probe.width == provider.dimensions
    assert probe.digest == provider.model_digest()


def test_a_closed_provider_may_be_used_again(make_provider: Make):
    provider = make_provider()
    provider.embed_query("one")

    provider.close()

    assert provider.embed_query("two").shape == (provider.dimensions,)


def test_an_identity_is_the_same_for_a_twin(make_provider: Make):
    assert make_provider().identity() == make_provider().identity()


class TwiceAsWide(DeterministicProvider):
    def embed_batch(self, texts):
        return np.hstack([super().embed_batch(texts)] * 2)


def test_another_width_than_dimensions_names_both():
    provider = TwiceAsWide(alias="tested", model="hashes", dimensions=384)
    expected = "answered 768 dimensions where DIMENSIONS says 384: set DIMENSIONS to 768"

    with pytest.raises(ProviderMisconfigured, match=expected):
        provider.embed_each(["text"])
    assert provider.probe().width == 768
    assert expected in provider.probe().message
    assert "set truncate_dimensions if its vectors may be cut" in provider.probe().message


def test_truncated_vectors_are_the_first_numbers_normalized_again():
    wide = TwiceAsWide(alias="tested", model="m", dimensions=8, truncate_dimensions=True)
    alike = DeterministicProvider(alias="tested", model="m", dimensions=8)

    assert wide.embed_documents(TEXTS) == pytest.approx(alike.embed_documents(TEXTS))
    assert wide.embed_query("cats") == pytest.approx(alike.embed_query("cats"))
    assert wide.probe().ok
    assert wide.probe().width == 16
    assert wide.canary.look([], seconds=0).vectors.shape == (len(recognition.TEXTS), 8)


class HalfAsWide(DeterministicProvider):
    def embed_batch(self, texts):
        return super().embed_batch(texts)[:, : self.dimensions // 2]


def test_more_dimensions_than_the_model_has_cannot_be_cut_from_it():
    provider = HalfAsWide(alias="tested", model="m", dimensions=64, truncate_dimensions=True)
    expected = "answered 32 dimensions where DIMENSIONS says 64: set DIMENSIONS to 32 or less, or"

    with pytest.raises(ProviderMisconfigured, match=expected):
        provider.embed_query("text")
    assert expected in provider.probe().message


def test_truncation_is_part_of_the_identity_only_if_it_is_on(make_provider: Make):
    whole, on, off = (make_provider(truncate_dimensions=it) for it in (False, True, False))

    assert whole.identity() == off.identity()
    assert "truncate_dimensions" not in whole.identity()
    assert on.identity() == {**whole.identity(), "truncate_dimensions": True}
