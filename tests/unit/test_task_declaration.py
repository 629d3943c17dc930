"""What ``@task`` refuses when a module is imported, and what a call's keys are."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from pgembed_django.tasks import Task, arguments, task
from pgembed_django.tasks.api import InvalidTask
from pgembed_django.tasks.declaration import Options
from tests.unit.test_docs import DOCS


def extract(tenant_id: str, request: str | None, *messages: str, **rest: Any) -> None:
    """Is declared anew by each test."""


def tick(count: int = 1, *rest: int) -> None:
    """Needs no argument."""


LATEST = {"coalesce": "{tenant_id}", "bump": "latest"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"onec": "{request}"}, "no option 'onec'. Did you mean 'once'?"),
        ({"tenant": "{tenant}"}, "'tenant', which is no parameter .* Did you mean 'tenant_id'"),
        ({"once": "{request} {0}"}, "names '0'"),
        ({"once": "{}"}, "names ''"),
        ({"once": "{request:{width}}"}, "names 'width'"),
        ({"serial": "{request"}, "no format string: .* Double a brace"),
        ({"serial": 3}, "serial=3 is no string"),
        ({"coalesce": "{request}", "once": "{request}"}, "exclude each other"),
        ({"bump": "later"}, "bump='later' is unknown. Did you mean 'latest'?"),
        ({"bump": "replace"}, "bump='replace' is for calls that coalesce"),
        (LATEST, "Set max_wait"),
        ({**LATEST, "max_wait": -1}, "max_wait=-1 is out of range"),
        ({"coalesce": "{tenant_id}", "max_wait": 5}, "only used with bump='latest'"),
        ({"attempts": 0}, "attempts=0 is no whole number from 1 to 100"),
        ({"attempts": 101}, "attempts=101"),
        ({"attempts": 2.5}, "attempts=2.5"),
        ({"attempts": True}, "attempts=True"),
        ({"backoff": -0.1}, "backoff=-0.1 is out of range"),
        ({"backoff": "5"}, "backoff='5' is no number of seconds"),
        ({"backoff": float("nan")}, "backoff=nan is out of range"),
        ({"timeout": 0}, "timeout=0 is out of range"),
        ({"timeout": timedelta(minutes=1)}, "write timeout=60"),
        ({"once_for": 3600}, "once_for=3600 is no timedelta"),
        ({"once_for": timedelta(0)}, "once_for=.* out of range"),
        ({"keep_results": 3600}, "keep_results=3600 is no timedelta"),
        ({"keep_results": timedelta(seconds=-1)}, "keep_results=.* out of range"),
        ({"retry_on": ValueError}, r"write retry_on=\(ValueError,\)"),
        ({"give_up_on": (3,)}, "give_up_on=.* is no tuple of exception classes"),
        ({"every": timedelta(hours=1)}, "requires tenant_id, request"),
        ({"provider": ""}, "provider='' is no name"),
        ({"queue_name": "gpu"}, "Queue 'gpu' is not valid"),
        ({"priority": 101}, "priority must be a whole number"),
    ],
)
def test_an_option_that_does_not_fit_is_named_with_the_remedy(options, said):
    with pytest.raises(InvalidTask, match=said):
        task(**options)(extract)


@pytest.mark.parametrize(
    ("every", "said"),
    [
        (timedelta(0), "too short"),
        (60, "neither a timedelta nor a cron line"),
        ("every minute", "no cron line"),
        ("0 0 30 2 *", "no cron line"),
    ],
)
def test_a_schedule_that_never_comes_is_refused(every, said):
    with pytest.raises(InvalidTask, match=said):
        task(every=every)(tick)


@pytest.mark.parametrize("every", [timedelta(minutes=5), "*/5 * * * *"])
def test_a_schedule_needs_no_arguments(every):
    assert task(every=every)(tick).every == every


def test_all_problems_are_told_at_once():
    with pytest.raises(InvalidTask, match=r"attempts=0 .* backoff=-1"):
        task(attempts=0, backoff=-1)(extract)


def test_a_queue_with_a_dot_could_be_taken_for_a_spec(settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["a.b"]}}
    with pytest.raises(InvalidTask, match=r"no dot: 'a\.b'"):
        task(queue_name="a.b")(extract)


class TestKeys:
    def test_are_formatted_over_the_arguments_and_defaults(self):
        declared = task(tenant="{tenant_id}", once="{request}:{messages[0]}", serial="{rest}")(
            extract
        )
        assert declared.keys(["a", "r", "m"], {"more": 1}) == {
            "tenant": "a",
            "once": "r:m",
            "coalesce": "",
            "serial": "{'more': 1}",
        }

    def test_of_none_are_none(self):
        declared = task(tenant="{tenant_id}", once="{tenant_id}:{request}")(extract)
        assert declared.keys(["a", None], {})["once"] == ""

    def test_need_the_arguments_of_the_function(self):
        with pytest.raises(TypeError, match=r"extract\(tenant_id.*missing .* 'request'"):
            task(extract).keys(["a"], {})

    def test_leave_the_context_out(self):
        def with_context(context: Any, number: int) -> None: ...

        with_context.__qualname__ = "with_context"
        assert task(takes_context=True, serial="{number}")(with_context).keys([3], {}) == {
            "tenant": "",
            "once": "",
            "coalesce": "",
            "serial": "3",
        }


class Colour(StrEnum):
    RED = "red"


class TestArguments:
    @pytest.mark.parametrize(
        "value", [None, True, 3, 2**70, 1.5, "é🐟", Colour.RED, b"abc", [1, [2]], {"a": {"b": []}}]
    )
    def test_of_json_are_stored(self, value):
        args, kwargs = arguments.normalized([value], {"one": value})
        assert arguments.stored(args, kwargs)

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (datetime(2026, 1, 1), "Unsupported type: .*datetime.* in argument 1"),
            ([{1, 2}], "Unsupported type: .*set"),
            ({1: "a"}, "the key 1"),
            (object(), "Use a string or a number, of a row its primary key"),
        ],
    )
    def test_of_other_types_are_refused(self, value, said):
        with pytest.raises(TypeError, match=said):
            arguments.normalized([value], {})

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ("a\0b", "argument 'one' has a NUL character"),
            (["\ud800"], "half of a surrogate pair"),
            ({"\0": 1}, "NUL"),
            (b"\xff", "not UTF-8"),
            (float("nan"), "argument 'one' has nan"),
            (float("-inf"), "-inf"),
        ],
    )
    def test_that_the_database_cannot_store_are_refused(self, value, said):
        with pytest.raises(ValueError, match=said):
            arguments.normalized([], {"one": value})


def test_every_keyword_of_the_decorator_is_in_the_docs_with_its_default() -> None:
    section = (DOCS / "reference/tasks.md").read_text().partition("## Enqueue")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, re.MULTILINE))
    named = {one.name: one.default for one in inspect.signature(task).parameters.values()}
    del named["function"], named["given"]
    ours = {
        field.name: field.default for field in fields(Task) if field.name in Options.__annotations__
    }

    assert set(ours) == set(Options.__annotations__)
    assert set(documented) == {*named, *ours}
    for name, default in {**named, **ours}.items():
        assert eval(documented[name], {"timedelta": timedelta}) == default, name
