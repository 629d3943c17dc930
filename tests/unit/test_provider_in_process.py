"""What needs no server: WordLlama for real, sentence-transformers for real where it is installed,
and else stood in for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ProviderError, ProviderMisconfigured
from pgembed_django.providers import sentence_transformers as module
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.sentence_transformers import SentenceTransformerProvider
from pgembed_django.providers.wordllama import WordLlamaProvider
from pgembed_django.rerankers.cross_encoder import CrossEncoderReranker

STAND_IN = '''
"""Stands in for the library: it needs torch."""

import numpy as np

loaded = []


class Tokenizer:
    def encode(self, text):
        return [0, *text.split(), 1]


class SentenceTransformer:
    max_seq_length = 6

    def __init__(self, name, **arguments):
        if name == "nowhere":
            raise OSError("no such model")
        loaded.append((name, arguments))
        self.tokenizer = Tokenizer()

    def encode(self, texts, *, batch_size, show_progress_bar, convert_to_numpy):
        if "explode" in texts:
            raise RuntimeError("CUDA out of memory: explode")
        return np.array([[len(text), 1.0] for text in texts])


class CrossEncoder:
    def __init__(self, name, **arguments):
        loaded.append((name, arguments))

    def predict(self, pairs, *, batch_size, show_progress_bar, convert_to_numpy):
        if any("explode" in passage for _, passage in pairs):
            raise RuntimeError("CUDA out of memory: explode")
        return np.array([passage.count(query) for query, passage in pairs], dtype=np.float32)
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "sentence_transformers.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    module._load.cache_clear()
    yield __import__("sentence_transformers")
    module._load.cache_clear()
    sys.modules.pop("sentence_transformers", None)


def wordllama(dimensions: int = 256, **options: object) -> WordLlamaProvider:
    return WordLlamaProvider(alias="tested", model="l2_supercat", dimensions=dimensions, **options)


def sentence_transformer(model: str = "any", **options: object) -> SentenceTransformerProvider:
    return SentenceTransformerProvider(alias="tested", model=model, dimensions=2, **options)


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
    first = sentence_transformer(device="cpu")
    assert library.loaded == []

    first.embed_query("one")
    sentence_transformer(device="cpu").embed_query("two")

    [(name, arguments)] = library.loaded
    assert name == "any"
    assert arguments["device"] == "cpu"
    assert arguments["trust_remote_code"] is False


@pytest.mark.usefixtures("library")
def test_dimensions_that_a_sentence_transformer_lacks_are_told_when_it_is_loaded():
    provider = SentenceTransformerProvider(
        alias="tested", model="any", dimensions=3, truncate_dimensions=True
    )

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
    assert str(failed) == "any (provider 'tested') failed with RuntimeError."


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
    given = {"trust_remote_code": False, "local_files_only": False}
    assert library.loaded == [("any", {"device": "cpu", "revision": "r1", **given})]


def test_a_cross_encoder_is_loaded_before_the_first_search(library: ModuleType):
    cross_encoder().warm_up()

    assert len(library.loaded) == 1


def test_a_cross_encoder_that_fails_quotes_no_text(library: ModuleType):
    with pytest.raises(ProviderError) as raised:
        cross_encoder().scores("a", ["explode"], timeout_seconds=60)
    assert str(raised.value) == "any (reranker 'tested') failed with RuntimeError."


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
