"""Writes, moods of models and changes of mind, in any order.

Meanwhile no vector is in a space of another model's, or of a row that is gone, and no row that
looks covered lacks a chunk. Once all models are well again, every row is found by its text, and
nothing is left to do.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pytest
from django.db.models.functions import Now

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding import planner
from pgembed_django.exceptions import (
    InputRefused,
    ProviderError,
    ProviderLost,
    ProviderUnavailable,
)
from pgembed_django.models import Job, Space, StagedVector
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from pgembed_django.spaces import reconcile, stored
from pgembed_django.spaces.reembedding import reembed
from tests import played
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding
from tests.db.conftest import Maintenance

pytestmark = pytest.mark.django_db

COMMENT = "app.ArticleCommentEmbedding"
MODELS = ["one", "two", "three"]
WORDS = ["trout", "salmon", "pike", "carp", "eel", "perch"]
STEPS = 200


class Moody(DeterministicProvider):
    """Some models are down, some fail at a word, and some tags are pulled again."""

    down: ClassVar[set[str]] = set()
    words: ClassVar[dict[tuple[str, type[ProviderError]], str]] = {}
    weights: ClassVar[dict[str, str]] = {}

    def model_digest(self) -> str:
        return Moody.weights.get(self.model, "first")

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        if self.model in Moody.down:
            raise ProviderUnavailable("connection refused")
        for (model, error), word in Moody.words.items():
            if model == self.model and any(word in text for text in texts):
                raise error(f"cannot have {word}")
        return np.stack([vector(self.model, self.model_digest(), text) for text in texts])

    @classmethod
    def get_well(cls) -> None:
        cls.down = set()
        cls.words = {}


@functools.cache
def vector(model: str, digest: str, text: str) -> Any:
    provider = DeterministicProvider(alias="", model=f"{model} {digest}", dimensions=64)
    [made] = provider.embed_batch([text])
    return made / np.linalg.norm(made)


class World:
    """Two workers, and all that may happen to what they work on."""

    def __init__(
        self,
        *,
        seed: int,
        settings: Any,
        clock: played.Clock,
        make_worker: Callable[..., Work],
    ) -> None:
        self.random = random.Random(seed)
        self._settings = settings
        self._clock = clock
        self._make_worker = make_worker
        self._sizes = {
            "batch_size": self.random.choice([1, 2, 8]),
            "concurrency": self.random.choice([1, 2]),
        }
        self.spec = specs.get(COMMENT)
        self._article = Article.objects.create(title="not embedded")
        self._pruning: Iterator[None] = iter(())
        self._declare("one")
        self._ids = itertools.count(1)
        self._workers: dict[int, Work] = {}
        self._start()
        self._start()
        self._maintenance = Maintenance(
            {COMMENT: self.spec},
        )
        self.actions: dict[Callable[[], object], int] = {
            self._create: 6,
            self._update: 8,
            self._update_all: 1,
            self._delete: 3,
            self._work: 25,
            self._let_time_pass: 5,
            self._maintenance.upkeep.reconcile: 2,
            self._maintenance.upkeep.build: 3,
            self._change_model: 2,
            self._pull_again: 3,
            self._change_mind: 4,
            self._prune: 5,
            self._reembed: 1,
            self._retry: 1,
            self._change_mood: 2,
            self._go_down_or_up: 2,
            self._stop_one: 1,
            self._kill_one: 1,
        }

    def step(self) -> str:
        """Do something."""
        [action] = self.random.choices([*self.actions], [*self.actions.values()])
        action()
        return action.__name__

    def settle(self) -> None:
        """Let all be well, and all be done."""
        Moody.get_well()
        active, *building = spaces.live(self.spec, using="default")
        for space in [*building, active]:
            Moody.weights[space.model] = space.model_digest
        if any(space.model == active.model for space in building):
            spaces.cancel(COMMENT, using="default")  # its weights are gone for good
        self._declare(active.model)
        self._notice()
        for _ in range(12):
            self._retry()
            reconcile.reconcile_once(self.spec, using="default", scans=reconcile.ALL_SCANS)
            self._let_time_pass(100)
            for worker in self._workers.values():
                while worker.step():
                    pass
            self._maintenance.upkeep.build()
        for space in Space.objects.filter(spec=COMMENT, state="retired", pruned_at=None):
            for _ in self._prune_slowly(space):
                pass

    def _start(self) -> None:
        worker_id = next(self._ids)
        self._workers[worker_id] = self._make_worker(
            worker_id=worker_id, max_attempts=3, max_crashes=30, **self._sizes
        )

    def _declare(self, model: str) -> None:
        self._settings.PGEMBED_PROVIDERS = {
            "default": {"BACKEND": f"{__name__}.Moody", "MODEL": model, "DIMENSIONS": 64}
        }

    def _notice(self) -> None:
        """Let workers know what they would within a minute."""
        self._maintenance.upkeep.open_spaces()
        for worker in self._workers.values():
            worker.handler.live.outdate()
            worker.claim()

    def _text(self) -> str:
        words = self.random.choices(WORDS, k=self.random.randint(1, 5))
        return "\n\n".join(f"The {word} sleeps." for word in words)  # a chunk each

    def _one(self) -> Any:
        return ArticleComment.objects.filter(pk=self.random.choice([*self._keys(), None]))

    def _keys(self) -> Any:
        return ArticleComment.objects.order_by("text").values_list("pk", flat=True)

    def _create(self) -> None:
        ArticleComment.objects.create(article=self._article, text=self._text())

    def _update(self) -> None:
        self._one().update(text=self._text())

    def _update_all(self) -> None:
        ArticleComment.objects.update(text=self._text())

    def _delete(self) -> None:
        self._one().delete()

    def _work(self) -> None:
        worker = self.random.choice([*self._workers.values()])
        for _ in range(self.random.randint(1, 4)):
            worker.step()

    def _let_time_pass(self, seconds: float | None = None) -> None:
        self._clock.now += seconds or self.random.choice([1, 10, 100])
        Job.objects.filter(status="pending").update(run_at=Now())

    def _change_model(self) -> None:
        self._declare(self.random.choice(MODELS))
        self._notice()

    def _pull_again(self) -> None:
        Moody.weights[self.random.choice(MODELS)] = self.random.choice(["first", "second"])
        self._notice()

    def _change_mind(self) -> None:
        of_spec = Space.objects.filter(spec=COMMENT).order_by("pk")
        building, retired = of_spec.filter(state="building"), of_spec.filter(state="retired")
        match self.random.choice(["cancel", "activate", "reopen"]):
            case "cancel":
                spaces.cancel(COMMENT, using="default")
            case "activate" if building:
                spaces.activate(building[0], using="default", is_partial=True)
            case "reopen" if retired:
                spaces.reopen(self.random.choice(retired), using="default")
        if self.random.random() < 0.5:
            self._notice()

    def _prune(self) -> None:
        """Go on with a space, by a few chunks, as a worker does beside others."""
        unpruned = Space.objects.filter(spec=COMMENT, state="retired", pruned_at=None)
        if next(self._pruning, "done") and unpruned:
            self._pruning = self._prune_slowly(self.random.choice(unpruned.order_by("pk")))

    def _prune_slowly(self, space: Space) -> Iterator[None]:
        for first_only in (True, False):
            after: int | None = 0
            while after is not None:
                after = stored.prune(
                    self.spec,
                    space.pk,
                    after=after,
                    limit=self.random.choice([1, 4, 16]),
                    first_only=first_only,
                    using="default",
                )
                yield
        stored.prune_staged(space.pk, limit=1000, using="default")
        spaces.mark_pruned(space, using="default")

    def _reembed(self) -> None:
        keys = [str(key) for key in self._keys() if self.random.random() < 0.5]
        reembed(self.spec, keys, using="default")

    def _retry(self) -> None:
        failed = Job.objects.filter(status="failed", settled_at=None)
        jobs.retry_failed(failed.values_list("pk", flat=True), using="default")

    def _change_mood(self) -> None:
        error = self.random.choice([InputRefused, ProviderError, ProviderLost])
        mood = self.random.choice(MODELS), error
        if Moody.words.pop(mood, None) is None:
            Moody.words[mood] = self.random.choice(WORDS)

    def _go_down_or_up(self) -> None:
        Moody.down ^= {self.random.choice(MODELS)}

    def _stop_one(self) -> None:
        self._workers.pop(min(self._workers)).release()
        self._start()

    def _kill_one(self) -> None:
        killed = min(self._workers)
        del self._workers[killed]
        self._start()
        held = Job.objects.filter(status="running", worker_id=killed)
        held.update(lease_expires_at=Now() - timedelta(seconds=1))
        self._maintenance.reap()


@pytest.fixture
def make_world(settings, clock, make_worker) -> Iterator[Callable[[int], World]]:
    Moody.weights = {}
    yield lambda seed: World(seed=seed, settings=settings, clock=clock, make_worker=make_worker)
    Moody.get_well()
    Moody.weights = {}


def expect_no_mixture(after: Sequence[str]) -> None:
    rows = set(ArticleComment.objects.values_list("pk", flat=True))
    chunks = ArticleCommentEmbedding.objects.select_related("space")
    for chunk in chunks.exclude(embedding=None):
        space = chunk.space
        wanted = vector(space.model, space.model_digest, chunk.passage)
        assert chunk.source_id in rows, after
        assert space.pruned_at is None, (space, after)
        assert np.allclose(chunk.embedding, wanted, atol=1e-3), (space, chunk.passage, after)


def expect_whole_rows(spec: Spec, after: Sequence[str]) -> None:
    """Expect all chunks of each row that is done, if its first one is of its text."""
    found = defaultdict(list)
    chunks = ArticleCommentEmbedding.objects.filter(space__state__in=["active", "building"])
    for chunk in chunks.select_related("source").order_by("position"):
        found[chunk.source, chunk.space_id].append(chunk)
    undone = Job.objects.filter(spec=COMMENT, settled_at=None).exclude(status="succeeded")
    keys = set(undone.values_list("source_pk", flat=True))
    for (row, space_id), chunks in found.items():
        first = chunks[0]
        covers = first.position == 0 and first.text_digest == spec.text_digest(row.text)
        if covers and str(row.pk) not in keys:
            assert passages(chunks) == cut(spec, row.text), (space_id, row.pk, after)


def passages(chunks: Iterable[Any]) -> list[str]:
    return [chunk.passage for chunk in chunks]


def cut(spec: Spec, text: str) -> list[str]:
    return [chunk.text for chunk in planner.split(spec.chunker, text)]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_nothing_is_mixed_cut_short_or_left_over(make_world, seed):
    world = make_world(seed)
    history = []
    for _ in range(STEPS):
        history.append(world.step())
        expect_no_mixture(history[-6:])
        expect_whole_rows(world.spec, history[-6:])

    world.settle()

    active = spaces.active(world.spec, using="default")
    for row in ArticleComment.objects.all():
        found = ArticleCommentEmbedding.objects.filter(space=active, source=row)
        found = found.exclude(embedding=None).order_by("position")
        assert passages(found) == cut(world.spec, row.text)
    assert not Job.objects.filter(status__in=["pending", "running"]).exists()
    assert not Job.objects.filter(status="failed", settled_at=None).exists()
    assert not StagedVector.objects.exists()
