"""Run any static model of model2vec, without a server and without torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.executors import Answer, Facts, Model, Place, Recipe
from pgembed_django.providers.local import (
    LocalProvider,
    folder_digest,
    require_digest,
    require_package,
)

TOKENS_AT_ONCE: Final = 8_192
"""How many token vectors to hold in memory at once: a text may be as long as it likes."""

REQUEST: Final = (256, 262_144)
"""How many texts, and how many tokens, a request has at most."""


class Model2VecProvider(LocalProvider):
    """The mean of the vectors of a text's tokens, given by a folder or a name.

    It runs in this process: a text takes microseconds, less than to send it to another one.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        require_package("model2vec", "model2vec", extra="model2vec")

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe(
            load=f"{__name__}.load",
            model=self.model,
            arguments={"model": self.model, "digest": folder_digest(self.model)},
        )


def load(*, model: str, digest: str | None, place: Place) -> Model:
    """Load a model of the library.

    Raises:
        ProviderMisconfigured: it cannot be loaded.
    """
    if Path(model).is_dir():
        require_digest(model, digest)
    # Imported by name, so that type checking does not need the extra installed.
    library = importlib.import_module("model2vec")
    try:
        loaded = library.StaticModel.from_pretrained(model, force_download=False)
    except (OSError, ValueError) as error:
        raise ProviderMisconfigured(
            f"model2vec cannot load the model {model!r}: {type(error).__name__}. "
            "Is the name or the path right?"
        ) from error
    return _Static(loaded)


class _Static(Model):
    """Averages rows of a table. It takes texts of any length."""

    facts = Facts(batch_size=REQUEST[0], batch_tokens=REQUEST[1])

    def __init__(self, loaded: Any) -> None:
        self._model = loaded
        # As the library saves it, it would drop what comes after 512 tokens.
        loaded.tokenizer.no_truncation()

    def prepare(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        tokens: Sequence[Sequence[int]] = self._model.tokenize([*texts])
        return tokens

    def compute(self, prepared: Sequence[Sequence[int]]) -> Answer:
        # Not the library's encode(), which holds the vectors of all tokens of texts of one length.
        model = self._model
        values = np.zeros((len(prepared), model.dim), dtype=np.float32)
        for row, tokens in enumerate(prepared):
            for start in range(0, len(tokens), TOKENS_AT_ONCE):
                piece = tokens[start : start + TOKENS_AT_ONCE]
                rows = piece if model.token_mapping is None else model.token_mapping[piece]
                vectors = model.embedding[rows]
                if model.weights is not None:
                    vectors = vectors * model.weights[piece][:, None]
                values[row] += vectors.sum(axis=0, dtype=np.float32)
            values[row] /= max(1, len(tokens))
        return Answer(values)

    def count(self, texts: Sequence[str]) -> Sequence[int | None]:
        return [len(tokens) for tokens in self.prepare(texts)]
