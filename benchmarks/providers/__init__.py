"""Requests and bytes that 1,000 rows take with Ollama, and base64 compared with JSON floats."""

from __future__ import annotations

import argparse
import json
import time
from math import ceil
from statistics import median

from benchmarks.providers.counting import Terse, Traffic, counting
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

ROWS = 1_000
BATCH_SIZE = 32
MAX_EXCESS = 0.05
"""By what share requests and bytes may exceed the least possible."""

WORDS = "The worker claims what has changed and asks for the vectors of its passages. "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=5, help="The median of so many is told.")


def run(options: argparse.Namespace) -> int:
    """Measure and print. Return zero if the traffic is near the least possible."""
    texts = [f"{number}. {WORDS * 8}" for number in range(options.rows)]
    excess = _ollama(texts, dimensions=options.dimensions)
    print()
    _encodings(texts, dimensions=options.dimensions, repeats=options.repeats)
    return 0 if excess <= MAX_EXCESS else 1


def _ollama(texts: list[str], *, dimensions: int) -> float:
    with counting(played.Ollama(width=dimensions)) as counted:
        provider = OllamaProvider(
            alias="ollama",
            model=counted.server.model,
            dimensions=dimensions,
            base_url=counted.server.url,
            batch_size=BATCH_SIZE,
        )
        for start in range(0, len(texts), BATCH_SIZE):
            provider.embed_documents(texts[start : start + BATCH_SIZE])
        provider.close()
    least = Traffic(
        requests=ceil(len(texts) / BATCH_SIZE),
        bytes_sent=_least_bytes(counted.server.model, texts),
        bytes_received=counted.embedding.bytes_received,
    )
    print(f"Ollama, {len(texts)} rows of {len(texts[0])} characters in batches of {BATCH_SIZE}")
    print(f"{'':<24}{'least':>14}{'ours':>14}{'more by':>10}")
    excess = 0.0
    for label, fewest, ours in (
        ("requests", least.requests, counted.all.requests),
        ("bytes sent", least.bytes_sent, counted.all.bytes_sent),
        ("bytes received", least.bytes_received, counted.all.bytes_received),
    ):
        excess = max(excess, ours / fewest - 1)
        print(f"{label:<24}{fewest:>14,}{ours:>14,}{ours / fewest - 1:>10.1%}")
    print(f"No more than {MAX_EXCESS:.0%}: {'yes' if excess <= MAX_EXCESS else 'NO'}")
    return excess


def _least_bytes(model: str, texts: list[str]) -> int:
    """Return the bytes of the smallest JSON bodies that ask for all texts."""
    return sum(
        len(json.dumps({"model": model, "input": batch}, separators=(",", ":")).encode())
        for batch in (
            texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)
        )
    )


def _encodings(texts: list[str], *, dimensions: int, repeats: int) -> None:
    measured = {
        encoding: _encoding(encoding, texts, dimensions=dimensions, repeats=repeats)
        for encoding in ("float", "base64")
    }
    print(f"/v1/embeddings, {len(texts)} rows of {dimensions} numbers, the median of {repeats}")
    print(f"{'':<24}{'JSON floats':>14}{'base64':>14}{'ratio':>10}")
    for label, floats, base64 in (
        ("bytes received", measured["float"][0], measured["base64"][0]),
        ("milliseconds to parse", measured["float"][1], measured["base64"][1]),
    ):
        print(f"{label:<24}{floats:>14,.0f}{base64:>14,.0f}{floats / base64:>10.1f}")


def _encoding(
    encoding: str, texts: list[str], *, dimensions: int, repeats: int
) -> tuple[float, float]:
    """Return the bytes of all answers, and the milliseconds that parsing them takes."""
    with counting(Terse(width=dimensions)) as counted:
        provider = OpenAIProvider(
            alias="openai",
            model=counted.server.model,
            dimensions=dimensions,
            base_url=f"{counted.server.url}/v1",
            encoding_format=encoding,
        )
        answers = [
            provider.ask(
                "POST",
                "/embeddings",
                {
                    "model": counted.server.model,
                    "input": texts[start : start + BATCH_SIZE],
                    "encoding_format": encoding,
                },
                timeout_seconds=60,
            )
            for start in range(0, len(texts), BATCH_SIZE)
        ]
        provider.close()
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        for answer in answers:
            provider.vectors_of(provider.value_of(answer, texts=[]))
        spent.append((time.perf_counter() - started) * 1000)
    return counted.embedding.bytes_received, median(spent)
