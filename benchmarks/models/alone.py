"""A model without a worker: ``encode``, our batches of other sizes, queries beside a backfill."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from benchmarks.models.stand_in import StandInProvider
from benchmarks.models.texts import texts
from pgembed_django import providers
from pgembed_django.executors import Executor, InProcess, OwnProcess, Place, Recipe
from pgembed_django.providers.local import LocalProvider

Config = Mapping[str, Any]
"""An entry of PGEMBED_PROVIDERS."""

WARM = 32
"""How many texts are embedded before the time is taken."""

EXECUTORS: Mapping[str, type[Executor]] = {
    "in process": InProcess,
    "in a process of its own": OwnProcess,
}
QUERY = "which worker claims what has changed"


def encode(config: Config, *, rows: int, batches: Sequence[int]) -> dict[str, Any]:
    """Return the texts a second of ``encode`` with batches of these sizes, and the device."""
    provider = _provider(config)
    encode: Callable[[list[str], int], object]
    if isinstance(provider, StandInProvider):
        model = provider.recipe.loaded(Place())
        hardware = model.facts.hardware

        def encode(some: list[str], batch: int) -> object:
            parts = [some[start : start + batch] for start in range(0, len(some), batch)]
            return [model.finish(model.compute(model.prepare(part))) for part in parts]

    else:
        torch = import_module("torch")
        options = config["OPTIONS"]
        backend = options.get("backend", "torch")
        given = {"dtype": options["dtype"]} if "dtype" in options else {}
        if backend == "openvino":  # its own choice may be bfloat16, which ours is not
            given["ov_config"] = {"INFERENCE_PRECISION_HINT": "f32"}
        loaded = import_module("sentence_transformers").SentenceTransformer(
            config["MODEL"], backend=backend, model_kwargs=given
        )
        is_card = loaded.device.type == "cuda"
        hardware = torch.cuda.get_device_name(loaded.device) if is_card else ""
        hardware = hardware or f"CPU, {torch.get_num_threads()} threads"

        def encode(some: list[str], batch: int) -> object:
            return loaded.encode(some, batch_size=batch, show_progress_bar=False)

    some = [*texts(rows)]
    rates = {}
    for batch in batches:
        encode(some[: max(WARM, batch)], batch)
        began = time.perf_counter()
        encode(some, batch)
        rates[batch] = rows / (time.perf_counter() - began)
    return {"hardware": hardware, "rates": rates}


def compute(config: Config, *, rows: int, tokens: int) -> float:
    """Return the texts a second of our model where a processor computes so many tokens at once."""
    provider = _provider(config)
    import_module(type(provider).__module__).TOKENS_AT_ONCE["cpu"] = tokens
    model = provider.recipe.loaded(Place())
    size, some = model.facts.batch_size, [*texts(rows)]

    def embed(part: Sequence[str]) -> None:
        model.finish(model.compute(model.prepare(part)))

    embed(some[:size])
    began = time.perf_counter()
    for start in range(0, rows, size):
        embed(some[start : start + size])
    return rows / (time.perf_counter() - began)


def convert(config: Config, *, folder: str) -> str:
    """Write the model as its backend wants it. Return the path."""
    kind = import_module("sentence_transformers").SentenceTransformer
    kind(config["MODEL"], backend=config["OPTIONS"]["backend"]).save_pretrained(folder)
    return folder


def ask(config: Config, *, queries: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of a query, by what runs its model and what else is busy."""
    recipe = _provider(config).recipe
    return {name: _asked(recipe, kind, queries) for name, kind in EXECUTORS.items()}


def _asked(recipe: Recipe, kind: type[Executor], queries: int) -> dict[str, float]:
    asked, another = kind(recipe), OwnProcess(recipe)
    found = {}
    for name, around in (
        ("idle, ms", nullcontext()),
        ("it has a backfill, ms", _busy(asked)),
        ("another process has one, ms", _busy(another)),
    ):
        with around:
            asked.compute([QUERY], is_query=True)
            spent = []
            for _ in range(queries):
                began = time.perf_counter()
                asked.compute([QUERY], is_query=True)
                spent.append(time.perf_counter() - began)
        found[name] = statistics.median(spent) * 1000
    asked.close()
    another.close()
    return found


@contextmanager
def _busy(executor: Executor) -> Iterator[None]:
    """Keep an executor as busy as a worker does."""
    batch = [*texts(executor.start().batch_size)]
    is_over, is_full = threading.Event(), threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            executor.compute(batch)
            is_full.set()

    threads = [threading.Thread(target=compute) for _ in range(executor.slots)]
    for thread in threads:
        thread.start()
    is_full.wait()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _provider(config: Config) -> LocalProvider:
    provider = providers.build(
        alias="default",
        backend=config["BACKEND"],
        model=config["MODEL"],
        dimensions=config["DIMENSIONS"],
        options=config["OPTIONS"],
    )
    assert isinstance(provider, LocalProvider)
    return provider
