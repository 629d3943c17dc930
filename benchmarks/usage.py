"""What a process has used, as the kernel of this machine counts it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return how long a process was on a core, in its own code and in the kernel."""
    # Its name, in brackets, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has held at once.

    Raises:
        ProcessLookupError: it has ended.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if not found:
        raise ProcessLookupError(pid)
    return int(found[1]) * 1024
