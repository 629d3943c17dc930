"""Events: those of the docs are an interface, all are well formed, and nothing else is logged."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgembed_django import events
from tests import docs_tables
from tests.unit.test_docs import DOCS, ROOT

LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}

told = docs_tables.fields_of_events


def test_every_event_that_is_declared_is_emitted() -> None:
    assert set(told()) == set(events.ALL)


def test_the_events_of_the_page_are_those_that_say_what_they_mean() -> None:
    """tests/unit/test_docs.py holds their levels, fields and meaning to the code."""
    public = {name for name, event in events.ALL.items() if event.means}

    page = (DOCS / "reference/logs.md").read_text()
    assert set(re.findall(r"^- `(pgembed\.\w+)`", page, re.MULTILINE)) == public
    assert 12 <= len(public) <= 20


def test_a_text_names_only_fields_of_its_event() -> None:
    for name, fields in told().items():
        text = events.ALL[name].text
        text % dict.fromkeys(fields, 1)
        assert "%" in text or not fields, name


def test_nothing_is_logged_but_events() -> None:
    for path in (ROOT / "pgembed_django").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_log = node.func.attr in LOGGING and "log" in ast.unparse(node.func.value)
                assert not is_log or path.name == "events.py", path


def test_a_record_has_its_values_in_the_text_and_as_fields(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="pgembed_django"):
        events.tell(events.GAPS_FOUND, spec="blog.Thing", count=3)

    [record] = caplog.records
    assert record.getMessage() == "Found 3 gaps of blog.Thing"
    assert record.msg == events.GAPS_FOUND.text
    assert (record.event, record.spec, record.count) == ("pgembed.gaps_found", "blog.Thing", 3)
    assert record.filename == Path(__file__).name


def test_a_key_of_several_lines_forges_no_line_of_the_log(caplog) -> None:
    key = "17\n2026-01-01 ERROR all is lost\x1b[2J"
    events.tell(events.JOB_FAILED, spec="blog.Page", source_pk=key, job_id=1, signature="refused")

    [record] = caplog.records
    assert "\n" not in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert record.source_pk == key


def test_an_event_without_fields_is_written_as_it_stands(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="pgembed_django"):
        events.tell(events.WORKER_STOPPING)

    assert caplog.messages == ["Stopping: finishing what is in flight"]


def test_a_listener_that_fails_harms_nobody(caplog) -> None:
    heard = []

    def broken(**_: object) -> None:
        raise RuntimeError("a listener")

    def sound(fields: dict[str, object], **_: object) -> None:
        heard.append(fields)

    events.happened.connect(broken, sender=events.GAPS_FOUND)
    events.happened.connect(sound, sender=events.GAPS_FOUND)
    try:
        events.tell(events.GAPS_FOUND, spec="blog.Thing", count=3)
        events.tell(events.WORKER_STOPPING)
    finally:
        events.happened.disconnect(broken, sender=events.GAPS_FOUND)
        events.happened.disconnect(sound, sender=events.GAPS_FOUND)

    assert heard == [{"spec": "blog.Thing", "count": 3}]
    assert "a listener" in caplog.text


@pytest.mark.parametrize("event", events.ALL.values(), ids=list(events.ALL))
def test_a_field_never_hides_an_attribute_of_the_record(event: events.Event) -> None:
    record = logging.makeLogRecord({})
    fields = told()[event.name]

    assert not fields & {*vars(record), "message", "asctime", "event"}


def test_the_example_in_the_docs_is_an_event() -> None:
    page = (DOCS / "reference/logs.md").read_text()
    example = json.loads(page.partition("```json\n")[2].partition("\n```")[0])

    event = events.ALL[example["event"]]
    assert set(example) - {"message", "event"} == told()[event.name]
    assert example["message"] == event.text % example


def test_every_placeholder_has_a_name() -> None:
    for event in events.ALL.values():
        plain = event.text.replace("%%", "")
        assert plain.count("%") == plain.count("%("), event.name


def test_the_json_formatter_in_the_docs_writes_the_event_and_its_fields() -> None:
    """With the library that the page names, in a process of its own: logging is global."""
    page = (DOCS / "reference/logs.md").read_text()
    settings = page.partition("```python\n")[2].partition("\n```")[0]
    program = f"""
import logging.config
{settings}
LOGGING["handlers"]["console"]["stream"] = "ext://sys.stdout"
logging.config.dictConfig(LOGGING)
from pgembed_django import events
events.tell(events.GAPS_FOUND, spec="blog.Thing", count=3)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert json.loads(answer.stdout) == {
        "message": "Found 3 gaps of blog.Thing",
        "event": "pgembed.gaps_found",
        "spec": "blog.Thing",
        "count": 3,
    }
