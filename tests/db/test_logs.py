"""What is logged while jobs are run: for machines, and without anybody's text."""

from __future__ import annotations

import json
import logging

import pytest

from pgembed_django import events

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
