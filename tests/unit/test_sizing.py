"""The page on sizing says what the arithmetic says, and the arithmetic holds."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import sizing
from benchmarks.sizing import Load, plan
from benchmarks.storage import heap_bytes, index_bytes
from pgembed_django import conf

PAGES = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = re.compile(
    r"^```text\n\$ python -m benchmarks sizing (.*\\\n.*)\n([^`]+)```$", re.MULTILINE
)

LOAD = Load(
    milliseconds_per_text=50,
    batch_size=32,
    rows=100_000,
    changes_per_second=2,
    dimensions=768,
)


def examples() -> list[tuple[str, str]]:
    return [found for page in PAGES.rglob("*.md") for found in EXAMPLE.findall(page.read_text())]


@pytest.mark.parametrize(("arguments", "told"), examples())
def test_every_example_in_the_docs_is_computed(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    sizing.add_arguments(parser)

    sizing.run(parser.parse_args(shlex.split(arguments.replace("\\\n", " "))))

    assert capsys.readouterr().out == told


def test_there_are_examples() -> None:
    assert len(examples()) >= 2


def test_a_search_never_waits_longer_than_it_would() -> None:
    slow = dataclasses.replace(LOAD, milliseconds_per_text=200)

    found = plan(slow)

    assert found.batch_size < slow.batch_size
    assert found.search_wait_seconds <= conf.Settings().query_seconds / 2
    assert conf.Settings().query_seconds == sizing.QUERY_SECONDS


def test_servers_are_added_before_the_queue_grows() -> None:
    busy = dataclasses.replace(LOAD, changes_per_second=50)

    found = plan(busy)

    assert found.servers == 4  # 20 texts a second each, and no more than 0.7 of them
    assert found.busy <= sizing.BUSIEST


def test_every_place_of_every_server_has_a_request_and_each_worker_one_in_hand() -> None:
    wide = plan(dataclasses.replace(LOAD, parallel=8))

    assert wide.workers * wide.concurrency == 8 + wide.workers


def test_workers_are_two_or_as_many_as_store_what_is_embedded() -> None:
    fast = dataclasses.replace(LOAD, milliseconds_per_text=0.5, rows_per_worker=400)

    assert plan(LOAD).workers == 2
    assert plan(fast).workers == 5
    assert plan(dataclasses.replace(fast, chunks_per_row=2)).workers == 3


def test_nobody_is_killed_while_it_finishes() -> None:
    found = plan(dataclasses.replace(LOAD, milliseconds_per_text=4000))

    assert found.batch_size == 1
    assert found.stop_grace_seconds >= 2 * found.search_wait_seconds
    assert found.kill_after_seconds >= found.stop_grace_seconds + sizing.MAINTENANCE_SECONDS


@pytest.mark.parametrize(("dimensions", "number"), [(256, 8192 / 6), (768, 8192 / 2), (1536, 8192)])
def test_an_index_takes_so_many_to_a_page(dimensions: int, number: float) -> None:
    assert index_bytes(dimensions) == number


def test_what_hnsw_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="too many for HNSW"):
        index_bytes(3072)


def rows(page: str) -> list[list[str]]:
    """Return the cells of a page's tables."""
    text = (PAGES / page).read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("dimensions", [256, 384, 768, 1024, 1536])
def test_the_table_of_indexes_is_computed(dimensions: int) -> None:
    number = index_bytes(dimensions)

    assert [
        f"{dimensions:,}",
        f"{8192 / number:.0f}",
        f"{number:,.0f}",
        sizing.size(number * 1e6),
    ] in rows("how-to/size-it.md")


@pytest.mark.parametrize(("power", "name"), [(6, "10⁶"), (8, "10⁸"), (10, "10¹⁰")])
def test_the_table_of_scales_is_computed(power: int, name: str) -> None:
    number = 10**power

    assert [
        name,
        sizing.size(number * heap_bytes(768, 800)),
        sizing.size(number * index_bytes(768)),
        sizing.duration(number / 1000),
    ] in rows("how-to/size-it.md")
