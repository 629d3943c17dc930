from __future__ import annotations

import signal

import pytest

from pgembed_django.models import Job, Worker
from tests.conftest import embedded_text, wait_until
from tests.live.conftest import is_asleep

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_each_save_wakes_a_worker_that_is_asleep(start_drowsy_worker, make_article):
    start_drowsy_worker()
    article = make_article()
    for number in range(5):
        wait_until(is_asleep)
        article.title = f"Fresh {number}"
        article.save()
        wait_until(lambda: (embedded_text(article) or "").startswith(article.title))


def test_sigterm_leaves_nothing_behind(start_worker, make_article):
    worker = start_worker()
    article = make_article()
    wait_until(lambda: embedded_text(article))

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0
    assert not Job.objects.filter(status="running").exists()
    assert not Worker.objects.exists()
