"""embed_backfill, killed and stopped: it goes on where it was."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

import pytest
from django.db import connection

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.spaces import reconcile
from tests.conftest import wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

KEY = "app.ArticleEmbedding"
ROWS = reconcile.MAX_BACKLOG + 500
"""More than a backfill queues without a worker: it then waits, until it is killed or stopped."""


@pytest.fixture
def waiting(start_command: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """A backfill of rows that were written past the triggers, once the backlog is full."""
    spaces.ensure(specs.get(KEY), using="default")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO app_article (title, contents, author, published_time)"
            " SELECT 'Title ' || n, 'Contents', '', now() FROM generate_series(1, %s) AS n",
            [ROWS],
        )
        cursor.execute("DELETE FROM pgembed_job")
    started = start_command("embed_backfill", KEY)
    wait_until(lambda: Job.objects.count() == reconcile.MAX_BACKLOG)
    return started


def test_killed_it_goes_on_where_it_was(waiting, start_command):
    waiting.kill()
    waiting.wait()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgembed_job")  # as if they were embedded

    again = start_command("embed_backfill", KEY, "--no-wait")

    assert again.wait(timeout=60) == 0
    told = again.log.read_text()
    assert f"{KEY}: continuing after" in told
    [looked_at] = re.findall(r"checked ([\d,]+) rows", told)
    # If it was killed between a page and its cursor, that page is looked at again.
    assert looked_at in {"500", "1,000"}
    assert Job.objects.filter(kind="backfill", status="pending").count() >= 500


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_what_is_queued_to_the_workers(waiting, stop):
    waiting.send_signal(stop)

    assert waiting.wait(timeout=60) == 130
    told = waiting.log.read_text()
    assert "Run the same command again to continue with the rest" in told
    assert "Traceback" not in told
    assert Job.objects.filter(status="pending").count() == reconcile.MAX_BACKLOG
