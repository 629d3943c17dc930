"""An embedding server in its own process, with Ollama's API. It answers after a set delay.

It sleeps for the delay, so any number of simultaneous requests take no longer than one. A vector
depends only on its text (``soak.server.vector_of``), so that it can be checked.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.soak.processes import SPAWN
from benchmarks.soak.server import WIDTH, vector_of

MODEL = "served"


class Server:
    """The server's process. Call ``stop`` in the end."""

    def __init__(self, *, request_seconds: float = 0, text_seconds: float = 0) -> None:
        self._control, far_end = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=_serve, args=(far_end, request_seconds, text_seconds), daemon=True
        )
        self._process.start()
        far_end.close()
        self.url = f"http://127.0.0.1:{self._control.recv()}"

    def stop(self) -> None:
        """End the process."""
        self._control.close()
        self._process.join()

    def provider(self) -> dict[str, Any]:
        """Return the server's entry in PGEMBED_PROVIDERS."""
        return {
            "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
            "MODEL": MODEL,
            "DIMENSIONS": WIDTH,
            "OPTIONS": {"base_url": self.url},
        }


def _serve(control: Connection, request_seconds: float, text_seconds: float) -> None:
    handler = type(
        "Handler",
        (_Handler,),
        {"request_seconds": request_seconds, "text_seconds": text_seconds},
    )
    httpd = _Quiet(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    control.send(httpd.server_port)
    try:
        control.recv()
    except EOFError:
        return


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: a client that disconnects may have been killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    request_seconds: float
    text_seconds: float

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self._give({"version": "0.33.0"})
        else:
            self._give({"models": [{"name": f"{MODEL}:latest", "digest": "one"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/api/embed":
            info = {"general.architecture": "served", "served.context_length": 8192}
            self._give({"model_info": info})
            return
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        time.sleep(self.request_seconds + self.text_seconds * len(texts))
        self._give(
            {
                "model": MODEL,
                "embeddings": [vector_of(text) for text in texts],
                "prompt_eval_count": len(texts),
            }
        )

    def _give(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
