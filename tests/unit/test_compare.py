from __future__ import annotations

import argparse
import json

from benchmarks import compare
from benchmarks.compare import Bar, Comparison


def made(**bars: float) -> Comparison:
    comparison = Comparison("Queue", bars=[Bar("jobs/s", "ours", ["a", "b"], **bars)])
    figures = {"ours": iter([90.0, 300.0, 120.0]), "a": iter([50.0] * 3), "b": iter([100.0] * 3)}
    comparison.alternate(
        {name: lambda name=name: {"jobs/s": next(figures[name])} for name in figures}, runs=3
    )
    return comparison


def test_contenders_run_by_turns_and_in_both_directions():
    order = []
    contenders = {name: lambda name=name: order.append(name) or {"s": 1.0} for name in "ab"}

    Comparison("Order").alternate(contenders, runs=2)

    assert order == ["a", "b", "b", "a"]


def test_a_bar_is_the_ratio_of_medians_to_the_best_peer():
    comparison = made(least=1.25)

    assert comparison.ratio(comparison.bars[0]) == 1.2
    assert comparison.missed() == comparison.bars
    assert "1.20, to reach: at least 1.25 **missed**" in comparison.table()


def test_a_bar_that_is_reached_is_not_missed():
    assert made(most=1.25).missed() == []
    assert "| ours | 120 (90 to 300) |" in made(most=1.25).table()


def test_the_report_ends_non_zero_where_a_bar_is_missed_and_writes_every_run(tmp_path, capsys):
    options = argparse.Namespace(json=tmp_path / "queue.json", picture=None, counts_only=False)

    assert compare.report([made(least=1.25)], options) == 1
    assert compare.report([made(least=1.0)], options) == 0
    [told] = json.loads(options.json.read_text())["comparisons"]
    assert [run["jobs/s"] for run in told["runs"]["ours"]] == [90.0, 300.0, 120.0]
    assert told["bars"][0]["ratio"] == 1.2
