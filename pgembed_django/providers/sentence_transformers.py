"""Run any sentence-transformers model, without a server."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.executors import Answer, Facts, Model, OwnProcess, Place, Recipe
from pgembed_django.providers.local import (
    LocalModel,
    LocalProvider,
    cores,
    folder_digest,
    require_digest,
    require_package,
)

DTYPES: Final = ("float32", "float16", "bfloat16")
BACKENDS: Final = {
    "torch": ("sentence_transformers", "sentence-transformers"),
    "onnx": ("optimum.onnxruntime", "optimum-onnx"),
    "openvino": ("optimum.intel", "optimum-intel"),
}
"""What may run a model, with the module and the package that this needs."""

FILES: Final = {"onnx": "*.onnx", "openvino": "openvino*.xml"}
"""Which file a folder must have for a backend."""

TOKENS_AT_ONCE: Final = {"cpu": 1_536}
DEVICE_TOKENS: Final = 65_536
"""How many tokens, padding included, a device computes at once. Fewer where they do not fit."""

REQUESTS: Final = {"cpu": (256, 16_384)}
DEVICE_REQUEST: Final = (1_024, 262_144)
"""How many texts, and how many tokens, a request has at most. The longer, the less padding."""


class SentenceTransformersModel(LocalModel):
    """A model of the library, given by name or path."""

    kind = "SentenceTransformer"
    """Which class of the library loads it."""

    def __init__(
        self,
        *,
        device: str | None = None,
        dtype: Literal["float32", "float16", "bfloat16"] | None = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch",
        file_name: str | None = None,
        threads: int | None = None,
        trust_remote_code: bool = False,
        local_files_only: bool = False,
        revision: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if dtype is not None and dtype not in DTYPES:
            raise self.wrong("dtype", dtype, f"Set it to one of {', '.join(DTYPES)}")
        if backend not in BACKENDS:
            raise self.wrong("backend", backend, f"Set it to one of {', '.join(BACKENDS)}")
        if backend == "torch":
            if file_name is not None:
                remedy = (
                    "Only the backends onnx and openvino have files to choose from. Leave it out"
                )
                raise self.wrong("file_name", file_name, remedy)
        else:
            if dtype is not None:
                remedy = f"The backend {backend} computes as its file says: name it with file_name"
                raise self.wrong("dtype", dtype, remedy)
            if device not in (None, "cpu"):
                remedy = f'The backend {backend} is for the CPU. Set backend to "torch"'
                raise self.wrong("device", device, remedy)
        self.dtype = dtype
        self.file_name = self.optional(self.name, "file_name", file_name)
        self._revision = self.optional(self.name, "revision", revision)
        self._arguments = {
            "kind": self.kind,
            "model": self.model,
            "device": self.optional(self.name, "device", device),
            "dtype": dtype,
            "backend": backend,
            "file_name": self.file_name,
            "threads": self.optional(self.whole, "threads", threads),
            "trust_remote_code": self.flag("trust_remote_code", trust_remote_code),
            "local_files_only": self.flag("local_files_only", local_files_only),
            "revision": self._revision,
        }
        extra = "sentence-transformers" if backend == "torch" else backend
        for module, package in (BACKENDS["torch"], BACKENDS[backend]):
            require_package(module, package, extra=extra)

    @cached_property
    def recipe(self) -> Recipe:
        digest = folder_digest(self.model)
        return Recipe(
            load=f"{__name__}.load",
            model=self.model,
            arguments={**self._arguments, "digest": digest or self._revision},
        )


class SentenceTransformerProvider(SentenceTransformersModel, LocalProvider):
    """A model that embeds, in a process of its own unless EXECUTOR says otherwise."""

    executor_class = OwnProcess
    space_options = (*LocalProvider.space_options, "dtype", "file_name")


# In the process that runs the model


def load(
    *,
    kind: str,
    model: str,
    device: str | None,
    dtype: str | None,
    backend: str,
    file_name: str | None,
    threads: int | None,
    trust_remote_code: bool,
    local_files_only: bool,
    revision: str | None,
    digest: str | None,
    place: Place,
) -> Model:
    """Load a model of the library.

    Raises:
        ProviderMisconfigured: it cannot be loaded.
    """
    if Path(model).is_dir():
        require_digest(model, digest)
        _require_file(model, backend)
    # Imported by name, so that type checking does not need the extra installed.
    library = importlib.import_module("sentence_transformers")
    threads = threads or cores() // place.count or 1
    given: dict[str, Any] = {"dtype": dtype} if dtype else {}
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    if backend == "torch":
        if device is None and torch.cuda.is_available():
            device = f"cuda:{place.index % torch.cuda.device_count()}"
    else:
        device = "cpu"
        given |= _for_backend(backend, threads)
    if file_name:
        # Or else, where that file does not exist, the weights would be converted instead.
        given |= {"file_name": file_name, "export": False}
    what = f"the file {file_name!r} of {model!r}" if file_name else f"the model {model!r}"
    try:
        loaded = getattr(library, kind)(
            model,
            device=device,
            backend=backend,
            model_kwargs=given,
            trust_remote_code=trust_remote_code,
            local_files_only=local_files_only,
            revision=revision,
        )
    except (OSError, ValueError) as error:
        raise ProviderMisconfigured(
            f"sentence-transformers cannot load {what}: {type(error).__name__}. Is the name or the "
            "path right?"
        ) from error
    return _Embedding(loaded, threads) if kind == "SentenceTransformer" else _Scoring(loaded)


def _require_file(model: str, backend: str) -> None:
    """Refuse a folder that a backend would convert at each start, for half a minute."""
    file = FILES.get(backend)
    if file and not any(Path(model).rglob(file)):
        raise ProviderMisconfigured(
            f"{model} has no file {file}. To make one, run once: "
            f"SentenceTransformer({model!r}, backend={backend!r}).save_pretrained({model!r})"
        )


def _for_backend(backend: str, threads: int) -> dict[str, Any]:
    """Return what the library hands on to onnxruntime or OpenVINO."""
    if backend == "onnx":
        options = importlib.import_module("onnxruntime").SessionOptions()
        options.intra_op_num_threads = threads
        return {"provider": "CPUExecutionProvider", "session_options": options}
    # Its own choice depends on the processor and the model's size: bfloat16, and weights of 8 bits.
    # Then vectors of two machines would differ.
    exact = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    return {"device": "CPU", "load_in_8bit": False, "ov_config": exact}


class _Prepared(NamedTuple):
    """Tokenized texts, as tensors with a row per text, padded to the longest one."""

    texts: int
    features: dict[str, Any]
    lengths: Any
    order: Sequence[int]
    """The rows of texts that fit the context, the longest first."""
    too_long: Sequence[int]


class _Computed(NamedTuple):
    prepared: _Prepared
    vectors: Any
    """Shape: ``(len(prepared.order), dimensions)``. On its way from the device."""
    event: Any
    """When it has arrived. None: it has."""


class _Embedding(Model):
    """Computes texts of similar lengths together, as many as the device has room for."""

    def __init__(self, loaded: Any, threads: int) -> None:
        self._torch = torch = importlib.import_module("torch")
        self._model = loaded.eval()
        self._device = loaded.device
        kind = loaded.device.type
        self._room = TOKENS_AT_ONCE.get(kind, DEVICE_TOKENS)
        self._prompt = loaded.prompts.get(loaded.default_prompt_name) or None
        self._has_rows = _has_rows(dict(loaded.preprocess(["hello"], prompt=self._prompt)))
        batch_size, batch_tokens = REQUESTS.get(kind, DEVICE_REQUEST)
        weights = next(iter(loaded.parameters()), None)
        is_card = kind == "cuda"
        self.facts = Facts(
            device=str(loaded.device),
            hardware=torch.cuda.get_device_name(loaded.device) if is_card else "",
            devices=torch.cuda.device_count() if is_card else 1,
            dtype="float32" if weights is None else str(weights.dtype).removeprefix("torch."),
            threads=None if is_card else threads,
            max_tokens=_finite(loaded.max_seq_length),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
        )

    def prepare(self, texts: Sequence[str]) -> _Prepared | list[str]:
        if not self._has_rows:
            return [*texts]
        features = dict(self._model.preprocess([*texts], prompt=self._prompt))
        mask = features["attention_mask"]
        lengths = mask.sum(dim=1).tolist()
        too_long = self._too_long(texts, lengths)
        order = [row for row in np.argsort(lengths)[::-1].tolist() if row not in too_long]
        return _Prepared(len(texts), features, lengths, order, sorted(too_long))

    def compute(self, prepared: _Prepared | list[str]) -> _Computed | Answer:
        if isinstance(prepared, list):
            return self._encoded(prepared)
        torch, order = self._torch, prepared.order
        made: list[Any] = []
        start = 0
        with torch.inference_mode():
            while start < len(order):
                longest = prepared.lengths[order[start]]
                rows = order[start : start + max(1, self._room // longest)]
                try:
                    made.append(self._forward(prepared.features, rows, longest))
                except torch.OutOfMemoryError:
                    if len(rows) == 1:
                        raise
                    torch.cuda.empty_cache()
                    self._room = max(longest, len(rows) * longest // 2)
                    continue
                start += len(rows)
            if not made:
                return _Computed(prepared, None, None)
            vectors = torch.cat(made).float()
            if vectors.device.type != "cuda":
                return _Computed(prepared, vectors.cpu(), None)
            # Copied while the next call is computed: waiting here would keep the device idle.
            arriving = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
            arriving.copy_(vectors, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            return _Computed(prepared, arriving, event)

    def finish(self, computed: _Computed | Answer) -> Answer:
        if isinstance(computed, Answer):
            return computed
        prepared, vectors, event = computed
        if event is not None:
            event.synchronize()
        found = np.zeros((0, 0)) if vectors is None else vectors.numpy()
        values = np.zeros((prepared.texts, found.shape[1]), dtype=np.float32)
        values[prepared.order] = found
        return Answer(values, prepared.too_long)

    def count(self, texts: Sequence[str]) -> Sequence[int | None]:
        tokenizer = self._model.tokenizer
        if not (callable(tokenizer) and texts):
            return [None] * len(texts)
        prompted = [(self._prompt or "") + text for text in texts]
        encoded = tokenizer(prompted, truncation=False, padding=False, verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _encoded(self, texts: list[str]) -> Answer:
        """Have the library itself compute texts whose tokens are not in rows."""
        most = self.facts.max_tokens
        too_long = [
            row for row, count in enumerate(self.count(texts)) if most and (count or 0) > most
        ]
        vectors = self._model.encode(
            texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
        )
        return Answer(np.asarray(vectors, dtype=np.float32), too_long)

    def is_broken_by(self, error: BaseException) -> bool:
        # After such an error the library raises another one for each call.
        return "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError"

    def _too_long(self, texts: Sequence[str], lengths: Sequence[int]) -> set[int]:
        """Return which texts the tokenizer has cut."""
        most = self.facts.max_tokens
        full = [row for row, length in enumerate(lengths) if most and length >= most]
        counts = self.count([texts[row] for row in full])
        return {
            row for row, count in zip(full, counts, strict=True) if count and count > (most or 0)
        }

    def _forward(self, features: dict[str, Any], rows: Sequence[int], longest: int) -> Any:
        """Return the vectors of some rows, on the device."""
        padded = features["attention_mask"].shape
        is_left = self._model.tokenizer.padding_side == "left"
        columns = slice(-longest, None) if is_left else slice(longest)
        some = {
            name: value[rows][:, columns].to(self._device, non_blocking=True)
            if hasattr(value, "shape") and value.shape[:2] == padded
            else value
            for name, value in features.items()
        }
        return self._model(some)["sentence_embedding"]


def _has_rows(features: dict[str, Any]) -> bool:
    """Return whether a tokenizer's output has a row per text. That of static models has not."""
    mask = features.get("attention_mask")
    return mask is not None and len(mask.shape) == 2 and len(mask) == 1


def _finite(tokens: float | None) -> int | None:
    """Return the length of a context. A static model has none."""
    return None if tokens is None or tokens == math.inf else int(tokens)


class _Scoring(Model):
    """Scores pairs of texts."""

    def __init__(self, loaded: Any) -> None:
        self._model = loaded

    def compute(self, prepared: Sequence[Any]) -> Answer:
        scores = self._model.predict(
            [*prepared],
            batch_size=len(prepared),
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return Answer(scores)
