from __future__ import annotations

import itertools
import signal

import pytest

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Space
from tests.app.models import Article, ArticleEmbedding
from tests.conftest import wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

KEY = "app.ArticleEmbedding"
ROWS = 2000


def test_a_swap_under_load_leaves_no_hole_and_mixes_nothing(start_worker):
    spec = specs.get(KEY)
    Article.objects.bulk_create(
        Article(title=f"Row {n}", contents=f"word{n} of {n}", published_time="2026-01-01T00:00Z")
        for n in range(ROWS)
    )
    start_worker(**told(MODEL="bag-of-words"))
    wait_until(lambda: covered() == ROWS)
    old = spaces.active(spec, using="default")

    writes = itertools.count(1)
    worker = start_worker(**told(MODEL="another"))
    for look in itertools.count():
        number = next(writes) % ROWS
        Article.objects.filter(title=f"Row {number}").update(contents=f"written {look}")
        active = spaces.active(spec, using="default")
        found = search(Article, f"word{ROWS - 1}", limit=5)
        assert found.space in (active, spaces.active(spec, using="default"))
        assert len(found) == 5
        assert covered(active) == ROWS
        if active != old:
            break
        if look == 20:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker = start_worker(**told(MODEL="another"))

    states = dict(Space.objects.filter(spec=KEY).values_list("model", "state"))
    assert states == {"bag-of-words": "retired", "another": "active"}
    wait_until(lambda: covered() == ROWS)


def told(**provider: object) -> dict[str, object]:
    """Return a worker's settings."""
    backend = "pgembed_django.providers.deterministic.DeterministicProvider"
    config = {"BACKEND": backend, "DIMENSIONS": 64, **provider}
    return {
        "PGEMBED_PROVIDERS": {"default": config},
        "PGEMBED_RECONCILE_SECONDS": 1,
        "PGEMBED_LEASE_SECONDS": 5,
        "PGEMBED_REAP_SECONDS": 1,
    }


def covered(space: Space | None = None) -> int:
    """Return how many rows a search in the space would find."""
    space = space or spaces.active(specs.get(KEY), using="default")
    rows = ArticleEmbedding.objects.filter(space=space, embedding__isnull=False)
    return rows.values("source").distinct().count()
