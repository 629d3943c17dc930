"""Tasks that are moved over from another queue: each stage, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now

from pgembed_django.models import Task, TaskKey, TaskOutcome
from pgembed_django.tasks import moving, running
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note

pytestmark = pytest.mark.django_db(transaction=True)

sent: list[tuple[str, Any, Any, str]] = []


def send(*given: Any) -> None:
    """Send to a list, which is the other queue."""
    sent.append(given)


def lose(*given: Any) -> None:
    """Fail to send."""
    raise ConnectionError("no broker")


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    sent.clear()
    tasks.seen.clear()
    yield
    sent.clear()


@pytest.fixture
def stage(settings: Any) -> Any:
    def choose(stage: str, *, by: Any = send) -> None:
        move = {"stage": stage, "send": f"{__name__}.{by.__name__}"}
        options = {"move": move} if stage != "off" else {}
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}

    return choose


def consume_all() -> None:
    while sent:
        moving.consume(*sent.pop(0))


def bodies() -> list[str]:
    return sorted(Note.objects.values_list("body", flat=True))


def compared() -> list[str]:
    """What ``embed_tasks compare`` says of what was enqueued up to now."""
    out = StringIO()
    if not moving.compare(since=60, settled=0.0001, limit=1, using="default"):
        call_command("embed_tasks", "compare", "--settled", "0.0001", stdout=out)
        return []
    with pytest.raises(CommandError) as raised:
        call_command("embed_tasks", "compare", "--settled", "0.0001", stdout=out)
    assert raised.value.returncode == 1
    return [line.partition(":")[0] for line in out.getvalue().splitlines()]


def test_both_run_and_agree(stage):
    stage("both")
    tasks.add.enqueue(1, 2)
    assert run_tasks() == 1
    assert compared() == ["missing in the other queue"]
    consume_all()
    assert compared() == []


def test_a_result_that_differs_is_found(stage):
    stage("both")
    result = tasks.add.enqueue(1, 2)
    run_tasks()
    moving.note(
        f"task-{result.id}", "tests.app.tasks.add", "succeeded",
        consumer=moving.THERE, using="default", result=4,
    )  # fmt: skip
    assert compared() == ["differing results"]


def test_what_ran_twice_is_found(stage):
    stage("both")
    tasks.add.enqueue(1, 2)
    run_tasks()
    [message] = sent
    moving.consume(*message)
    moving.consume(*message)
    assert compared() == ["doubled in the other queue"]


def test_the_shadow_claims_and_executes_nothing(stage):
    stage("shadow")
    tasks.note.enqueue("hello")
    assert run_tasks() == 1
    assert bodies() == []
    consume_all()
    assert bodies() == ["hello"]
    assert compared() == []


def test_nothing_is_sent_before_the_commit_or_after_a_rollback(stage):
    stage("both")
    with transaction.atomic():
        tasks.note.enqueue("hello")
        assert not sent
        transaction.set_rollback(True)
    assert not sent
    assert not Task.objects.exists()


def test_the_shadow_runs_what_could_not_be_sent(stage, monkeypatch):
    stage("shadow", by=lose)
    tasks.note.enqueue("hello")
    assert run_tasks() == 0
    assert bodies() == []
    monkeypatch.setattr(moving, "SEND_SECONDS", 0.0)
    Task.objects.update(run_at=Task.objects.get().created_at)
    assert run_tasks() == 1
    assert bodies() == ["hello"]


def test_a_key_is_sent_once(stage):
    stage("both")
    tasks.remember.enqueue("a", "1")
    tasks.remember.enqueue("a", "1")
    assert [message[3] for message in sent] == ["a:1"]


def test_a_key_that_is_used_again_after_it_has_expired_is_sent_again(stage):
    stage("shadow")
    tasks.remember.enqueue("a", "1")
    assert run_tasks() == 1
    consume_all()
    TaskKey.objects.update(expires_at=Now() - timedelta(seconds=1))
    tasks.remember.enqueue("a", "1")
    assert len(sent) == 1
    assert run_tasks() == 1
    consume_all()
    assert bodies() == ["a 1", "a 1"]


def test_postgres_alone_leaves_the_other_consumer_idle(stage):
    stage("both")
    tasks.note.enqueue("hello")
    stage("postgres")
    tasks.note.enqueue("bye")
    assert run_tasks() == 2
    consume_all()
    assert bodies() == ["bye", "hello"]


def test_what_the_shadow_left_to_the_other_queue_is_run_there_in_later_stages(stage):
    stage("shadow")
    tasks.note.enqueue("hello")
    run_tasks()
    message = sent[0]
    stage("postgres")
    consume_all()
    assert bodies() == ["hello"]
    moving.consume(*message)  # redelivered
    assert bodies() == ["hello"]


def test_a_key_that_the_shadow_left_to_the_other_queue_twice_is_run_there_in_later_stages(stage):
    stage("shadow")
    tasks.remember.enqueue("a", "1")
    run_tasks()
    consume_all()
    TaskKey.objects.update(expires_at=Now() - timedelta(seconds=1))
    tasks.remember.enqueue("a", "1")
    run_tasks()
    stage("postgres")
    consume_all()
    assert bodies() == ["a 1", "a 1"]


def test_the_other_queue_gives_the_context_that_ours_does(stage):
    stage("both")
    tasks.behave.enqueue("again")
    tasks.anote.enqueue("hello")
    [first, second] = sent
    with pytest.raises(moving.RetryAsked):
        moving.consume(*first)
    moving.consume(*second)
    assert bodies() == ["hello"]
    assert TaskOutcome.objects.filter(outcome="failed").count() == 0
    ours = {name for name in vars(running.Context) if not name.startswith("_")} - {"run"}
    assert ours <= {*dir(moving.OtherContext)}


def test_no_two_keys_have_one_name():
    given = [("a:b", "c"), ("a", "b:c"), ("", "a:b:c"), ("a%3Ab", "c"), ("task", "1"), ("", None)]
    assert len({moving.key_of(1, tenant=tenant, once=once) for tenant, once in given}) == 6


def test_what_was_enqueued_for_postgres_alone_is_run_in_the_shadow(stage):
    stage("postgres")
    tasks.note.enqueue("hello")
    stage("shadow")
    assert run_tasks() == 1
    assert bodies() == ["hello"]


def test_off_records_nothing(stage):
    stage("off")
    tasks.note.enqueue("hello")
    assert run_tasks() == 1
    assert not TaskOutcome.objects.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stage": "bth", "send": "a.b"}, "Choose one of: both, shadow, postgres."),
        ({"stage": "both"}, 'Set "send".'),
        ("both", "Set it to"),
    ],
)
def test_a_bad_option_is_told(given, said):
    class Backend:
        options = {"move": given}

    [(_, remedy)] = moving.problems(Backend())
    assert said in remedy
