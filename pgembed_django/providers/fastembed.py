"""Run any ONNX model with fastembed, without a server and without torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

import numpy as np

from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.executors import Answer, Facts, Model, OwnProcess, Place, Recipe
from pgembed_django.providers.local import (
    LocalProvider,
    cores,
    folder_digest,
    require_digest,
    require_package,
)

POOLINGS: Final = ("mean", "cls", "last_token", "disabled")
"""How the vectors of a text's tokens become one. disabled: the model itself does that."""

FILES: Final = ("onnx/model.onnx", "model.onnx")
"""What a folder may call its model, unless an option names it."""

TOKENS_AT_ONCE: Final = 1_536
"""How many tokens, padding included, are computed at once. With more, a processor is slower."""

REQUEST: Final = (256, 16_384)
"""How many texts, and how many tokens, a request has at most. The longer, the less padding."""


class FastEmbedProvider(LocalProvider):
    """A model in a folder, or one of the names that the library knows, computed on the CPU."""

    # onnxruntime lets go of Python's lock. But its threads do not survive a fork of the web server,
    # and a text that makes it crash would take the worker along.
    executor_class = OwnProcess
    space_options = (*LocalProvider.space_options, "pooling", "file_name")

    def __init__(
        self,
        *,
        pooling: Literal["mean", "cls", "last_token", "disabled"] | None = None,
        file_name: str | None = None,
        threads: int | None = None,
        local_files_only: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if pooling not in (None, *POOLINGS):
            raise self.wrong("pooling", pooling, f"Set it to one of {', '.join(POOLINGS)}")
        if pooling is None and Path(self.model).is_dir():
            remedy = f"Set it to what the model was trained with, one of {', '.join(POOLINGS)}"
            raise self.wrong("pooling", pooling, remedy)
        self.pooling = pooling
        self.file_name = self.optional(self.name, "file_name", file_name)
        self._threads = self.optional(self.whole, "threads", threads)
        self._local_files_only = self.flag("local_files_only", local_files_only)
        require_package("fastembed", "fastembed", extra="fastembed")

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe(
            load=f"{__name__}.load",
            model=self.model,
            arguments={
                "model": self.model,
                "pooling": self.pooling,
                "file_name": self.file_name,
                "threads": self._threads,
                "local_files_only": self._local_files_only,
                "digest": folder_digest(self.model),
            },
        )


# In the process that runs the model


def load(
    *,
    model: str,
    pooling: str | None,
    file_name: str | None,
    threads: int | None,
    local_files_only: bool,
    digest: str | None,
    place: Place,
) -> Model:
    """Load a model.

    Raises:
        ProviderMisconfigured: it cannot be loaded.
    """
    # Imported by name, so that type checking does not need the extra installed.
    library = importlib.import_module("fastembed")
    threads = threads or cores() // place.count or 1
    if Path(model).is_dir():
        require_digest(model, digest)
        name = _registered(library, model, str(pooling), _file(model, file_name))
        given = {"specific_model_path": model}
    elif pooling or file_name:
        raise ProviderMisconfigured(
            f"{model!r} is no folder here, and pooling and file_name are for those. Is the path "
            "right? A model that fastembed knows by its name has its own."
        )
    else:
        name, given = model, {}
    try:
        loaded = library.TextEmbedding(
            name, threads=threads, cuda=False, local_files_only=local_files_only, **given
        )
    except (OSError, ValueError) as error:
        raise ProviderMisconfigured(
            f"fastembed cannot load the model {model!r}: {type(error).__name__}: {error}"
        ) from error
    return _Embedding(loaded, threads)


def _file(model: str, file_name: str | None) -> str:
    """Return the path of the model inside its folder."""
    for one in (file_name,) if file_name else FILES:
        if (Path(model) / one).is_file():
            return one
    found = sorted(path.relative_to(model).as_posix() for path in Path(model).rglob("*.onnx"))
    raise ProviderMisconfigured(
        f"{model} has no file {file_name or ' or '.join(FILES)}. "
        + (f"Set file_name to one of {', '.join(found)}." if found else "It has no ONNX model.")
    )


def _registered(library: Any, model: str, pooling: str, file_name: str) -> str:
    """Make a folder known to the library. Returns the name that it has there."""
    described = importlib.import_module("fastembed.common.model_description")
    name = f"{model} {uuid4()}"  # the library takes each name once per process
    library.TextEmbedding.add_custom_model(
        model=name,
        pooling=described.PoolingType[pooling.upper()],
        normalization=False,  # that is done with every provider's vectors
        sources=described.ModelSource(hf=model),
        dim=0,  # for people
        model_file=file_name,
    )
    return name


class _Prepared(NamedTuple):
    texts: Sequence[str]
    lengths: Sequence[int]
    order: Sequence[int]
    """The rows of texts that fit the context, the longest first."""
    too_long: Sequence[int]


class _Embedding(Model):
    """Computes texts of similar lengths together."""

    def __init__(self, loaded: Any, threads: int) -> None:
        self._model = loaded
        tokenizer = loaded.model.tokenizer
        truncation = tokenizer.truncation
        # A copy, since the library's own cuts texts without a word.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.facts = Facts(
            threads=threads,
            max_tokens=truncation and truncation["max_length"],
            batch_size=REQUEST[0],
            batch_tokens=REQUEST[1],
        )
        # A pooling that does not suit the model fails here, with the library's message.
        self._width = len(self._embed(["hello"])[0])

    def prepare(self, texts: Sequence[str]) -> _Prepared:
        lengths = self.count(texts)
        most = self.facts.max_tokens or max(lengths, default=0)
        by_length = np.argsort(lengths)[::-1].tolist()
        return _Prepared(
            texts,
            lengths,
            order=[row for row in by_length if lengths[row] <= most],
            too_long=[row for row, length in enumerate(lengths) if length > most],
        )

    def compute(self, prepared: _Prepared) -> Answer:
        values = np.zeros((len(prepared.texts), self._width), dtype=np.float32)
        order, start = prepared.order, 0
        while start < len(order):
            longest = max(1, prepared.lengths[order[start]])
            rows = order[start : start + max(1, TOKENS_AT_ONCE // longest)]
            values[rows] = self._embed([prepared.texts[row] for row in rows])
            start += len(rows)
        return Answer(values, prepared.too_long)

    def count(self, texts: Sequence[str]) -> list[int]:
        encoded = self._tokenizer.encode_batch([*texts])
        return [len(one.ids) for one in encoded]

    def _embed(self, texts: list[str]) -> list[Any]:
        return [*self._model.embed(texts, batch_size=len(texts))]
