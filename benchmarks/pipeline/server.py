"""A minimal embedding server in its own process, with Ollama's API and as little work as possible.

It assembles an answer from vectors that were encoded beforehand, and sends it after a set delay.
It serves a set number of requests at once. Others wait.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.soak.processes import SPAWN

MODEL = "served"
DIFFERENT = 61
"""How many different vectors there are. The texts of a request get them by turns."""


class Delay(NamedTuple):
    """How long an answer takes, and how many requests are worked on at once."""

    batch_seconds: float = 0.0
    text_seconds: float = 0.0
    at_once: int = 64

    def texts_per_second(self, batch: int) -> float:
        """Return the most texts a second that can be answered in batches of this size."""
        seconds = self.batch_seconds + self.text_seconds * batch
        return self.at_once * batch / seconds if seconds else float("inf")


class Server:
    """The server's process. Call ``stop`` in the end."""

    def __init__(self, delay: Delay, *, width: int) -> None:
        self.width = width
        self._control, far_end = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(far_end, delay, width), daemon=True)
        self._process.start()
        far_end.close()
        self.url = f"http://127.0.0.1:{self._control.recv()}"

    def first_asked_at(self) -> float | None:
        """Return when the first batch since the last call came, by ``time.monotonic``."""
        self._control.send("first")
        first: float | None = self._control.recv()
        return first

    def texts(self) -> int:
        """Return how many texts came since the last call."""
        self._control.send("texts")
        texts: int = self._control.recv()
        return texts

    def stop(self) -> None:
        """End the process."""
        self._control.close()
        self._process.join()

    def provider(self) -> dict[str, Any]:
        """Return the server's entry in PGEMBED_PROVIDERS."""
        return {
            "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
            "MODEL": MODEL,
            "DIMENSIONS": self.width,
            "OPTIONS": {"base_url": self.url},
        }


class _State:
    def __init__(self, delay: Delay, width: int) -> None:
        self.delay = delay
        self.slots = asyncio.Semaphore(delay.at_once)
        self.first: float | None = None
        self.texts = 0
        drawn = random.Random(1)
        self.vectors = [
            json.dumps([round(drawn.gauss(0, 1), 8) for _ in range(width)]).encode()
            for _ in range(DIFFERENT)
        ]

    async def answer(self, path: str, body: bytes) -> bytes:
        if path != "/api/embed":
            return json.dumps(_about(path)).encode()
        texts = json.loads(body)["input"]
        count = 1 if isinstance(texts, str) else len(texts)
        if self.first is None:
            self.first = time.monotonic()
        self.texts += count
        seconds = self.delay.batch_seconds + self.delay.text_seconds * count
        if seconds:
            async with self.slots:
                await asyncio.sleep(seconds)
        # The same request gets the same vectors: else it would seem to be another model each time.
        first = zlib.crc32(body)
        vectors = (self.vectors[(first + n) % DIFFERENT] for n in range(count))
        return b'{"model":"%s","embeddings":[%s],"prompt_eval_count":%d}' % (
            MODEL.encode(),
            b",".join(vectors),
            count,
        )


def _about(path: str) -> dict[str, Any]:
    if path == "/api/version":
        return {"version": "0.33.0"}
    if path == "/api/tags":
        return {"models": [{"name": f"{MODEL}:latest", "digest": "one"}]}
    return {"model_info": {"general.architecture": "served", "served.context_length": 8192}}


def _serve(control: Connection, delay: Delay, width: int) -> None:
    asyncio.run(_serve_until_closed(control, delay, width))


async def _serve_until_closed(control: Connection, delay: Delay, width: int) -> None:
    state = _State(delay, width)
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                path = head.split(" ", 2)[1]
                length = head.partition("content-length:")[2].partition("\r\n")[0].strip()
                answer = await state.answer(path, await reader.readexactly(int(length or 0)))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer)
                )
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def told() -> None:
        try:
            wanted = control.recv()
        except EOFError:
            over.set()
            return
        control.send(getattr(state, wanted))
        setattr(state, wanted, None if wanted == "first" else 0)

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=2**24)
    asyncio.get_running_loop().add_reader(control.fileno(), told)
    control.send(server.sockets[0].getsockname()[1])
    await over.wait()
