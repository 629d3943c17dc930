"""What needs no server: WordLlama for real, sentence-transformers for real where it is installed,
and else stood in for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django import executors
from pgembed_django.exceptions import (
    InputTooLong,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
)
from pgembed_django.executors import InProcess
from pgembed_django.providers import sentence_transformers as provider_module
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.sentence_transformers import SentenceTransformerProvider, cores
from pgembed_django.providers.wordllama import WordLlamaProvider
from pgembed_django.rerankers.cross_encoder import CrossEncoderReranker

LIBRARIES = Path(__file__).parents[1] / "played" / "libraries"

OWN = {"BACKEND": "pgembed_django.executors.OwnProcess"}
HERE = {"BACKEND": "pgembed_django.executors.InProcess"}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Stands in for sentence-transformers, in this process and in those that it starts."""
    monkeypatch.syspath_prepend(LIBRARIES)
    executors._shared.clear()  # a model that another test has loaded
    played = ("sentence_transformers", "torch")
    for name in played:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield __import__("sentence_transformers")
    for name in played:
        sys.modules.pop(name, None)


def wordllama(dimensions: int = 256, **options: object) -> WordLlamaProvider:
    return WordLlamaProvider(alias="tested", model="l2_supercat", dimensions=dimensions, **options)


def sentence_transformer(
    model: str = "any", *, executor: dict[str, object] = HERE, **options: object
) -> SentenceTransformerProvider:
    provider = SentenceTransformerProvider(alias="tested", model=model, dimensions=2, **options)
    provider.run_by(executor)
    return provider


@pytest.mark.parametrize("dimensions", [64, 128, 256])
def test_wordllama_gives_the_librarys_own_vectors(dimensions: int):
    import wordllama as package

    texts = ["The cat sat on the mat.", "Why is my index not used?", "漢字 and naïve"]
    library = package.WordLlama.load(
        cache_dir=Path(package.__file__).parent, trunc_dim=dimensions, disable_download=True
    )

    ours = wordllama(dimensions).embed_documents(texts)

    assert ours == pytest.approx(library.embed(texts, norm=True), abs=1e-5)


def test_wordllama_knows_what_words_mean():
    cat, kitten, database = wordllama().embed_documents(
        ["a cat asleep", "the sleeping kitten", "an index of a database table"]
    )
    assert cat @ kitten > cat @ database + 0.2


def test_wordllama_takes_a_text_of_any_length():
    [embedded] = wordllama(64).embed_each(["word " * 100_000])
    assert isinstance(embedded, Embedded)
    assert embedded.was_cut is False


@pytest.mark.parametrize(
    ("model", "dimensions", "said"),
    [("l2_supercat", 300, "DIMENSIONS is 300"), ("l3_supercat", 256, "ships l2_supercat")],
)
def test_wordllama_says_what_it_ships(model: str, dimensions: int, said: str):
    with pytest.raises(ImproperlyConfigured, match=said):
        WordLlamaProvider(alias="tested", model=model, dimensions=dimensions)


def test_a_sentence_transformer_is_loaded_once_per_process(library: ModuleType):
    first, second = sentence_transformer(device="cpu"), sentence_transformer(device="cpu")
    assert library.loaded == []

    first.embed_query("one")
    second.embed_query("two")

    [(name, arguments)] = library.loaded
    assert name == "any"
    assert arguments["device"] == "cpu"
    assert arguments["trust_remote_code"] is False


@pytest.mark.usefixtures("library")
def test_dimensions_that_a_sentence_transformer_lacks_are_told_when_it_is_loaded():
    provider = SentenceTransformerProvider(
        alias="tested", model="any", dimensions=3, truncate_dimensions=True
    )
    provider.run_by(HERE)

    with pytest.raises(ProviderMisconfigured, match="2 dimensions where DIMENSIONS says 3"):
        provider.warm_up()


@pytest.mark.parametrize("option", ["trust_remote_code", "local_files_only"])
def test_a_string_from_the_environment_is_not_taken_for_true(library: ModuleType, option: str):
    with pytest.raises(ImproperlyConfigured, match=f"{option} is 'False'. Set it to True or False"):
        sentence_transformer(**{option: "False"})


def test_a_sentence_transformer_never_cuts_silently(library: ModuleType):
    short, long = sentence_transformer().embed_each(["one two", "one two three four five"])

    assert short.was_cut is False
    assert long.was_cut is True
    [expected] = sentence_transformer().embed_documents(["one two three four"])
    assert long.vector == pytest.approx(expected)


def test_a_sentence_transformer_that_fails_does_not_quote_the_text(library: ModuleType):
    fine, failed = sentence_transformer().embed_each(["fine", "explode"])

    assert isinstance(fine, Embedded)
    assert isinstance(failed, ProviderError)
    assert str(failed) == "The model 'any' failed with RuntimeError."


def test_a_sentence_transformer_that_is_nowhere_is_misconfigured(library: ModuleType):
    with pytest.raises(ProviderMisconfigured, match="cannot load the model 'nowhere'"):
        sentence_transformer("nowhere").embed_each(["one"])


def test_the_deterministic_provider_is_the_same_in_every_process():
    provider = DeterministicProvider(alias="tested", model="hashes", dimensions=100)

    [vector] = provider.embed_documents(["one two"])

    assert vector[:3] == pytest.approx([0.0745205, 0.0267768, 0.0379467], abs=1e-6)
    assert np.linalg.norm(vector) == pytest.approx(1)
    near, far = provider.embed_documents(["two three one", "quite different"])
    assert vector @ near > 0.5 > vector @ far


@pytest.mark.usefixtures("library")
def test_the_weights_of_a_local_folder_are_its_digest(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = sentence_transformer(str(tmp_path)).model_digest()

    weights.write_bytes(b"another")

    assert first
    assert sentence_transformer(str(tmp_path)).model_digest() not in (None, first)


def cross_encoder(model: str = "any", **options: object) -> CrossEncoderReranker:
    return CrossEncoderReranker(alias="tested", model=model, **options)


def test_a_cross_encoder_scores_pairs(library: ModuleType):
    reranker = cross_encoder(device="cpu", revision="r1", batch_size=2)

    scores = reranker.scores("a", ["a", "b", "a a"], timeout_seconds=60)

    assert scores == [1.0, 0.0, 2.0]
    [(name, given)] = library.loaded
    assert (name, given["device"], given["revision"]) == ("any", "cpu", "r1")


def test_a_cross_encoder_is_loaded_before_the_first_search(library: ModuleType):
    cross_encoder().warm_up()

    assert len(library.loaded) == 1


def test_a_cross_encoder_that_fails_quotes_no_text(library: ModuleType):
    with pytest.raises(ProviderError) as raised:
        cross_encoder().scores("a", ["explode"], timeout_seconds=60)
    assert str(raised.value) == "The model 'any' failed with RuntimeError."


def test_a_real_cross_encoder_scores_each_passage_alone(tmp_path: Path):
    """The library's own: its weights are random, which no score here depends on."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, "why", "is", "my", "index", "not", "used", "granite", "rises"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=16)
    tokenizer.save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=1,
        initializer_range=2.0,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    reranker = cross_encoder(str(tmp_path), device="cpu", local_files_only=True, batch_size=2)
    passages = ["my index is not used", "granite", "rises " * 100, ""]

    scores = reranker.scores("why is my index not used", passages, timeout_seconds=60)

    alone = [
        reranker.scores("why is my index not used", [passage], timeout_seconds=60)[0]
        for passage in passages
    ]
    assert scores == pytest.approx(alone, abs=1e-5)
    assert len(set(scores)) == len(passages)


@pytest.mark.usefixtures("library")
def test_a_sentence_transformer_runs_in_a_process_of_its_own():
    provider = sentence_transformer(executor=OWN)
    here = sentence_transformer(executor=HERE)
    texts = ["one two", "one two three four five", "", "six"]

    found, expected = provider.embed_each(texts), here.embed_each(texts)

    provider.close()
    assert [str(one) for one in found] == [str(one) for one in expected]
    assert [getattr(one, "was_cut", None) for one in found] == [False, True, None, False]
    assert found[0].vector == pytest.approx(expected[0].vector)
    assert not isinstance(provider.executor, InProcess)


@pytest.mark.usefixtures("library")
def test_a_text_that_kills_the_process_is_an_outage_and_found_alone():
    provider = sentence_transformer(executor=OWN)
    provider.warm_up()

    for texts in (["fine", "kill"], ["kill"]):
        with pytest.raises(ProviderLost, match="'any' ended with status -9"):
            provider.embed_each(texts, ask_first=True)

    [fine] = provider.embed_each(["fine"], ask_first=True)
    assert isinstance(fine, Embedded)
    provider.close()


def sizes_of(library: ModuleType, texts: list[str], **options: object) -> list[int]:
    """Return how many tokens were computed at once, padding included."""
    sentence_transformer(**options).embed_documents(texts)
    return library.computed


def test_texts_are_computed_with_others_of_their_length_as_many_as_fit(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(provider_module.TOKENS_AT_ONCE, "cpu", 12)
    texts = ["a", "a b c d", "b", "a b c", "c", "d"]

    computed = sizes_of(library, texts)

    # With the first and the last token: two of 6 and 5, then four of 3 each.
    assert computed == [12, 12]


def test_fewer_texts_are_computed_at_once_where_they_do_not_fit(library: ModuleType):
    texts = [f"a b {number}" for number in range(30)]  # five tokens each, of which 64 fit

    computed = sizes_of(library, texts)

    assert max(computed) <= 64
    assert sum(computed) == 5 * 30
    assert len(computed) < 6


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_vector(library: ModuleType, monkeypatch: pytest.MonkeyPatch, side: str):
    monkeypatch.setattr(library.Tokenizer, "padding_side", side)
    texts = ["a", "a b c d", "a b"]

    together = sentence_transformer().embed_documents(texts)

    alone = [sentence_transformer().embed_documents([text])[0] for text in texts]
    assert together == pytest.approx(np.array(alone))


def test_a_text_that_no_memory_suffices_for_fails_alone(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(library, "ROOM", 4)

    fine, failed = sentence_transformer().embed_each(["a", "a b c"])

    assert isinstance(fine, Embedded)
    assert str(failed) == "The model 'any' failed with OutOfMemoryError."


@pytest.mark.usefixtures("library")
def test_too_long_texts_can_be_refused_instead_of_cut():
    provider = sentence_transformer(too_long="refuse")

    short, long = provider.embed_each(["one", "one two three four five"])

    assert isinstance(short, Embedded)
    assert isinstance(long, InputTooLong)
    assert str(long) == "The text has 7 tokens, any (provider 'tested') takes 6."


@pytest.mark.usefixtures("library")
def test_requests_are_as_large_as_the_device_likes_them_unless_an_option_says_how_large():
    provider, smaller = sentence_transformer(), sentence_transformer(batch_size=8)
    provider.warm_up()
    smaller.warm_up()

    assert (provider.texts_per_request, provider.max_tokens_per_batch) == (256, 16_384)
    assert (smaller.texts_per_request, smaller.max_tokens_per_batch) == (8, 16_384)


def test_threads_are_set_where_the_model_is_loaded(library: ModuleType):
    import torch

    sentence_transformer(threads=3).warm_up()
    sentence_transformer().warm_up()

    assert torch.threads == [3, cores()]


@pytest.mark.usefixtures("library")
def test_half_precision_is_another_space_and_an_executor_is_not():
    plain = sentence_transformer().declared_identity()

    assert sentence_transformer(dtype="bfloat16").declared_identity() != plain
    assert sentence_transformer(executor=OWN, threads=2).declared_identity() == plain


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "half"}, "dtype is 'half'. Set it to one of float32, float16, bfloat16."),
        ({"backend": "tflite"}, "backend is 'tflite'. Set it to one of torch, onnx, openvino."),
        ({"threads": 0}, "threads is 0. Set it to a whole number of one or more, or leave it out."),
        ({"backend": "onnx"}, 'It comes with pip install "pgembed-django[onnx]".'),
    ],
)
@pytest.mark.usefixtures("library")
def test_a_wrong_option_of_a_sentence_transformer_is_told(options: dict[str, Any], said: str):
    with pytest.raises(ImproperlyConfigured) as raised:
        sentence_transformer(**options)
    assert str(raised.value).endswith(said)


@pytest.mark.usefixtures("library")
def test_files_that_change_while_they_are_used_are_not_loaded_again(tmp_path: Path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    provider = sentence_transformer(str(tmp_path), executor=OWN)
    digest = provider.model_digest()
    provider.warm_up()
    weights.write_bytes(b"another")
    with pytest.raises(ProviderLost):
        provider.embed_each(["kill"])

    with pytest.raises(ProviderMisconfigured, match="have changed since this process began"):
        provider.embed_each(["one"])

    assert provider.model_digest() == digest
    provider.close()
