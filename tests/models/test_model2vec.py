"""model2vec's own library, with a static model made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.providers.model2vec import TOKENS_AT_ONCE, Model2VecProvider

model2vec = pytest.importorskip("model2vec")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ("[UNK]", "a", "cat", "dog", "ran", "sat", "the")
WIDTH = 8
TEXTS = ["the cat sat", "a dog", "the dog ran the dog", "an unknown cat", "dog " * 700]


def write(folder: Path, *, seed: int = 1, is_quantized: bool = False) -> Path:
    """Write a model. Quantized: words share vectors, and have weights."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    chance = np.random.default_rng(seed)
    rows = 3 if is_quantized else len(WORDS)
    more = {
        "token_mapping": np.arange(len(WORDS)) % rows,
        "weights": chance.random(len(WORDS)).astype(np.float32),
    }
    model2vec.StaticModel(
        chance.standard_normal((rows, WIDTH)).astype(np.float32),
        tokenizer,
        **(more if is_quantized else {}),
    ).save_pretrained(folder)
    return folder


def provider(folder: Path | str, **options: object) -> Model2VecProvider:
    return Model2VecProvider(alias="static", model=str(folder), dimensions=WIDTH, **options)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_vectors_are_the_librarys_own(tmp_path: Path, is_quantized: bool) -> None:
    folder = write(tmp_path, is_quantized=is_quantized)
    own = model2vec.StaticModel.from_pretrained(folder).encode(TEXTS, max_length=None)

    np.testing.assert_allclose(provider(folder).embed_documents(TEXTS), unit(own), atol=1e-5)


def test_a_text_is_embedded_whole_however_long(tmp_path: Path) -> None:
    folder = write(tmp_path)
    text = "the cat sat " * 200 + "a dog ran " * TOKENS_AT_ONCE
    library = model2vec.StaticModel.from_pretrained(folder)
    whole, cut = unit(np.stack([library.encode(text, max_length=None), library.encode(text)]))

    [outcome] = provider(folder).embed_each([text])

    np.testing.assert_allclose(outcome.vector, whole, atol=1e-4)  # type: ignore[union-attr]
    assert not outcome.was_cut  # type: ignore[union-attr]
    assert abs(whole - cut).max() > 0.01
    assert provider(folder).count_tokens(text) == 3 * (200 + TOKENS_AT_ONCE)


def test_a_folder_with_other_vectors_is_another_space(tmp_path: Path) -> None:
    first = provider(write(tmp_path)).identity()
    assert provider(tmp_path).identity() == first
    assert provider(write(tmp_path, seed=2)).identity() != first


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProviderMisconfigured, match=f"cannot load the model '{tmp_path}'"):
        provider(tmp_path).warm_up()


@pytest.mark.parametrize("module", ["model2vec", "fastembed"])
def test_torch_is_not_imported(module: str) -> None:
    pytest.importorskip(module)
    code = f"import sys, pgembed_django.providers.{module}, {module}; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "False\n"
