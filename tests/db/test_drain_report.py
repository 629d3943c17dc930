"""``embed_worker --drain`` tells what failed, and what the rows that are left wait for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.app.models import Note
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("provider")
def test_failed_rows_were_waiting_too(capsys: pytest.CaptureFixture[str]) -> None:
    Note.objects.create(body="poison")

    call_command("embed_worker", "--drain")

    said = capsys.readouterr().out
    assert said == "Embedded no rows. 1 failed: manage.py embed_status says why.\n"


@pytest.mark.usefixtures("provider")
def test_what_a_limit_leaves_waits_for_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(10))

    with pytest.raises(SystemExit):
        call_command("embed_worker", "--drain", "--max-jobs", "1", "--claim", "1")

    said = capsys.readouterr().out
    told = re.match(r"Embedded (\d) rows?\. (\d) left\. Stopped, to be restarted", said)
    assert told
    assert int(told[1]) + int(told[2]) == 10


def test_a_row_in_backoff_does_not_wait_for_the_provider_that_is_down(
    provider: type[PlayedProvider], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.PGEMBED_BACKOFF_SECONDS = 3600
    Note.objects.create(body="trouble")
    call_command("embed_worker", "--drain")
    assert "1 still waiting for the next attempt" in capsys.readouterr().out

    provider.is_down = True
    Note.objects.create(body="fine")
    with pytest.raises(CommandError) as raised:
        call_command("embed_worker", "--drain")

    said = str(raised.value)
    assert re.search(
        r"1 still waiting for the next attempt\. 1 still waiting for a provider that is down\. ",
        said,
    )
    assert "The server is down." in said
