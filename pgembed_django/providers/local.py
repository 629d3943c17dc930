"""Providers of models that no server serves: an executor runs them, here or elsewhere."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.core.adapting import AdaptiveSize
from pgembed_django.core.options import Options
from pgembed_django.exceptions import (
    InputTooLong,
    ProviderMisconfigured,
    ProviderUnavailable,
    did_you_mean,
)
from pgembed_django.executors import Answer, Executor, Facts, InProcess, Recipe, Status, shared
from pgembed_django.providers import declared
from pgembed_django.providers.answers import Fault, Vectors
from pgembed_django.providers.base import Provider
from pgembed_django.providers.batching import HOLD_SECONDS

CONTENTS: Final = {".safetensors", ".bin", ".onnx", ".onnx_data", ".data", ".pt", ".xml"} | {
    ".json",
    ".model",
    ".txt",
}
"""The files of a model's folder that its vectors depend on: weights, tokenizer and pooling."""


class LocalModel(Options):
    """What has a model run by an executor: a provider, or a reranker. A subclass has a recipe."""

    executor_class: ClassVar[type[Executor]] = InProcess
    """What runs the model unless the setting has an EXECUTOR."""

    model: str

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._executor_kind = self.executor_class
        self._executor_options: Mapping[str, Any] = {}
        self._executor: Executor | None = None

    @cached_property
    @abstractmethod
    def recipe(self) -> Recipe:
        """How to load the model. It stays the same for as long as this provider is used.

        Raises:
            ProviderUnavailable: its folder cannot be read.
        """

    def run_by(self, config: Mapping[str, Any]) -> None:
        """Have the model run as an EXECUTOR says.

        Raises:
            ImproperlyConfigured: the setting is wrong. The message says how, and what to do.
        """
        if not isinstance(config, Mapping) or "BACKEND" not in config:
            raise ImproperlyConfigured(
                f"EXECUTOR is {config!r}. Set it to a dict with a BACKEND, or leave it out."
            )
        try:
            kind: type[Executor] = declared.class_of(config["BACKEND"], Executor)  # type: ignore[type-abstract]
            options = _executor_options(kind, config)
            # Nothing is started yet: this checks the options.
            declared.construct(kind, recipe=Recipe(load="", model=self.model), **options).close()
        except ImproperlyConfigured as error:
            raise ImproperlyConfigured(f"EXECUTOR: {error}") from error
        self._executor_kind, self._executor_options = kind, options

    @property
    def executor(self) -> Executor:
        """What runs the model. Providers of the same model share it."""
        if self._executor is None:
            self._executor = shared(self._executor_kind, self.recipe, self._executor_options)
        return self._executor

    def executor_status(self) -> Status | None:
        """Return what the executor is at, or None if it was not used yet."""
        return None if self._executor is None else self._executor.status()

    def close(self) -> None:
        """Let go of the executor, which ends unless another provider has it."""
        self._executor = None


class LocalProvider(LocalModel, Provider):
    """A model that embeds, run by an executor. It takes batches of a size that suits its device.

    Long texts are cut with the model's own tokenizer.
    """

    tells_too_long = True

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        max_tokens_per_batch: int | None = None,
        **common: Any,
    ) -> None:
        sizes = {} if batch_size is None else {"batch_size": batch_size}
        super().__init__(max_tokens_per_batch=max_tokens_per_batch, **sizes, **common)
        self._chooses_size = batch_size is None
        self._chooses_tokens = max_tokens_per_batch is None
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """What the model tells about itself. Loads it. Raises as ``Executor.start``."""
        if self._facts is None:
            facts = self.executor.start()
            if self._chooses_size:
                self.batch_size = facts.batch_size
                self.size = AdaptiveSize(
                    facts.batch_size,
                    most=facts.batch_size,
                    hold_seconds=HOLD_SECONDS,
                    clock=self.clock,
                )
            if self._chooses_tokens:
                self.max_tokens_per_batch = facts.batch_tokens
            self._facts = facts
        return self._facts

    @property
    def start_seconds(self) -> float:
        return 0.0 if self._facts is None else self._facts.start_seconds

    def runs_on(self) -> str:
        if (facts := self._facts) is None:
            return ""
        threads = f", {facts.threads} threads" if facts.threads else ""
        hardware = f" ({facts.hardware})" if facts.hardware else ""
        where = self._executor_kind.__name__
        return f"{facts.device}{hardware}, {facts.dtype}{threads}, {where}"

    @property
    def concurrency(self) -> int | None:  # type: ignore[override]
        return None if self._executor is None else self._executor.slots

    @property
    def max_input_tokens(self) -> int | None:
        return super().max_input_tokens or self.facts.max_tokens

    def embed_checked(self, texts: Sequence[str]) -> tuple[Vectors, list[Fault]]:
        found = self.executor.compute(texts)
        values = found.values
        if len(found.too_long) == len(texts):  # nothing tells how wide they would be
            values = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        vectors, faults = self.check(values, count=len(texts))
        for index in found.too_long:
            faults[index] = InputTooLong(f"The text has more tokens than {self} takes.")
        return vectors, faults

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        return self._fitting(self.executor.compute(texts))

    def embed_query_batch(self, texts: Sequence[str], *, timeout_seconds: float | None) -> Vectors:
        return self._fitting(
            self.executor.compute(texts, is_query=True, timeout_seconds=timeout_seconds)
        )

    def count_tokens(self, text: str) -> int | None:
        return self.executor.count([text])[0]

    def weigh(self, text: str) -> int:
        # Tokenizing twice would cost more than a batch of the wrong size.
        return len(text) // 4 + 1

    def warm_up(self) -> None:
        # The first batch takes longer than others, too, and shows whether DIMENSIONS is right.
        self.answer([self.health_check_text])
        self.model_digest()
        self.facts  # noqa: B018 - the size of its batches

    def model_digest(self) -> str | None:
        """Return the digest of a local folder's contents, as it was or will be loaded from."""
        digest: str | None = self.recipe.arguments.get("digest")
        return digest

    def _fitting(self, found: Answer) -> Vectors:
        if found.too_long:
            raise InputTooLong(f"The text has more tokens than {self} takes.")
        return np.asarray(found.values, dtype=np.float32)

    def close(self) -> None:
        super().close()
        self._facts = None


def _executor_options(kind: type[Executor], config: Mapping[str, Any]) -> dict[str, Any]:
    known = sorted(name.upper() for name in kind.known_options())
    given = {key: value for key, value in config.items() if key != "BACKEND"}
    for key in given:
        if key not in known:
            raise ImproperlyConfigured(
                f"{kind.__name__} has no option {key!r}. {did_you_mean(key, known)}"
                f"Its options are: {', '.join(known) or 'none'}."
            )
    return {key.lower(): value for key, value in given.items()}


def require_package(module: str, package: str, *, extra: str) -> None:
    """Raise ``ImproperlyConfigured`` if a package, which has this module, is not installed."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package around it
        found = None
    if found is None:
        raise ImproperlyConfigured(
            f"The package {package} is not installed. "
            f'It comes with pip install "pgembed-django[{extra}]".'
        )


def cores() -> int:
    """Return how many cores this process may use, rounded up: a container may have fewer."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count or 1, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such limit
        return count or 1


def folder_digest(model: str) -> str | None:
    """Return the digest of what is in a model's folder. None: the name is no folder's.

    Raises:
        ProviderUnavailable: it cannot be read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return None
    try:
        files = sorted(path for path in folder.rglob("*") if path.suffix in CONTENTS)
        states = [(path, path.stat()) for path in files]
        return _digest(tuple((p, state.st_size, state.st_mtime_ns) for p, state in states))
    except OSError as error:
        raise ProviderUnavailable(
            f"The files in {model} cannot be read: {type(error).__name__}."
        ) from error


def require_digest(model: str, digest: str | None) -> None:
    """Refuse to load a folder whose contents have changed since a recipe was made for it.

    Raises:
        ProviderMisconfigured: they have.
    """
    if digest is not None and folder_digest(model) != digest:
        raise ProviderMisconfigured(
            f"The files in {model} have changed since this process began to use them. Restart it: "
            "then they get a space of their own."
        )


@cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str | None:
    """Return the digest of the files' contents. It is computed once for each size and time."""
    if not files:
        return None
    whole = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as content:
            whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()
