"""Each mutant still breaks what it was made for, and each invariant has some."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_breaks_and_the_test_that_it_names_are_there(mutant: Mutant):
    assert mutant.broken(REPOSITORY)

    file, *names = mutant.test.partition("[")[0].split("::")
    tests = (REPOSITORY / "tests" / file).read_text()
    assert all(re.search(rf"(def|class) {name}\b", tests) for name in names)


def test_each_invariant_has_two_mutants_or_more():
    counts = Counter(mutant.invariant for mutant in MUTANTS)

    names = {f"I{n}" for n in range(1, 14)} | {f"T{n}" for n in range(1, 8)} | {"S1", "C1", "E1"}
    assert {name for name, count in counts.items() if count > 1} == names
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
