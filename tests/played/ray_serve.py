"""Serves OpenAI's /v1/embeddings with Ray Serve: ``-m tests.played.ray_serve ADDRESS PORT``."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import serve

from pgembed_django.executors import Place
from tests.played.bag import load


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Embeddings:
    def __init__(self) -> None:
        self._model = load(place=Place(), name="served")

    async def __call__(self, request: Any) -> dict[str, Any]:
        asked = await request.json()
        vectors = self._model.compute(asked["input"]).values
        data = [
            {"object": "embedding", "index": index, "embedding": vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "model": asked["model"], "data": data}


def main(address: str, port: int) -> None:
    ray.init(address)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Embeddings.bind(), route_prefix="/v1/embeddings")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
