"""embed_backfill, killed and stopped: it goes on where it was, and leaves nothing leased."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial

import pytest
from django.db import connection

from pgembed_django import spaces, specs
from pgembed_django.models import Job, Worker
from tests.app.models import ArticleEmbedding
from tests.conftest import wait_until
from tests.live.conftest import providers

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

KEY = "app.ArticleEmbedding"
ROWS = 300


@pytest.fixture
def gaps() -> None:
    """Rows that were written past the triggers."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO app_article (title, contents, author, published_time)"
            " SELECT 'Title ' || n, 'Contents', '', now() FROM generate_series(1, %s) AS n",
            [ROWS],
        )
        cursor.execute("DELETE FROM pgembed_job")


@pytest.fixture
def backfill(
    start_command: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.Popen[str]]:
    return partial(start_command, "embed_backfill", KEY)


def test_killed_it_goes_on_where_it_was(gaps, backfill):
    spaces.ensure(specs.get(KEY), using="default")
    killed = backfill("--rate", "50")
    wait_until(lambda: Job.objects.count() >= 100)
    killed.kill()
    killed.wait()
    queued = Job.objects.count()
    assert queued < ROWS

    again = backfill("--no-wait")

    assert again.wait(timeout=60) == 0
    told = again.log.read_text()
    assert f"{KEY}: going on after" in told
    [looked_at] = re.findall(r"(\d+) rows looked at", told)
    # The page at hand when it was killed is looked at again, and no other.
    assert ROWS - queued <= int(looked_at) <= ROWS - queued + 50
    assert Job.objects.filter(kind="backfill", status="pending").count() == ROWS


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing_leased(gaps, backfill, server, stop):
    server.gate.clear()
    stopped = backfill("--inline", PGEMBED_PROVIDERS=providers(server))
    wait_until(lambda: server.times)

    stopped.send_signal(stop)
    # Once it has heard, what it had claimed and not sent is given back.
    wait_until(lambda: Job.objects.filter(status="running").count() <= 32 * len(server.times))
    server.gate.set()

    assert stopped.wait(timeout=60) == 130
    told = stopped.log.read_text()
    assert "the same command goes on with the rest" in told
    assert "Traceback" not in told
    assert not Job.objects.filter(status="running").exists()
    assert not Worker.objects.exists()
    assert backfill("--inline", PGEMBED_PROVIDERS=providers(server)).wait(timeout=60) == 0
    assert ArticleEmbedding.objects.filter(embedding__isnull=False).count() == ROWS
