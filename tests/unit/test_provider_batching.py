"""One bad text fails alone, an outage charges none, and the number of requests is bounded."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil, log2
from traceback import format_exception

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgembed_django.core.threads import Threads
from pgembed_django.exceptions import (
    InputRefused,
    InputTooLong,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers import batching
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from tests import played
from tests.played.provider import RaisingProvider

Make = Callable[..., OpenAIProvider]
REFUSED = played.reply({"error": {"message": "not this one"}}, 400)
BROKEN = played.reply({"error": {"message": "internal error"}}, 500)
# A proxy's. Waiting for a time-out of our own would take as long as it is.
LATE = played.plain(504, "upstream request timeout")


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def texts_with(bad: set[int], count: int = 32) -> list[str]:
    return [f"{'bad' if number in bad else 'good'} text {number}" for number in range(count)]


def charged(outcomes: list[Embedded | ProviderError]) -> set[int]:
    return {
        index
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, ProviderError) and not isinstance(outcome, ProviderUnavailable)
    }


@pytest.mark.parametrize("fault", [REFUSED, BROKEN])
@pytest.mark.parametrize("bad", [{0}, {31}, {3, 4}, {0, 17, 31}])
def test_the_culprits_stand_alone_within_a_bound(make_provider: Make, fault, bad: set[int]):
    provider = make_provider()
    provider.played.poison = lambda text: fault if text.startswith("bad") else None

    outcomes = provider.embed_each(texts_with(bad))

    assert charged(outcomes) == bad
    assert sum(isinstance(outcome, Embedded) for outcome in outcomes) == 32 - len(bad)
    assert len(provider.played.asked) <= 2 + len(bad) * (2 * ceil(log2(32)) + 4)


def test_no_text_is_embedded_twice(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: REFUSED if text.startswith("bad") else None

    provider.embed_each(texts_with({5, 20}))

    embedded = [
        text
        for asked in provider.played.asked
        if not any(text.startswith("bad") for text in asked)
        for text in asked
    ]
    texts = [text for text in embedded if text != provider.health_check_text]
    assert len(texts) == len(set(texts)) == 30


def test_all_refused_texts_are_refused(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: REFUSED if text.startswith("bad") else None

    outcomes = provider.embed_each(texts_with(set(range(32))))

    assert all(isinstance(outcome, InputRefused) for outcome in outcomes)
    assert len(provider.played.asked) <= 6 * 32


def test_unclear_failures_have_a_budget_and_what_is_left_is_given_back(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: BROKEN if text.startswith("bad") else None

    outcomes = provider.embed_each(texts_with(set(range(32))))

    assert charged(outcomes)
    assert isinstance(outcomes[31], ProviderUnavailable)
    assert outcomes[31].retry_after_seconds == 0
    assert len(provider.played.asked) <= 60


def test_a_passing_failure_charges_none(make_provider: Make):
    provider = make_provider()
    provider.played.faults.extend([BROKEN, None, BROKEN, None, BROKEN])

    outcomes = provider.embed_each(texts_with(set()))

    assert all(isinstance(outcome, Embedded) for outcome in outcomes)


def test_a_server_that_is_broken_for_all_charges_none(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: BROKEN

    with pytest.raises(ProviderUnavailable, match="internal error"):
        provider.embed_each(texts_with(set()))
    assert len(provider.played.asked) == 2


def test_what_was_embedded_before_an_outage_is_kept(make_provider: Make):
    provider = make_provider(batch_size=8)
    provider.played.faults.extend([None, None, played.plain(503, "restarting")])

    outcomes = provider.embed_each(texts_with(set()))

    assert all(isinstance(outcome, Embedded) for outcome in outcomes[:16])
    assert all(isinstance(outcome, ProviderUnavailable) for outcome in outcomes[16:])
    assert len(provider.played.asked) == 3


def test_a_batch_that_is_too_slow_is_halved_kept_small_and_grown_again(make_provider: Make):
    clock = played.Clock()
    provider = make_provider(clock=clock)
    texts = texts_with(set())
    provider.played.faults.append(LATE)

    assert charged(provider.embed_each(texts)) == set()
    assert [len(asked) for asked in provider.played.asked] == [32, 1, 16, 16]

    provider.played.seen.clear()
    provider.embed_each(texts)
    assert max(len(asked) for asked in provider.played.asked) < 20

    for _ in range(2):
        clock.now += batching.HOLD_SECONDS
        provider.embed_each(texts)
    provider.played.seen.clear()
    provider.embed_each(texts)
    assert [len(asked) for asked in provider.played.asked] == [32]


def test_a_text_too_slow_for_the_server_is_charged_when_others_are_answered(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: LATE if text.startswith("bad") else None

    good, bad = provider.embed_each(["good", "bad"])

    assert isinstance(good, Embedded)
    assert not isinstance(bad, ProviderUnavailable)
    assert "too much for the server" in str(bad)


def test_a_text_is_not_charged_while_every_second_answer_is_a_time_out(make_provider: Make):
    provider = make_provider()
    provider.played.faults.extend([LATE, None, LATE, None, LATE, None])

    [outcome] = provider.embed_each(["good"])

    assert isinstance(outcome, Embedded)


def test_a_server_that_answers_nothing_is_asked_for_less_the_next_time(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: LATE

    with pytest.raises(ProviderLost):
        provider.embed_each(texts_with(set()))
    provider.played.poison = lambda text: None
    provider.played.seen.clear()
    provider.embed_each(texts_with(set()))

    assert max(len(asked) for asked in provider.played.asked) < 20


def test_time_outs_are_counted_and_what_is_left_is_given_back(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: LATE if "text" in text else None

    with pytest.raises(ProviderUnavailable) as raised:
        provider.embed_each(texts_with(set()))

    assert raised.value.retry_after_seconds == 0
    assert [len(asked) for asked in provider.played.asked] == [32, 1, 16, 8, 4]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0.0, "a vector of zeros"),
        (float("nan"), "a vector that is not finite"),
        (float("-inf"), "a vector that is not finite"),
        (1e39, "a vector that is not finite"),
    ],
)
def test_a_server_with_no_vector_for_anything_is_the_configurations_fault(
    make_provider, number, said
):
    bad = [0.5] * 15 + [number] if number else [0.0] * 16
    provider = make_provider()
    answer = played.reply({"data": [{"embedding": bad, "index": 0}]})
    provider.played.faults.extend([answer, answer])

    with pytest.raises(ProviderUnavailable, match=f"answered {said} to the health check"):
        provider.embed_each(["one"])


def test_many_long_texts_cost_few_requests(make_provider: Make):
    provider = make_provider(played.OpenAI(context=100), too_long="refuse")
    texts = ["word " * (100 if number % 8 == 0 else 10) for number in range(32)]

    outcomes = provider.embed_each(texts)

    assert [isinstance(outcome, InputTooLong) for outcome in outcomes] == [
        number % 8 == 0 for number in range(32)
    ]
    assert len(provider.played.asked) <= 16


def test_what_fitted_one_text_is_tried_first_with_the_next():
    for provider in played.making(OllamaProvider, played.Ollama):
        provider = provider(played.Ollama(context=100))
        provider.embed_each(["word " * 1000])
        provider.played.seen.clear()

        [embedded] = provider.embed_each(["other " * 1000])

        assert embedded.was_cut
        assert len(provider.played.asked) == 2


def test_a_model_that_takes_nothing_at_all_is_the_configurations_fault(make_provider: Make):
    provider = make_provider(played.OpenAI(context=0))

    with pytest.raises(ProviderUnavailable, match="Even the health check"):
        provider.embed_each(["some words"])


@pytest.mark.parametrize(("too_long", "outcome"), [("cut", Embedded), ("refuse", InputTooLong)])
def test_a_known_context_is_kept_without_asking(too_long: str, outcome: type):
    provider = DeterministicProvider(
        alias="tested", model="m", dimensions=8, max_input_tokens=4, too_long=too_long
    )

    fitting, longer = provider.embed_each(["one two three four", "one two three four five"])

    assert fitting.was_cut is False
    assert isinstance(longer, outcome)
    if too_long == "cut":
        [expected] = provider.embed_documents(["one two three four"])
        assert longer.was_cut is True
        assert longer.vector == pytest.approx(expected)


def test_vectors_are_in_no_repr(make_provider: Make):
    assert repr(make_provider().embed_each(["one"])) == "[Embedded(was_cut=False)]"


class Raising(DeterministicProvider):
    """A provider of the user's own, with an error of its own for one text."""

    def embed_batch(self, texts):
        if any("bad" in text for text in texts):
            raise KeyError(texts[0])
        return super().embed_batch(texts)


def test_whatever_a_provider_raises_is_charged_to_the_text_that_it_raises_for():
    provider = Raising(alias="mine", model="m", dimensions=8)

    outcomes = provider.embed_each(texts_with({7}))

    assert charged(outcomes) == {7}
    assert "KeyError" in str(outcomes[7])
    assert "bad text" not in str(outcomes[7])


class Echoing(DeterministicProvider):
    """Quotes what it was sent in errors of ours, as a server does behind a library."""

    def embed_batch(self, texts):
        if any("diary" in text for text in texts):
            raise InputRefused(f"cannot embed {texts[0][texts[0].index('diary') :]!r}")
        return super().embed_batch(texts)


@pytest.mark.parametrize("text", ["my private diary of last summer", "diary"])
def test_an_error_of_a_provider_of_the_users_own_quotes_no_text_either(text: str):
    provider = Echoing(alias="mine", model="m", dimensions=8, document_prefix="passage: ")

    [outcome] = provider.embed_each([text])
    with pytest.raises(InputRefused) as raised:
        provider.embed_query(text)

    assert str(outcome) == str(raised.value) == "cannot embed '[the text]'"
    assert isinstance(outcome, InputRefused)


class Panic(BaseException):
    """What a tokenizer written in Rust raises is no ``Exception``."""

    __module__ = "pyo3_runtime"


class Panicking(DeterministicProvider):
    """Panics at one text."""

    def embed_batch(self, texts):
        if any("bad" in text for text in texts):
            raise Panic(texts[0])
        return super().embed_batch(texts)


def test_a_panic_is_charged_to_the_text_that_it_is_about():
    provider = Panicking(alias="mine", model="m", dimensions=8)

    outcomes = provider.embed_each(texts_with({7}))

    assert charged(outcomes) == {7}
    assert str(outcomes[7]) == "m (provider 'mine') raised Panic."


class Exiting(DeterministicProvider):
    """Ends its thread at one text, as a library does that believes to be a program."""

    def embed_batch(self, texts):
        if any("bad" in text for text in texts):
            sys.exit(3)
        return super().embed_batch(texts)


def test_an_exit_in_a_workers_pool_is_charged_to_the_text_that_it_is_about():
    provider = Exiting(alias="mine", model="m", dimensions=8)

    pool = Threads(1, name="test")

    outcomes = pool.submit(provider.embed_each, texts_with({7})).result()

    pool.shutdown()
    assert charged(outcomes) == {7}
    assert str(outcomes[7]) == "m (provider 'mine') raised SystemExit."


@pytest.mark.parametrize("ask", ["embed_each", "embed_documents"])
def test_an_exit_in_the_main_thread_ends_it(ask):
    provider = Exiting(alias="mine", model="m", dimensions=8)

    with pytest.raises(SystemExit):
        getattr(provider, ask)(texts_with({7}))


class Interrupt(BaseException):
    """What is thrown into a thread, like dramatiq's TimeLimitExceeded."""


class Interrupted(DeterministicProvider):
    """Is asked in a thread whose time is up meanwhile."""

    def embed_batch(self, texts):
        raise Interrupt

    def count_tokens(self, text):
        raise Interrupt


@pytest.mark.parametrize("ask", ["embed_documents", "weigh_document"])
def test_what_is_thrown_into_a_thread_of_the_project_ends_what_runs_there(ask):
    provider = Interrupted(
        alias="mine", model="m", dimensions=8, max_input_tokens=9, max_tokens_per_batch=20
    )

    with ThreadPoolExecutor(1) as its_own, pytest.raises(Interrupt):
        its_own.submit(getattr(provider, ask), "text").result()


class Miscounting(DeterministicProvider):
    """Has a tokenizer that does not take one text."""

    def count_tokens(self, text):
        if "bad" in text:
            return self.count_bad(text)
        return len(text.split())


def panic(text):
    raise Panic(text)


@pytest.mark.parametrize("count_bad", [panic, {}.__getitem__, float, lambda text: 2.5, str])
def test_a_text_that_cannot_be_counted_is_sent_all_the_same(count_bad):
    provider = Miscounting(
        alias="mine", model="m", dimensions=8, max_input_tokens=9, max_tokens_per_batch=20
    )
    provider.count_bad = count_bad

    outcomes = provider.embed_each(texts_with({7}))

    assert all(isinstance(outcome, Embedded) for outcome in outcomes)
    assert provider.weigh_document("bad text") > 0


def test_a_provider_that_raises_at_a_plain_word_too_charges_no_text():
    provider = RaisingProvider(alias="mine", model="m", dimensions=8)

    with pytest.raises(ProviderUnavailable, match="raised RuntimeError") as raised:
        provider.embed_each(texts_with({7}))

    assert "good text" not in "".join(format_exception(raised.value))


class Mute(ProviderUnavailable):
    def __str__(self) -> str:
        raise KeyError("error")


class MuteProvider(DeterministicProvider):
    def embed_batch(self, texts):
        raise Mute("down")


def test_an_outage_without_a_message_is_an_outage():
    provider = MuteProvider(alias="mine", model="m", dimensions=8)

    with pytest.raises(ProviderUnavailable, match="raised Mute, which has no message"):
        provider.embed_each(texts_with({7}))


class Returning(DeterministicProvider):
    """A provider of the user's own, that returns something else than an array."""

    def embed_batch(self, texts):
        return self.made_of(super().embed_batch(texts))


@pytest.mark.parametrize("made_of", [np.ndarray.tolist, list, tuple, np.float64, memoryview])
def test_a_provider_may_return_whatever_holds_numbers(made_of):
    provider = Returning(alias="mine", model="m", dimensions=8)
    provider.made_of = made_of

    found = provider.embed_documents(["one", "two"])

    expected = DeterministicProvider(alias="mine", model="m", dimensions=8)
    assert found == pytest.approx(expected.embed_documents(["one", "two"]))
    assert provider.embed_query("one") == pytest.approx(expected.embed_query("one"))
    assert provider.probe().ok


@pytest.mark.parametrize(
    "answer", [None, 5, "numbers", {"a": [1.0]}, [[1.0], [1.0, 2.0]], iter("")]
)
def test_what_holds_no_numbers_is_told_by_its_type(answer):
    provider = Returning(alias="mine", model="m", dimensions=8)
    provider.made_of = lambda vectors: answer
    kind = type(answer).__name__

    with pytest.raises(ProviderUnavailable, match=rf"embed_batch\(\) returned {kind}\."):
        provider.embed_each(["one", "two"])
    assert f"returned {kind}. It must" in provider.probe().message


def spoil(rows: Vectors, fault: str, which: Sequence[int]) -> object:
    """Return an answer in which some rows are bad, or none is good, or raise an error."""
    found: list[object] = rows.tolist()
    match fault:
        case "refused":
            raise InputRefused("not this one")
        case "broken":
            raise ProviderError("internal error")
        case "crash":
            raise KeyError("model")
        case "too few":
            return found[1:]
        case "too wide":
            return [[*row, 1.0] for row in rows.tolist()]
    for index in which:
        found[index] = {
            "zeros": [0.0] * rows.shape[1],
            "nan": [float("nan")] * rows.shape[1],
            "null": None,
            "empty": [],
            "narrow": [1.0],
        }[fault]
    return found


class Spoiled(DeterministicProvider):
    """Has faults in its next answers to whatever is sent, and others that a text always causes."""

    faults: deque[str | None]
    bad: dict[str, str]
    requests = 0

    def embed_batch(self, texts):
        self.requests += 1
        rows = super().embed_batch(texts)
        fault = self.faults.popleft() if self.faults else None
        if fault:
            return spoil(rows, fault, range(len(texts)))
        which = [index for index, text in enumerate(texts) if text in self.bad]
        return spoil(rows, self.bad[texts[which[0]]], which) if which else rows


def make_spoiled(faults: Sequence[str | None] = (), **bad: str) -> Spoiled:
    provider = Spoiled(alias="mine", model="m", dimensions=8, batch_size=32)
    provider.faults, provider.bad = deque(faults), bad
    return provider


PASSING = ["zeros", "nan", "null", "empty", "refused", "broken", "crash", "too few"]
FAULTS = [*PASSING, "narrow"]


@pytest.mark.parametrize("count", [1, 2, 32])
@pytest.mark.parametrize("fault", PASSING)
def test_one_bad_answer_costs_no_text_its_vector(fault: str, count: int):
    provider = make_spoiled([fault])

    outcomes = provider.embed_each(texts_with(set(), count))

    assert all(isinstance(outcome, Embedded) for outcome in outcomes)
    assert provider.requests <= 4


@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_is_charged_after_it_failed_alone_beside_plain_words(fault: str):
    provider = make_spoiled(poison=fault)

    [*_, poisoned] = outcomes = provider.embed_each([*texts_with(set(), 31), "poison"])

    assert charged(outcomes) == {31}
    assert not isinstance(poisoned, ProviderUnavailable)
    assert provider.requests <= 1 + 2 * ceil(log2(32)) + 5


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("texts", [["one"], texts_with(set(), 32)])
def test_two_replicas_one_of_them_broken_charge_no_text(fault: str, texts: list[str]):
    provider = make_spoiled([fault, None] * 100)

    outcomes = provider.embed_each(texts)

    assert charged(outcomes) == set()
    assert any(isinstance(outcome, Embedded) for outcome in outcomes)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_breaks_while_a_text_is_tried_again_charges_no_text(fault: str):
    provider = make_spoiled([fault, None, *[fault] * 100])

    with pytest.raises(ProviderUnavailable):
        provider.embed_each(["one"])


bursts = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.integers(1, 9), st.integers(2, 6)), max_size=8
).map(lambda drawn: [fault for one, bad, good in drawn for fault in [one] * bad + [None] * good])


@settings(max_examples=150, deadline=None)
@given(
    faults=bursts,
    bad=st.dictionaries(st.integers(0, 19), st.sampled_from([*FAULTS, "too wide"])),
    batch_size=st.integers(1, 20),
)
def test_whatever_fails_a_text_is_charged_if_it_always_fails_and_not_otherwise(
    faults: list[str | None], bad: dict[int, str], batch_size: int
):
    provider = make_spoiled(faults, **{f"text {number}": fault for number, fault in bad.items()})
    provider.batch_size = batch_size
    pending = [f"text {number}" for number in range(20)]
    failed = set()

    for _ in range(60):
        before = provider.requests
        try:
            outcomes = provider.embed_each(pending, suspected=ProviderMisconfigured)
        except ProviderUnavailable:
            outcomes = []
        assert provider.requests - before <= 6 * len(pending) + 2
        for text, outcome in zip(list(pending), outcomes, strict=bool(outcomes)):
            if not isinstance(outcome, ProviderUnavailable):
                pending.remove(text)
                if isinstance(outcome, ProviderError):
                    failed.add(text)
        if not pending:
            break

    assert pending == []
    assert failed == set(provider.bad)
