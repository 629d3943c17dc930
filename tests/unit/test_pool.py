"""The pause of a provider that is down, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from pgembed_django.embedding.pool import (
    FIRST_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    Pool,
)
from pgembed_django.exceptions import ProviderError, ProviderLost, ProviderUnavailable
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.http import MAX_WAIT_SECONDS
from tests.played import Clock

DOWN = ProviderUnavailable("The server is down.")


class Scripted(DeterministicProvider):
    """Raises what the script says, and embeds when it is at its end."""

    def __init__(self) -> None:
        super().__init__(alias="scripted", model="m", dimensions=8)
        self.script: list[ProviderError | None] = []
        self.asked: list[list[str]] = []

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        return super().embed_batch(texts)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Pool:
    return Pool(Scripted(), concurrency=3, wake=lambda: None, inline=True, clock=clock)


def fail(pool: Pool, error: ProviderError = DOWN) -> None:
    """Let a request, or the probe, meet this error."""
    pool.provider.script = [error]
    pool.ended(pool.submit([] if pool.is_to_be_probed else ["a text"]))


def wait(pool: Pool, clock: Clock) -> None:
    clock.now += pool.paused_seconds


def in_flight(pool: Pool) -> Future:
    """Start a request whose end has not been noted yet."""
    return pool.submit(["a text"])


def test_an_outage_pauses_the_provider(pool: Pool):
    fail(pool)

    assert pool.is_down
    assert pool.is_waiting
    assert pool.free == 0
    assert pool.reason == "The server is down."


def test_pauses_double_up_to_a_cap_and_are_spread(pool: Pool, clock: Clock):
    pauses = []
    for _ in range(12):
        fail(pool)
        pauses.append(pool.paused_seconds)
        wait(pool, clock)

    middles = [min(FIRST_PAUSE_SECONDS * 2**number, MAX_PAUSE_SECONDS) for number in range(12)]
    for pause, middle in zip(pauses, middles, strict=True):
        assert 0.75 * middle <= pause <= 1.25 * middle
    assert len({pause / middle for pause, middle in zip(pauses, middles, strict=True)}) > 1


def test_it_waits_as_long_as_the_server_asks_but_not_for_ever(pool: Pool, clock: Clock):
    fail(pool, ProviderUnavailable("busy", retry_after_seconds=100))
    assert pool.paused_seconds == 100

    wait(pool, clock)
    fail(pool, ProviderUnavailable("busy", retry_after_seconds=86_400))
    assert pool.paused_seconds == MAX_WAIT_SECONDS


def test_a_server_that_asks_for_less_than_the_pause_does_not_shorten_it(pool: Pool):
    fail(pool, ProviderUnavailable("busy", retry_after_seconds=0.1))

    assert pool.paused_seconds >= 0.75 * FIRST_PAUSE_SECONDS


def test_a_request_that_gave_up_on_a_living_server_does_not_double_the_pause(
    pool: Pool, clock: Clock
):
    for _ in range(5):
        fail(pool, ProviderUnavailable("too many failures", retry_after_seconds=0))
        assert pool.paused_seconds <= 1.25 * FIRST_PAUSE_SECONDS
        wait(pool, clock)
        pool.ended(pool.submit([]))


def test_the_requests_of_one_outage_count_once(pool: Pool):
    pool.provider.script = [DOWN, DOWN, DOWN]
    for future in [in_flight(pool), in_flight(pool), in_flight(pool)]:
        pool.ended(future)

    assert pool.paused_seconds <= 1.25 * FIRST_PAUSE_SECONDS


def test_after_the_pause_it_is_asked_for_a_health_check_with_nobodys_text(pool: Pool, clock: Clock):
    fail(pool)
    assert not pool.is_to_be_probed

    wait(pool, clock)
    assert pool.is_to_be_probed
    assert pool.free == 0

    future = pool.submit([])
    assert not pool.is_to_be_probed, "one probe at a time"
    pool.ended(future)
    assert pool.provider.asked[-1] == [pool.provider.health_check_text]


def test_after_the_health_check_one_request_goes_first_and_then_all(pool: Pool, clock: Clock):
    fail(pool)
    wait(pool, clock)
    pool.ended(pool.submit([]))
    assert pool.is_down
    assert pool.free == 1
    assert not pool.is_waiting

    first = in_flight(pool)
    assert pool.free == 0
    pool.ended(first)

    assert not pool.is_down
    assert pool.reason == ""
    assert pool.free == 3


def test_a_health_check_alone_does_not_forget_how_long_the_pause_was(pool: Pool, clock: Clock):
    fail(pool)
    wait(pool, clock)
    pool.ended(pool.submit([]))

    fail(pool)

    assert pool.paused_seconds >= 0.75 * 2 * FIRST_PAUSE_SECONDS


def test_after_a_recovery_pauses_begin_anew(pool: Pool, clock: Clock):
    for _ in range(6):
        fail(pool)
        wait(pool, clock)
    pool.ended(pool.submit([]))
    pool.ended(in_flight(pool))

    fail(pool)

    assert pool.paused_seconds <= 1.25 * FIRST_PAUSE_SECONDS


def test_a_failure_that_is_no_outage_is_an_answer(pool: Pool, clock: Clock):
    pool.provider.script = [ProviderError("cannot"), None, ProviderError("cannot")]
    pool.ended(in_flight(pool))

    assert not pool.is_down


def test_a_text_sent_alone_follows_a_health_check_and_has_no_company(pool: Pool):
    alone = pool.submit(["a doubtful text"], exclusively=True)

    assert pool.free == 0
    assert pool.provider.asked == [[pool.provider.health_check_text], ["a doubtful text"]]
    pool.ended(alone)
    assert pool.free == 3


def test_a_text_is_not_sent_alone_where_the_health_check_fails(pool: Pool):
    pool.provider.script = [ProviderLost("bad gateway")]

    future = pool.submit(["a doubtful text"], exclusively=True)

    assert pool.provider.asked == [[pool.provider.health_check_text]]
    assert type(future.exception()) is ProviderUnavailable


def test_a_used_up_quota_lets_it_wait_without_being_down(pool: Pool, clock: Clock):
    pool.await_quota(PATIENCE_SECONDS)

    assert pool.free == 0
    assert pool.paused_seconds == PATIENCE_SECONDS
    assert not pool.is_down
    assert not pool.is_waiting, "its units are held for so short a while"

    wait(pool, clock)
    assert pool.free == 3


def test_units_are_not_held_through_a_long_wait_for_a_quota(pool: Pool):
    pool.await_quota(PATIENCE_SECONDS + 1)

    assert pool.is_waiting
    assert not pool.is_to_be_probed


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("20", 20), ("Thu, 01 Jan 1970 00:16:50 GMT", 0), (float("nan"), 0), (-5, 0), ("inf", 600)],
)
def test_what_a_header_says_may_be_handed_up_as_it_is(pool: Pool, given: str, seconds: float):
    fail(pool, ProviderUnavailable("Busy.", retry_after_seconds=given))

    assert pool.is_down
    assert pool.paused_seconds >= max(seconds, FIRST_PAUSE_SECONDS * 0.75)
    assert pool.paused_seconds <= max(seconds, FIRST_PAUSE_SECONDS * 1.25)
