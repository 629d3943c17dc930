"""Faults drawn at random, played by a server and met by real jobs: none is lost or wrongly blamed.

``PGEMBED_TEST_FAULTS=500`` draws as many examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgembed_django import providers, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.testing import run_jobs
from tests import played
from tests.app.models import Article, ArticleEmbedding
from tests.db.conftest import make_due
from tests.unit.test_provider_faults import lasting, outages, passing, poisons

pytestmark = pytest.mark.django_db

EXAMPLES = int(os.environ.get("PGEMBED_TEST_FAULTS", "5"))
AT_ONCE = min(EXAMPLES, 10)
"""Examples of one test. Its transaction is open for that long, and other tests wait for its end."""

MAX_ROUNDS = 80

# The longer ones are those in which a provider may go down with a text. How often it may
# do so at the same one is bounded (see docs/providers.md), so they are here too.
faults = st.tuples(
    st.lists(outages | passing, max_size=8), st.lists(lasting, max_size=2), st.randoms()
)


@pytest.fixture
def server(settings: Any) -> Iterator[played.Ollama]:
    with played.serving(played.Ollama()) as server:
        settings.PGEMBED_BATCH_SIZE = 8
        settings.PGEMBED_PROVIDERS = {
            "default": {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "MODEL": server.model,
                "DIMENSIONS": server.width,
                "OPTIONS": {"base_url": server.url},
            }
        }
        # One for all examples: what the provider was told to wait for must not lie ahead for ever.
        providers.get().clock = played.Clock()
        yield server
        providers.get().close()


@pytest.mark.parametrize("part", range(-(-EXAMPLES // AT_ONCE)))
@settings(
    max_examples=AT_ONCE,
    derandomize=False,  # or else all parts would draw the same in CI
    deadline=None,
    # An example takes a while: shrinking one would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(faults=faults, poisons=poisons, batch_size=st.integers(1, 8))
def test_no_job_is_lost_and_no_innocent_one_is_charged(
    part: int,
    server: played.Ollama,
    faults: Any,
    poisons: list[played.Reply | None],
    batch_size: int,
):
    groups = [*faults[0], *faults[1]]
    faults[2].shuffle(groups)
    Article.objects.all().delete()
    Job.objects.all().delete()
    provider = providers.get()
    provider.batch_size = batch_size
    provider.clock.now += 4000
    server.poison = lambda text: replies.get(text)
    server.faults.clear()
    replies: dict[str, played.Reply | None] = {}
    culprits, innocents = set(), set()
    for number, poison in enumerate(poisons):
        article = Article.objects.create(
            title=f"text {number}", published_time="2026-01-01T00:00:00Z"
        )
        replies[f"text {number}"] = poison
        (culprits if poison else innocents).add(str(article.pk))
    server.faults.extend(fault for group in groups for fault in group)

    for _ in range(MAX_ROUNDS):
        # What the server asked to wait for, pauses and backoffs are over.
        provider.clock.now += 4000
        Job.objects.filter(status="pending").update(run_at="2020-01-01T00:00:00Z")
        run_jobs()
        if not Job.objects.filter(status__in=["pending", "running"]).exists():
            break

    ended = Job.objects.values_list("source_pk", "status", "attempts")
    assert {pk for pk, status, _ in ended if status == "failed"} == culprits
    assert {
        pk: (status, attempts) for pk, status, attempts in ended if pk in innocents
    } == dict.fromkeys(innocents, ("succeeded", 0))
    vectors = dict(ArticleEmbedding.objects.values_list("source__title", "embedding"))
    for title, poison in replies.items():
        if poison is None:
            expected = played.vector_of(title, server.width).tolist()
            assert list(vectors[title]) == pytest.approx(expected, abs=1e-5)


def test_a_unit_whose_two_providers_go_down_at_once_is_given_back(
    settings, make_article, make_worker, provider
):
    [spec] = specs.of(Article)
    worker = make_worker()
    worker.step()
    settings.PGEMBED_PROVIDERS = {
        "default": {**settings.PGEMBED_PROVIDERS["default"], "MODEL": "another"}
    }
    spaces.ensure(spec, using="default")  # built beside the one that is searched
    worker.handler.live.outdate()
    make_article()
    provider.is_down = True

    while worker.step():
        pass

    assert [pool.provider.model for pool in worker.handler.embedder.pools] == [
        "bag-of-words",
        "another",
    ]
    assert worker.held.is_empty
    [job] = Job.objects.filter(spec=spec.key)
    assert job.status == "pending"
    assert job.attempts == 0


def test_while_a_provider_is_paused_a_job_is_claimed_for_its_text_alone_and_once(
    make_article, make_worker, provider, settings, clock
):
    settings.PGEMBED_BATCH_SIZE = 2
    provider.is_down = True
    worker = make_worker(concurrency=2)
    for number in range(9):
        make_article(title=f"text {number}")

    for _ in range(20):
        worker.step()
        make_due()  # what was given back is not out of reach for its backoff's sake

    assert set(Job.objects.values_list("status", "claims", "attempts")) == {("pending", 1, 0)}
    assert set(ArticleEmbedding.objects.values_list("embedding", flat=True)) == {None}

    provider.is_down = False
    clock.now += 4000
    while not worker.handler.units.by_id:
        worker.step()
    assert Job.objects.filter(claims=2).count() == 2  # one batch, until one has succeeded
    while worker.step():
        make_due()
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}
