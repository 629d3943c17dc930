"""Run contenders by turns, and report medians as a table, JSON and a picture, with missed bars.

As the machine may be noisy, only figures that were measured by turns in one run are compared, and
only as ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RUNS = 5

Figures = dict[str, float]
"""The results of one run of one contender. Keys name the figure and its unit."""

Contender = Callable[[], Figures]


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio, to be reached if it says so: a figure of one contender, divided by another's."""

    figure: str
    of: str
    beside: Sequence[str]
    """The figure is divided by the best median of these, chosen by ``best``. Without any: by 1."""
    least: float | None = None
    most: float | None = None
    best: Callable[[Sequence[float]], float] = max


@dataclass(slots=True)
class Comparison:
    """The figures of all contenders, run by run, and the bars for them."""

    title: str
    found: dict[str, list[Figures]] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def alternate(self, contenders: Mapping[str, Callable[[], Figures]], *, runs: int) -> None:
        """Run each contender ``runs`` times, by turns. Every second turn is in reverse order."""
        order = list(contenders)
        for number in range(runs):
            for name in order if number % 2 == 0 else reversed(order):
                self.found.setdefault(name, []).append(contenders[name]())

    def median(self, name: str, figure: str) -> float:
        """Return the median of a figure over a contender's runs."""
        return statistics.median(run[figure] for run in self.found[name])

    def ratio(self, bar: Bar) -> float:
        """Return the ratio that a bar is about."""
        beside = [self.median(name, bar.figure) for name in bar.beside]
        return self.median(bar.of, bar.figure) / (bar.best(beside) if beside else 1)

    def missed(self) -> list[Bar]:
        """Return the bars that were not reached."""
        return [
            bar
            for bar in self.bars
            if (bar.least is not None and self.ratio(bar) < bar.least)
            or (bar.most is not None and self.ratio(bar) > bar.most)
        ]

    def table(self) -> str:
        """Return medians, spreads and bars as Markdown."""
        figures = list(dict.fromkeys(name for runs in self.found.values() for name in runs[0]))
        lines = [
            f"### {self.title}",
            "",
            "| | " + " | ".join(figures) + " |",
            "|---|" + "---:|" * len(figures),
        ]
        for name, runs in self.found.items():
            cells = [self._cell(name, figure) if figure in runs[0] else "" for figure in figures]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        missed = self.missed()
        lines += [""] + [f"- {self._line(bar, missed=bar in missed)}" for bar in self.bars]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Return the figures of every run, and the ratios of the bars."""
        return {
            "title": self.title,
            "runs": self.found,
            "bars": [
                {key: value for key, value in asdict(bar).items() if key != "best"}
                | {"ratio": self.ratio(bar)}
                for bar in self.bars
            ],
        }

    def _cell(self, name: str, figure: str) -> str:
        values = [run[figure] for run in self.found[name]]
        if len(values) == 1:
            return _short(values[0])
        spread = f"{_short(min(values))} to {_short(max(values))}"
        return f"{_short(statistics.median(values))} ({spread})"

    def _line(self, bar: Bar, *, missed: bool) -> str:
        wanted = f", to reach: at most {bar.most}" if bar.most is not None else ""
        wanted = f", to reach: at least {bar.least}" if bar.least is not None else wanted
        beside = bar.beside[0] if len(bar.beside) == 1 else f"best of {', '.join(bar.beside)}"
        beside = f" / {beside}" if bar.beside else ""
        return (
            f"{bar.figure}, {bar.of}{beside}: {self.ratio(bar):.2f}"
            f"{wanted}{' **missed**' if missed else ''}"
        )


def add_arguments(parser: argparse.ArgumentParser, *, runs: int = RUNS) -> None:
    """Add the options that every comparison has."""
    parser.add_argument("--runs", type=int, default=runs, help="The median of so many is told.")
    parser.add_argument("--counts-only", action="store_true", help="Judge no speed.")
    parser.add_argument("--json", type=Path, help="Write every run to this file.")
    parser.add_argument("--picture", type=Path, help="Draw the medians (needs matplotlib).")


def report(comparisons: Sequence[Comparison], options: argparse.Namespace) -> int:
    """Print the tables, write the JSON and the picture. Return zero if all bars were reached."""
    for comparison in comparisons:
        if options.counts_only:
            comparison.bars.clear()
        print(f"\n{comparison.table()}", flush=True)
    if options.json:
        result = {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "python": platform.python_version(),
            "load": os.getloadavg(),
            "comparisons": [comparison.as_json() for comparison in comparisons],
        }
        options.json.write_text(json.dumps(result, indent=1))
    if options.picture:
        from benchmarks import picture

        picture.draw(comparisons, options.picture)
    return int(any(comparison.missed() for comparison in comparisons))


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
