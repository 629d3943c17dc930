"""What is logged while jobs are run: for machines, and without anybody's text."""

from __future__ import annotations

import json
import logging

import pytest
from django.core.management import call_command

from pgembed_django import events
from pgembed_django.queue import worker as loop

pytestmark = pytest.mark.django_db

SECRET = "nobody-may-read-this"


def test_records_can_be_written_as_json_and_hold_no_text(caplog, provider, make_article, run_jobs):
    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        make_article(contents=SECRET)
        make_article(title="poison", contents=SECRET)
        make_article(title="trouble", contents=SECRET)
        run_jobs()
        provider.is_down = True
        make_article(contents=SECRET)
        run_jobs()

    plain = set(vars(logging.makeLogRecord({}))) | {"message"}
    told = [
        {name: value for name, value in vars(record).items() if name not in plain}
        for record in caplog.records
        if record.name == "pgembed_django"
    ]
    assert {fields["event"] for fields in told} >= {
        "pgembed.jobs_claimed",
        "pgembed.batch_embedded",
        "pgembed.batch_failed",
        "pgembed.jobs_completed",
        "pgembed.job_failed",
        "pgembed.job_retried",
        "pgembed.job_released",
        "pgembed.provider_paused",
    }
    assert all(fields["event"] in events.ALL for fields in told)
    assert SECRET not in json.dumps(told)
    assert SECRET not in caplog.text
    assert all(record.msg == events.ALL[record.event].text for record in caplog.records)


def test_a_failed_job_is_told_with_what_finds_it_again(caplog, provider, make_article, run_jobs):
    article = make_article(title="poison")
    with caplog.at_level(logging.WARNING, logger="pgembed_django"):
        run_jobs()

    [record] = [one for one in caplog.records if one.event == "pgembed.job_failed"]
    assert (record.spec, record.source_pk) == ("app.ArticleEmbedding", str(article.pk))
    assert record.signature == "This text is poison."


@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_now_and_then_how_many_rows_it_has_done(
    caplog, provider, make_article, monkeypatch, settings
):
    settings.PGEMBED_CLAIM_LIMIT = 1
    monkeypatch.setattr(loop, "REPORT_SECONDS", 1e-6)  # each round
    for _ in range(3):
        make_article()
    with caplog.at_level(logging.INFO, logger="pgembed_django"):
        call_command("embed_worker", "--drain", verbosity=0)

    progress = [one for one in caplog.records if one.event == "pgembed.worker_progress"]
    [ended] = [one for one in caplog.records if one.event == "pgembed.worker_ended"]
    assert ended.jobs == 3
    # What was done since the last time, and nothing where that is nothing.
    assert progress
    assert all(one.jobs for one in progress)
    assert sum(one.jobs for one in progress) <= 3
    assert all(one.seconds > 0 for one in progress)


def test_an_outage_that_several_requests_meet_is_one_warning(
    caplog, provider, make_article, make_worker, settings
):
    settings.PGEMBED_BATCH_SIZE = 1
    for _ in range(2):
        make_article()
    worker = make_worker(concurrency=2)
    requests = []

    def count(**told):
        requests.append(told)

    events.happened.connect(count, sender=events.PROVIDER_PAUSED)
    provider.is_down = True
    while worker.step():
        pass

    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert record.event == "pgembed.provider_paused"
    assert len(requests) == 2  # which metrics and traces count
