"""Changes from the write-ahead log: read, enqueued and confirmed, without a trigger's job."""

from __future__ import annotations

from typing import Any

import pytest

from pgembed_django.capture import Streamer
from pgembed_django.models import Job
from tests.app.models import Note

pytestmark = pytest.mark.django_db(transaction=True)


def catch_up() -> None:
    Streamer(using="default").catch_up()


def units(spec: Any) -> list[str]:
    pending = Job.objects.filter(spec=spec.key, status="pending")
    return sorted(pending.values_list("source_pk", flat=True))


@pytest.mark.parametrize("how", ["wal", "message"])
def test_what_is_written_is_enqueued(capture, how):
    spec = capture(Note, how)
    catch_up()
    notes = [Note.objects.create(body=f"body {number}") for number in range(3)]
    assert units(spec) == []

    catch_up()

    assert units(spec) == sorted(str(note.pk) for note in notes)
