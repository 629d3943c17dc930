"""Break the mechanisms of the invariants one by one, and see their tests turn red.

    python -m tests.mutants [name or invariant ...] [--jobs N]

Exits with 0 if each mutant is killed, 1 if one survives, and 2 if that cannot be told: the tests
fail without a mutant, or fail for another reason than the mutant's.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests import postgres
from tests.mutants.table import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__")
TEST_SECONDS = 120
RUN_SECONDS = 600

FAILED = re.compile(r"^FAILED tests/(?P<test>.+?)(?P<reason> - .*|)$", re.MULTILINE)
NONSENSE = re.compile(r"\b(Syntax|Name|Import|Programming)Error\b")
"""What a mutant raises that is no weaker mechanism, but code or SQL that cannot run."""


class Verdict(enum.StrEnum):
    KILLED = enum.auto()
    SURVIVED = enum.auto()
    ERROR = enum.auto()


class Run(NamedTuple):
    """A run of pytest. ``status`` is None if it took longer than ``RUN_SECONDS``."""

    status: int | None
    output: str
    seconds: float

    @property
    def verdict(self) -> tuple[Verdict, str]:
        """What became of the mutant that it ran with, and by which test or why."""
        if self.status is None:
            return Verdict.KILLED, f"by a hang of {RUN_SECONDS} s"
        if self.status == 0:
            return Verdict.SURVIVED, "with all tests green"
        # pytest exits with 1 for an error in a fixture, too. Then there is no line of a failure.
        failed = FAILED.search(self.output) if self.status == 1 else None
        if failed is None or NONSENSE.search(failed["reason"]):
            return Verdict.ERROR, f"as pytest exited with {self.status}:\n{self.output}"
        hung = " (a hang)" if "Timeout" in failed["reason"] else ""
        return Verdict.KILLED, f"by {failed['test']}{hung}"


def run_tests(folder: Path, tests: Sequence[str], *options: str) -> Run:
    """Run tests in a copy of the repository, on a database of their own."""
    started = time.monotonic()
    environment = {
        **os.environ,
        "PGEMBED_TEST_DATABASE": f"{postgres.test_database()}_{folder.name}",
        "COLUMNS": "1000",  # or the summary leaves the reasons of failures out
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "--tb=short", *options]
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Run(None, "", time.monotonic() - started)
    return Run(done.returncode, done.stdout, time.monotonic() - started)


def run_mutant(mutant: Mutant, *, unbroken: Path) -> Run:
    """Run a mutant's test with the mutant in place. The compiled files of the copy are used."""
    folder = shutil.copytree(unbroken, unbroken.with_name(mutant.name.replace("-", "_")))
    (folder / mutant.path).write_text(mutant.broken(folder))
    done = run_tests(folder, [mutant.test], f"--timeout={TEST_SECONDS}")
    shutil.rmtree(folder)
    return done


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*", metavar="name or invariant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    known = {name for mutant in MUTANTS for name in (mutant.name, mutant.invariant)}
    if unknown := set(given.names) - known:
        parser.error(f"There is no mutant or invariant {', '.join(sorted(unknown))}.")
    names = set(given.names) or known
    chosen = [mutant for mutant in MUTANTS if names & {mutant.name, mutant.invariant}]
    for mutant in chosen:
        mutant.broken(REPOSITORY)  # raises at once if its text is not there
    postgres.url()  # one server for all runs
    with tempfile.TemporaryDirectory(prefix="pgembed-mutants-") as temporary:
        unbroken = Path(temporary) / "unbroken"
        shutil.copytree(REPOSITORY, unbroken, ignore=NOT_COPIED)
        before = run_tests(unbroken, sorted({mutant.test for mutant in chosen}))
        if before.status != 0:
            say(f"The tests are not green without a mutant:\n{before.output}")
            return 2
        say(f"The tests are green without a mutant ({before.seconds:.0f} s).")
        verdicts: Counter[Verdict] = Counter()
        with ThreadPoolExecutor(given.jobs) as pool:
            runs = pool.map(lambda one: run_mutant(one, unbroken=unbroken), chosen)
            for mutant, run in zip(chosen, runs, strict=True):
                verdict, why = run.verdict
                verdicts[verdict] += 1
                say(f"{mutant.invariant:3} {mutant.name}: {verdict} {why}, {run.seconds:.0f} s")
    say(f"{len(chosen)} mutants: " + ", ".join(f"{verdicts[one]} {one}" for one in Verdict))
    return 2 if verdicts[Verdict.ERROR] else int(verdicts[Verdict.SURVIVED] > 0)


if __name__ == "__main__":
    sys.exit(main())
