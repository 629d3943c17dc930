"""Draw the first figure of each comparison: its medians as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.compare import Comparison

OURS, OTHERS = "#0c4b33", "#a8b5ae"


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw one panel per comparison, with the spread as a line on each bar, to a file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = max(len(comparison.found) for comparison in comparisons)
    figure, panels = pyplot.subplots(
        len(comparisons), figsize=(8, (0.4 * rows + 1) * len(comparisons)), squeeze=False
    )
    for comparison, [panel] in zip(comparisons, panels, strict=True):
        names = list(comparison.found)[::-1]
        shown = next(iter(comparison.found[names[0]][0]))
        medians = [comparison.median(name, shown) for name in names]
        runs = [[run[shown] for run in comparison.found[name]] for name in names]
        spread = [
            [median - min(values) for median, values in zip(medians, runs, strict=True)],
            [max(values) - median for median, values in zip(medians, runs, strict=True)],
        ]
        colours = [OURS if name.startswith("ours") else OTHERS for name in names]
        panel.barh(names, medians, xerr=spread, color=colours, ecolor="#555555")
        panel.set_title(comparison.title, loc="left", fontsize=10)
        panel.set_xlabel(shown)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
