"""llama.cpp's HTTP server, in a process of its own that a test may kill and start again.

Run as a program it serves one model: ``python -m tests.live.llama MODEL PORT POOLING``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import requests

from tests.live import minilm


class Llama:
    """A server on a port of its own, which stays the same over restarts."""

    def __init__(self, log: Path, *, pooling: Literal["MEAN", "RANK"] = "MEAN") -> None:
        self.log = log
        self.pooling = pooling
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, model: Path) -> None:
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, os.fspath(model), str(self.port), self.pooling],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(self.log.read_text())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def embed(self, text: str) -> list[float]:
        return self._ask("/v1/embeddings", {"input": [text]})["data"][0]["embedding"]

    def count(self, text: str) -> int:
        """Return how many tokens a text has, with those that mark its ends."""
        return len(self._ask("/tokenize", {"content": text, "add_special": True})["tokens"])

    def cut(self, text: str, *, tokens: int) -> str:
        """Return the start of a text that has so many tokens at most, with those at its ends."""
        if self.count(text) <= tokens:
            return text
        found = self._ask("/tokenize", {"content": text})["tokens"]
        return self._ask("/detokenize", {"tokens": found[: tokens - 2]})["content"]

    def _ask(self, path: str, value: dict[str, Any]) -> Any:
        answer = requests.post(self.url + path, json=value, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/health", timeout=5).status_code == 200
        except requests.ConnectionError:
            time.sleep(0.05)
            return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def serve(model: str, port: int, pooling: str) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.port = port
    parameters.embedding = True
    kinds = xllamacpp.llama_pooling_type
    parameters.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling}")
    parameters.n_gpu_layers = 0
    parameters.n_parallel = 4
    parameters.n_ctx = 4 * minilm.CONTEXT
    parameters.n_batch = parameters.n_ubatch = minilm.CONTEXT
    parameters.cpuparams.n_threads = 2
    _server = xllamacpp.Server(parameters)  # it serves for as long as it is referred to
    while True:
        signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
