"""Run contenders by turns, and tell the medians: a table, JSON, a picture, what was missed.

The machine may be noisy: only what ran in turns, in one run, is compared, as a ratio.
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
"""What one run of one contender measured, by the name of the figure, with its unit."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What is to be reached: a figure of one contender, as a multiple of another's."""

    figure: str
    of: str
    beside: Sequence[str]
    """The best of these (the median, by ``best``) is what the figure is divided by. None: by 1."""
    least: float | None = None
    most: float | None = None
    best: Callable[[Sequence[float]], float] = max


@dataclass(slots=True)
class Comparison:
    """The figures of all contenders, run after run."""

    title: str
    found: dict[str, list[Figures]] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def alternate(self, contenders: Mapping[str, Callable[[], Figures]], *, runs: int) -> None:
        """Run each once, then all again, in the other direction every second time."""
        order = list(contenders)
        for number in range(runs):
            for name in order if number % 2 == 0 else reversed(order):
                self.found.setdefault(name, []).append(contenders[name]())

    def median(self, name: str, figure: str) -> float:
        """Return the median of a figure over a contender's runs."""
        return statistics.median(run[figure] for run in self.found[name])

    def ratio(self, bar: Bar) -> float:
        """Return what a bar is about."""
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
        """Return medians and spreads, and what is to be reached, as Markdown."""
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
        """Return every run, and what became of the bars."""
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
        wanted = f"at least {bar.least}" if bar.least is not None else f"at most {bar.most}"
        beside = bar.beside[0] if len(bar.beside) == 1 else f"best of {', '.join(bar.beside)}"
        beside = f" / {beside}" if bar.beside else ""
        return (
            f"{bar.figure}, {bar.of}{beside}: {self.ratio(bar):.2f}, "
            f"to reach: {wanted}{' **missed**' if missed else ''}"
        )


def add_arguments(parser: argparse.ArgumentParser, *, runs: int = RUNS) -> None:
    """Take what every comparison takes."""
    parser.add_argument("--runs", type=int, default=runs, help="The median of so many is told.")
    parser.add_argument("--counts-only", action="store_true", help="Judge no speed.")
    parser.add_argument("--json", type=Path, help="Write every run to this file.")
    parser.add_argument("--picture", type=Path, help="Draw the medians (needs matplotlib).")


def report(comparisons: Sequence[Comparison], options: argparse.Namespace) -> int:
    """Print, write and draw. Returns zero where every bar was reached."""
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
