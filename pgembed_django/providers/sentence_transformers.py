"""Run any sentence-transformers model in this process."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured, ProviderUnavailable
from pgembed_django.providers.base import Options, Provider, Vectors

WEIGHTS: Final = {".safetensors", ".bin", ".onnx", ".pt"}

_loading: Final = fork_safe_lock()


class _Loaded(NamedTuple):
    """A loaded model. It computes one batch at a time: batches would share the device's memory."""

    model: Any
    computing: threading.RLock


class InProcess(Options):
    """A model of the library, given by name or path, loaded at first use, once per process."""

    kind = "SentenceTransformer"
    """Which class of the library loads it."""

    model: str

    def __init__(
        self,
        *,
        device: str | None = None,
        trust_remote_code: bool = False,
        local_files_only: bool = False,
        revision: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._revision = self.optional(self.name, "revision", revision)
        self._arguments = (
            self.kind,
            self.model,
            self.optional(self.name, "device", device),
            self.flag("trust_remote_code", trust_remote_code),
            self.flag("local_files_only", local_files_only),
            self._revision,
        )
        if importlib.util.find_spec("sentence_transformers") is None:
            raise ImproperlyConfigured(
                "The package sentence-transformers is not installed. "
                'It comes with pip install "pgembed-django[sentence-transformers]".'
            )

    def compute(self, method: str, texts: Sequence[Any], *, batch_size: int) -> Any:
        """Return what a method of the model answers for some texts, or pairs of them.

        Raises:
            ProviderError: it failed.
        """
        loaded = self._loaded()
        try:
            with loaded.computing:
                return getattr(loaded.model, method)(
                    list(texts),
                    batch_size=batch_size,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            # For instance, the device is out of memory, or the tokenizer rejects a text.
            # Not chained: the message may contain the text.
            raise ProviderError(f"{self} failed with {type(error).__name__}.") from None

    def _loaded(self) -> _Loaded:
        try:
            with _loading:
                return _load(*self._arguments)
        except (OSError, ValueError) as error:
            raise ProviderMisconfigured(
                f"sentence-transformers cannot load the model {self.model!r}: "
                f"{type(error).__name__}. Is the name or the path right?"
            ) from error


class SentenceTransformerProvider(InProcess, Provider):
    """A model that embeds.

    It would silently cut long texts, so they are cut first, with its own tokenizer.
    """

    @property
    def max_input_tokens(self) -> int | None:
        return super().max_input_tokens or getattr(self._loaded().model, "max_seq_length", None)

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        answer = self.compute("encode", texts, batch_size=self.batch_size)
        return np.asarray(answer, dtype=np.float32)

    def warm_up(self) -> None:
        # The first batch takes longer than others, too, and shows whether DIMENSIONS is right.
        self.answer([self.health_check_text])
        self.model_digest()

    def model_digest(self) -> str | None:
        """Return the digest of a local folder's weights, or else the revision in the options."""
        folder = Path(self.model)
        if not folder.is_dir():
            return self._revision
        files = sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS)
        try:
            states = [(path, path.stat()) for path in files]
            return _digest(tuple((p, state.st_size, state.st_mtime_ns) for p, state in states))
        except OSError as error:
            raise ProviderUnavailable(
                f"The weights in {self.model} cannot be read: {type(error).__name__}."
            ) from error

    def count_tokens(self, text: str) -> int | None:
        tokenizer = getattr(self._loaded().model, "tokenizer", None)
        return None if tokenizer is None else len(tokenizer.encode(text))

    def weigh(self, text: str) -> int:
        # Tokenizing twice would cost more than a batch of the wrong size.
        return len(text) // 4 + 1


@cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str | None:
    """Return the digest of the files' contents. It is computed once for each size and time."""
    if not files:
        return None
    whole = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as weights:
            whole.update(hashlib.file_digest(weights, "sha256").digest())
    return whole.hexdigest()


@cache
def _load(
    kind: str,
    model: str,
    device: str | None,
    trust_remote_code: bool,
    local_files_only: bool,
    revision: str | None,
) -> _Loaded:
    # Imported by name, so that type checking does not need the extra installed.
    library = importlib.import_module("sentence_transformers")
    loaded = getattr(library, kind)(
        model,
        device=device,
        trust_remote_code=trust_remote_code,
        local_files_only=local_files_only,
        revision=revision,
    )
    return _Loaded(loaded, computing=fork_safe_lock())
