"""Short forms of the benchmarks: that they run and count right, not how fast anything is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import postgres
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.live


def run(name: str, *options: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run one, and return the runs of each contender by the title of the comparison."""
    figures = folder / "figures.json"
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *options, "--runs", "1", "--json", figures],
        cwd=REPOSITORY,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    comparisons = json.loads(figures.read_text())["comparisons"]
    return {comparison["title"]: comparison["runs"] for comparison in comparisons}


def _environment() -> dict[str, str]:
    """Without the address of these tests' own server."""
    others = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return {**others, "DATABASE_URL": postgres.GIVEN} if postgres.GIVEN else others


def test_providers() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks", "providers", "--dimensions", "64", "--repeats", "1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    assert "No more than 5%: yes" in told.stdout
    [received] = re.findall(r"bytes received +[\d,]+ +[\d,]+ +(\d\.\d)$", told.stdout, re.MULTILINE)
    assert float(received) > 2  # JSON floats to base64


def test_write(tmp_path: Path) -> None:
    found = run("write", "--counts-only", "--clients", "2", "--rows", "500", folder=tmp_path)

    assert list(found) == [
        "One row a transaction, 2 clients",
        "500 rows in one statement, seconds",
        "One comment a transaction, 2 clients",
    ]
    single, bulk, comments = found.values()
    assert {"no trigger", "a bare INSERT", "ours, no worker", "ours, worker idle"} <= single.keys()
    assert all(one["saves/s"] > 0 for runs in single.values() for one in runs)
    assert {"wal, nobody reads", "message, nobody reads"} <= single.keys()
    assert all("lag, s" in single[f"{name}, a worker reads"][0] for name in ("wal", "message"))
    # How many jobs there are is asserted in the benchmark.
    for name in ("ours, no worker", "wal, nobody reads", "message, nobody reads"):
        assert bulk[name][0].keys() == bulk["no trigger"][0].keys()
    assert {"no trigger", "ours, no worker", "ours, worker busy"} == comments.keys()


def test_capture(tmp_path: Path) -> None:
    few = ("--rows", "500", "--seconds", "1")

    by_wal, by_message, same, another = run(
        "capture", "--counts-only", *few, folder=tmp_path
    ).values()

    # How many jobs there are is asserted in the benchmark.
    assert by_wal.keys() == by_message.keys()
    assert all(found["rows/s"] > 0 for [found] in (*by_wal.values(), *by_message.values()))
    for found in (same, another):
        assert {"nobody reads", "beside a reader"} == found.keys()
        assert "sender CPU, s a million rows" in found["beside a reader"][0]


def test_ripples(tmp_path: Path) -> None:
    few = ("--rows", "2500", "--seconds", "0.5")

    renamed, drained, saved = run("ripples", "--counts-only", *few, folder=tmp_path).values()

    assert {"no trigger", "ours"} == renamed.keys()
    assert drained["one rename"][0]["jobs"] == 2500
    assert all(run["texts"] >= 2500 for [run] in drained.values())
    # Each story's vector was seen, or it would not have ended.
    assert all(run["p50 ms"] > 0 for [run] in saved.values())


def test_scale(tmp_path: Path) -> None:
    sizes = ("--sizes", "300", "1000", "--worked", "100")

    found = run("scale", "--counts-only", *sizes, folder=tmp_path)

    cost, memory, added = found.values()
    assert list(cost) == ["300", "1,000"]
    assert memory["1,000 rows"][0]["rows stored"] >= 100
    assert added["the migration"][0]["longest wait of a writer"] > 0


def test_workers(tmp_path: Path) -> None:
    found = run("workers", "--counts-only", "--rows", "64", "--workers", "1", "2", folder=tmp_path)

    [rates] = found.values()
    assert all(rate["rows/s"] > 0 for [rate] in rates.values())


def test_chaos(tmp_path: Path) -> None:
    rough = ("--rows", "200", "--kills", "2", "--seconds", "2", "--contenders", "ours")

    kills, races, tasks = run("chaos", *rough, folder=tmp_path).values()

    zero = {"lost": 0, "stale": 0, "orphaned": 0, "stuck": 0}
    assert kills["ours"][0].items() >= zero.items()
    assert kills["ours"][0]["kills"] > 0
    assert races["ours"][0].items() >= zero.items()
    assert races["ours"][0]["writes"] > 0
    zero = {"lost": 0, "doubled": 0, "once doubled": 0, "stuck": 0}
    assert tasks["ours"][0].items() >= zero.items()
    assert tasks["ours"][0]["kills"] > 0


def test_queue(tmp_path: Path) -> None:
    few = ("--jobs", "2000", "--seconds", "4", "--only")

    sleeping, idle = run("queue", "--counts-only", *few, folder=tmp_path).values()

    assert {"ours", "bare claim and delete", "no queue: threads alone"} == sleeping.keys()
    assert {"ours", "bare claim and delete"} == idle.keys()
    assert all(run["jobs/s"] > 0 for found in (sleeping, idle) for [run] in found.values())


def test_tasks(tmp_path: Path) -> None:
    found = run("tasks", "--quick", folder=tmp_path)

    drained, made_of, seldom, often, enqueued, claimed = (
        {name: figures for name, [*_, figures] in one.items()} for one in found.values()
    )
    assert "ours" in drained
    # Peers take part where they are installed.
    assert drained.keys() == seldom.keys() == often.keys() == enqueued.keys()
    assert all(figures["jobs/s"] > 0 for figures in drained.values())
    assert all(0 < one["p50 ms"] <= one["p99 ms"] for one in (*seldom.values(), *often.values()))
    assert made_of["ours"]["reaped"] == 0
    assert made_of["ours"]["claim ms"] > 0
    assert claimed.keys() == {"by hand: first in, first out", "plain", "50 tenants"}
    # Each tenant is served within one round, and so the biggest one gets no more than its part.
    assert claimed["50 tenants"]["rounds until each tenant was served"] <= 1


def test_idle(tmp_path: Path) -> None:
    [claims] = run("idle", "--counts-only", "--jobs", "1000", folder=tmp_path).values()

    assert {"alone", "beside an idle transaction"} == claims.keys()
    assert all(run["ms"] > 0 for [run] in claims.values())


def test_latency(tmp_path: Path) -> None:
    few = ("--rates", "20/s", "--seconds", "1", "--only", "ours", "wal", "message", "loop by hand")

    [rate] = run("latency", "--counts-only", *few, folder=tmp_path).values()

    # Each row's vector was seen, or it would not have ended.
    assert {"ours", "wal", "message", "loop by hand"} == rate.keys()
    assert all(0 < run["p50 ms"] <= run["p99 ms"] for [run] in rate.values())


def test_pipeline(tmp_path: Path) -> None:
    few = (
        "--rows",
        "200",
        "--widths",
        "16",
        "--delays",
        "0 ms",
        "--only",
        "ours",
        "script by hand",
    )

    [rate] = run("pipeline", "--counts-only", *few, folder=tmp_path).values()

    assert all(run["rows/s"] > 0 for [run] in rate.values())


def test_models(tmp_path: Path) -> None:
    few = ("--rows", "100", "--batches", "32", "--queries", "5")

    rates, queries = run("models", "--counts-only", *few, folder=tmp_path).values()

    # Each row's vector was seen, or it would not have ended.
    assert rates.keys() == {"encode, batches of 32", "worker, nothing to embed", "worker"}
    assert all(run["rows/s"] > 0 for [run] in rates.values())
    assert queries.keys() == {"in process", "in a process of its own"}
    assert all(spent > 0 for [run] in queries.values() for spent in run.values())
