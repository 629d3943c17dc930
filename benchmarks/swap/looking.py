"""Check during a swap each search, and how many rows the searched space holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import judged
from benchmarks.app.models import Article
from benchmarks.swap.writing import ONE_IN
from pgembed_django import search, spaces
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.models import Space
from pgembed_django.retrieval import query_vectors

USING = "default"
LIMIT = 10
TOLERANCE = 1e-3

# In one snapshot: the active space, and how many rows a search can find in it.
COVERED = """
    SELECT space.id, count(DISTINCT chunk.source_id)
    FROM pgembed_space AS space
    LEFT JOIN app_articleembedding AS chunk
      ON chunk.space_id = space.id
     AND chunk.embedding IS NOT NULL
    WHERE space.spec = %(spec)s
      AND space.state = 'active'
    GROUP BY space.id
"""

SIMILARITIES = """
    SELECT source_id, max(1 - (embedding <=> %(vector)s::vector))
    FROM app_articleembedding
    WHERE space_id = %(space)s
      AND source_id = ANY(%(keys)s)
      AND embedding IS NOT NULL
    GROUP BY source_id
"""


@dataclass(slots=True)
class Looks:
    """The searches of a phase, and what was wrong with them."""

    questions: Iterator[str] = field(default_factory=lambda: itertools.cycle(_questions()))
    seconds: list[float] = field(default_factory=list)
    checked: int = 0
    """How many vectors were compared with the space that their search reported."""
    mixed: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    covered: int = 0
    least_covered: int | None = None

    def search(self) -> None:
        """Search once, and check that all results are of the one space that was searched."""
        question = next(self.questions)
        before = active()
        started = time.perf_counter()
        found = search(Article, question, limit=LIMIT)
        self.seconds.append(time.perf_counter() - started)
        if found.space not in (before, active()):
            self.mixed.append(f"{question!r}: {found.spaces} while {before} was active")
        if found.degraded:
            self.degraded.append(f"{question!r}: {found.note}")
        elif found.space is not None:
            self._check(question, found.space, found.hits)
        if len(found) < LIMIT:
            self.short.append(f"{question!r}: {len(found)} found")

    def cover(self) -> None:
        """Count the rows that can be found in the active space, and keep the lowest count."""
        [(_, self.covered)] = database.rows(USING, COVERED, spec=spec().key) or [(None, 0)]
        least = self.least_covered
        self.least_covered = self.covered if least is None else min(self.covered, least)

    def _check(self, question: str, space: Space, hits: Any) -> None:
        # Rows that the writer writes may have another vector by now. The others have not.
        told = {
            hit.instance.pk: hit.similarity
            for hit in hits
            if hit.similarity is not None and hit.instance.pk % ONE_IN
        }
        vector = query_vectors.vectors.ask(space, question).vector()
        stored = dict(
            database.rows(
                USING,
                SIMILARITIES,
                vector="[" + ",".join(map(str, vector.tolist())) + "]",
                space=space.pk,
                keys=list(told),
            )
        )
        for key, similarity in told.items():
            self.checked += 1
            if abs(similarity - stored.get(key, 2.0)) > TOLERANCE:
                self.mixed.append(f"{question!r}, row {key}: {similarity} is not of {space}")


def spec() -> specs.Spec:
    """Return the spec that is swapped."""
    [found] = specs.of(Article)
    return found


def active() -> Space | None:
    """Return the space that is searched now."""
    return spaces.active(spec(), using=USING)


def _questions() -> list[str]:
    return [question.text for question in judged.questions(existing=judged.Everything())]
