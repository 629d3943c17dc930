"""The pure parts: cutting, pace, quoting, waiting."""

from __future__ import annotations

import html
import json
import math
import re
import urllib.parse
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.chunking import Truncation
from pgembed_django.core.adapting import AdaptiveSize, doubled, halves, isolate
from pgembed_django.core.text import clean
from pgembed_django.exceptions import (
    BatchTooLarge,
    InputTooLong,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers import answers, errors, http
from tests import played


@pytest.mark.parametrize(
    ("message", "is_of_characters"),
    [
        ("String should have at most 500 characters", True),
        ("The input may have no more than 500 Unicode characters.", True),
        ("Request exceeds the limit of 500 bytes.", True),
        ("maximum context length is 500 tokens, however you requested 1000 tokens", False),
        ("the input length exceeds the context length", False),
    ],
)
def test_a_limit_in_characters_is_told_from_one_in_tokens(message: str, is_of_characters: bool):
    assert errors.is_of_characters(message) is is_of_characters


def test_a_limit_is_followed_unless_it_did_not_help():
    text = Truncation("x" * 1000)
    lengths = []
    for told in (500, 500, 0, -100):
        assert text.again(told)
        lengths.append(len(text.sent))

    assert lengths == [500, 375, 281, 210]


def test_what_another_text_taught_is_tried_first_and_then_less():
    texts = [Truncation("x" * 1000) for _ in range(2)]
    for text in texts:
        assert text.again(0, learnt=600)
    assert texts[0].again(0, learnt=600)

    assert [len(text.sent) for text in texts] == [450, 600]


def test_each_cut_leaves_less_until_hardly_anything_is_left():
    text = Truncation("x" * 100_000)
    lengths = [len(text.sent)]
    while text.again(0):
        lengths.append(len(text.sent))

    assert lengths == sorted(set(lengths), reverse=True)
    assert len(lengths) == Truncation.MOST + 1
    assert lengths[-1] < 200


def test_a_size_falls_at_once_and_rises_with_time():
    clock = played.Clock()
    size = AdaptiveSize(100, most=100, hold_seconds=60, clock=clock)

    size.succeeded()
    assert size.size == 100
    size.failed(100)
    assert size.size == 50
    size.failed(120)  # by a thread that began before: no news
    size.failed(50)
    assert (size.size, size.has_failed) == (25, True)
    clock.now += 59
    size.succeeded()
    assert (size.size, size.has_failed) == (25, False)
    for larger in (50, 100, 100):
        clock.now += 60
        size.succeeded()
        size.succeeded()
        assert size.size == larger


def test_a_size_follows_how_long_items_take():
    size = AdaptiveSize()
    sizes = []
    for seconds in (0.01, 0.06, 0.2, 0.01, 0.01, 0.01):
        size.took(seconds, size.size)
        sizes.append(size.size)

    assert sizes == [256, 256, 128, 256, 512, 1024]
    size.took(0.01, 7)  # fewer than there might have been: no news
    assert size.size == 1024


def test_a_size_is_never_nothing():
    size = AdaptiveSize(1, most=8)
    size.failed(1)
    assert size.size == 1


def test_waits_double_up_to_the_most():
    waits = [0.0]
    while waits[-1] < 60:
        waits.append(doubled(waits[-1], first=1, most=60))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("bad", [set(), {0}, {7}, {2, 3}, set(range(8))])
def test_what_fails_alone_is_found_and_the_rest_is_done_once(bad: set[int]):
    done: list[int] = []
    failed: list[int] = []

    def attempt(items: Sequence[int]) -> list[Sequence[int]]:
        if not bad & set(items):
            done.extend(items)
        elif len(items) == 1:
            failed.extend(items)
        return halves(items) if bad & set(items) else []

    isolate(attempt, range(8))

    assert (set(failed), sorted(done)) == (bad, sorted(set(range(8)) - bad))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "no"}', "no"),
        (b'{"error": {"message": "no", "type": "bad", "code": null}}', "no (bad)"),
        (b'{"message": "no", "code": 413, "type": "Validation"}', "no (Validation, 413)"),
        (b'{"detail": [{"loc": ["body"], "msg": "no", "input": "a diary"}]}', "no"),
        (b'{"detail": [{"loc": ["body", "input", 3], "msg": "no", "input": "x"}]}', "input.3: no"),
        (b'{"error": {}}', "no reason given"),
        (b'{"input": "a diary"}', "no reason given"),
        (b"", "an empty body"),
        (b"<html><head><TITLE>502\n Bad Gateway</TITLE>", "an HTML page: 502 Bad Gateway"),
        (b"<!doctype html><p>hello", "an HTML page"),
        (b"<title" * 200_000, "an HTML page"),  # within a moment
        (b"404 page not found", "404 page not found"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_the_reason_is_found_in_every_shape(body: bytes, said: str):
    assert errors.reason_of(body) == said


@pytest.mark.parametrize(
    "words",
    [
        "Incorrect API key provided: sk-proj-SECRETSECRET. See",
        "header Authorization: Bearer SECRETSECRET",
        "api_key=SECRETSECRET&x=1",
        '{"token": "SECRETSECRET"}',
        "https://user:SECRETSECRET@host/v1",
        "the value OURSECRET is wrong",
        "for hf_SECRETSECRET",
        "aws_secret_key=SECRETSECRET",
        "X-Auth-Key: SECRETSECRET",
        "Authorization: Token SECRETSECRET",
        "Set-Cookie: SECRETSECRET",
        "pwd=SECRETSECRET",
        "https://SECRETSECRET@host/v1",
        "/v1beta/models?key=SECRETSECRET",
        '"{\\"api_key\\": \\"SECRETSECRET\\"}"',
        "api_key%3DSECRETSECRET",
        "bearer%20SECRETSECRET",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOjF9.SECRETSECRET",
    ],
)
def test_keys_are_hidden(words: str):
    quoted = errors.quote(words, secrets=["OURSECRET"])
    assert "SECRET" not in quoted
    assert errors.HIDDEN in quoted


def test_what_looks_like_no_key_stays_readable():
    said = "maximum context length is 512 tokens, however you requested 812 tokens"
    assert errors.quote(said) == said


@pytest.mark.parametrize("echo", ["{text}", "input_value='{part}...'", "got {part}"])
def test_texts_are_not_quoted(echo: str):
    text = "my private diary of\nlast summer"
    words = "cannot take " + echo.format(text=text, part=text[:18])
    assert "diary" not in errors.quote(words, texts=[text])


@pytest.mark.parametrize("escape", [str, repr, json.dumps, lambda text: json.dumps([text])])
@pytest.mark.parametrize(
    "text",
    [
        "Q3 plan\n\nmy private diary",  # of two fields, the first of them short
        '"Dear" all,\r\n\tmy private diary',
        "Grüße\n\nmy private diary",
        "😀 \\o/\n\nmy private diary",
    ],
)
def test_a_text_is_not_quoted_where_it_is_escaped(text: str, escape: Callable[[str], str]):
    assert "diary" not in errors.quote(f"cannot take {escape(text)}", texts=[text])


ESCAPES = [
    *(str, repr, ascii, json.dumps, html.escape, urllib.parse.quote, urllib.parse.quote_plus),
    *(lambda text: json.dumps(json.dumps(text)), lambda text: str(text.encode()), str.upper),
    lambda text: "".join(f"&#{ord(one)};" for one in text),
    lambda text: json.dumps({"input": [text]}, ensure_ascii=False),
]


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize(
    "text",
    [
        "Dear diary, today I met the doctor",
        'Größe "42"\n\tist <b>privat</b> & C:\\temp\\neu 100% + mehr',
        "今日は医者に会いました。これは秘密です",
        "😀😀 emoji 😀 everywhere 😀😀",
    ],
)
def test_no_part_of_a_text_is_quoted(text: str, escape: Callable[[str], str]):
    for part in (text, text[len(text) // 2 :], text[3:-3], text[-9:]):
        said = f"The input <{escape(part)}> is not valid."

        quoted = errors.quote(said, texts=["another", text])

        before, found, after = quoted.partition("[the text]")
        assert found
        assert re.fullmatch(r"The input <(\W*input)?\W*[b+]?\W*(&#32;|%20)?", before)
        assert re.fullmatch(r"\W*> is not valid\.", after)


TEXTS = st.text("abcλ☃😀 \n\t\"'&%", min_size=8).map(clean)  # as they are sent


@given(text=TEXTS.filter(lambda text: len(text) >= 8), data=st.data())
def test_no_run_of_eight_characters_is_quoted(text: str, data: st.DataObject):
    start = data.draw(st.integers(0, len(text) - 8))
    part = text[start : data.draw(st.integers(start + 8, len(text)))]
    escape = data.draw(st.sampled_from(ESCAPES))

    quoted = errors.quote(f"0123456789 {escape(part)} 0123456789", texts=[text])

    assert quoted.startswith("0123456789")
    assert quoted.endswith("0123456789")
    assert not [at for at in range(len(text) - 7) if text[at : at + 8] in quoted]


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("cannot embed 'Anna'", "cannot embed '[the text]'"),
        ("cannot embed Anna", "cannot embed [the text]"),
        ("cannot embed ANNA: Anna!", "cannot embed [the text]: [the text]!"),
        ("Annabel is not Joanna", "Annabel is not Joanna"),
    ],
)
def test_a_short_text_is_not_quoted_as_a_whole(words: str, quoted: str):
    assert errors.quote(words, texts=["Anna", "", " ", "-", ":"]) == quoted


def test_the_words_that_servers_use_stay():
    said = "This model's maximum context length is 512 tokens, however you requested 812 tokens."
    text = "The docs say that the maximum context length is too short, however you try."

    assert errors.quote(said, texts=[text, "input", "tokens"]) == said


def test_a_text_is_not_quoted_whatever_its_length():
    text = " ".join(f"word{number}" for number in range(20_000))

    assert errors.quote(f"got {text[100_000:]}", texts=[text]) == "got [the text]"


def test_validation_errors_are_not_quoted_whole_behind_a_byte_order_mark():
    body = {"detail": [{"loc": ["body", "input"], "msg": "too much", "input": "my diary"}]}

    assert errors.reason_of(json.dumps(body).encode("utf-8-sig")) == "input: too much"


def test_a_quote_is_short():
    assert len(errors.quote("x " * 10_000)) == errors.LIMIT + 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 GMT"}, 10),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:50 GMT"}, 0),
        ({"retry-after": "9" * 400}, 600),
        ({"retry-after-ms": "9" * 400}, 600),
        ({"retry-after": "Thu, 01 Jan 9999 00:00:00 GMT"}, 600),
        ({"retry-after": f"Thu, 01 Jan {'9' * 400} 00:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 +999999999999"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -9999"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 GMT", "date": f"{'9' * 400} Jan 1 GMT"}, 10),
        ({"retry-after": "1e400"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9" * 400 + "h"}, 600),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1.5"}, 1.5),
        ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "6m0s"}, None),
    ],
)
def test_a_wait_is_read_as_servers_write_it(headers: dict[str, str], seconds: float | None):
    assert http.wait_seconds(headers, now=1000) == seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((10**400, None), (-(10**400), None), ("9" * 400, math.inf), ("9" * 5000, math.inf)),
        *((math.nan, None), ("nan", None), ("soon", None), (None, None), ([5], None), (True, 1)),
    ],
)
def test_the_wait_of_an_error_is_a_number_or_none(given: object, seconds: float | None):
    assert ProviderUnavailable("down", retry_after_seconds=given).retry_after_seconds == seconds


def test_vectors_come_out_with_length_one_whatever_their_size():
    rows = np.array([[3, 4], [3e30, 4e30], [3e-30, 4e-30]], dtype=np.float32)

    unit, faults = answers.checked(rows, count=3, dimensions=2, name="m")

    assert faults == [None, None, None]
    assert unit == pytest.approx(np.array([[0.6, 0.8]] * 3))


@pytest.mark.parametrize(
    "rows",
    [
        *([[1.0], [1.0, 2.0]], [{}], ["x"], [True], [[[1.0]]], ["1"], [1.0], [{"0": 1.0}]),
        *([["1.5"]], [[True]], [[None]], [[10**400]], [[-(10**400)]], [[[]]], [[{}]]),
    ],
)
def test_rows_that_are_no_vectors_are_no_answer(rows: list[object]):
    with pytest.raises(ProviderError):
        answers.from_rows(rows, dimensions=1)


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (
            400,
            "The decoder prompt (length 600) is longer than the maximum model length of 512.",
            InputTooLong,
        ),
        (
            400,
            "Input length (600 tokens) exceeds the maximum allowed length (511 tokens).",
            InputTooLong,
        ),
        (400, "Input length 600 exceeds maximum allowed token size 512", InputTooLong),
        (
            400,
            "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
            InputTooLong,
        ),
        (400, "expected maxLength: 2048, actual: 9000, please reformat your input", InputTooLong),
        (400, "Range of input length should be [1, 8192]", InputTooLong),
        (422, "String should have at most 122880 characters", InputTooLong),
        (400, "Input exceeds the limit of 10,000 characters", InputTooLong),
        (400, "A text may have no more than 5000 UTF-8 bytes", InputTooLong),
        (400, "Single text cannot exceed 8194 tokens. 9000 tokens given.", InputTooLong),
        (400, "Input id 0 has 9000 tokens, exceeding max 8192 tokens.", InputTooLong),
        (400, "The input token count is 9000 but the model supports up to 8192.", InputTooLong),
        (429, "The limit is 10000 tokens per minute", ProviderUnavailable),
        (422, "List should have at most 2048 items after validation, not 4096", BatchTooLarge),
        (
            400,
            "BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch",
            BatchTooLarge,
        ),
        (400, "invalid request: total number of texts must be at most 96", BatchTooLarge),
        (400, "Too many tokens in batch. Max is 16384 got 20000", BatchTooLarge),
        (400, "Too many tokens overall, split into more batches.", BatchTooLarge),
        (400, "The max allowed tokens per submitted batch is 120000.", BatchTooLarge),
        (400, "<400> batch size is invalid, it should not be larger than 10.", BatchTooLarge),
        (
            429,
            "Request too large for m on tokens per min (TPM): Limit 40000, Requested 90000.",
            BatchTooLarge,
        ),
        (
            429,
            "Rate limit reached for m on tokens per min (TPM): Limit 40000, Used 39000.",
            ProviderUnavailable,
        ),
        (429, "You may send at most 60 requests a minute", ProviderUnavailable),
        (
            503,
            "upstream connect error or disconnect/reset before headers. "
            "reset reason: connection termination",
            ProviderLost,
        ),
        (
            503,
            "upstream connect error or disconnect/reset before headers. "
            "reset reason: connection failure",
            ProviderUnavailable,
        ),
        (
            400,
            "The model has crashed without additional information. (Exit code: 11)",
            ProviderError,
        ),
        (400, "Model unloaded.", ProviderError),
        (
            400,
            "Model loading was stopped due to insufficient system resources.",
            ProviderUnavailable,
        ),
        (
            500,
            "litellm.InternalServerError: InternalServerError: OpenAIException - Connection error. "
            "Received Model Group=played",
            ProviderLost,
        ),
        (
            500,
            "litellm.APIConnectionError: OllamaException - Cannot connect to host ollama:11434 "
            "ssl:default [Connect call failed ('10.0.0.7', 11434)]",
            ProviderUnavailable,
        ),
        (500, "litellm.APIConnectionError: All connection attempts failed", ProviderUnavailable),
        (
            500,
            "litellm.APIError: APIError: OpenAIException - The api_key client "
            "option must be set either by passing api_key to the client or by setting the "
            "OPENAI_API_KEY environment variable",
            ProviderMisconfigured,
        ),
        (
            500,
            "litellm.APIError: Missing credentials. Please pass an `api_key`, or set the "
            "`OPENAI_API_KEY` environment variable.",
            ProviderMisconfigured,
        ),
        (500, "litellm.InternalServerError: Missing Anthropic API Key", ProviderMisconfigured),
        (500, "Authentication failed: No api key passed in.", ProviderMisconfigured),
        (500, "OpenAIException - Incorrect API key provided", ProviderMisconfigured),
        (400, "API key not valid. Please pass a valid API key.", ProviderMisconfigured),
        (409, "conflict", ProviderError),
        (425, "too early", ProviderError),
    ],
)
def test_the_words_of_a_server_tell_whose_fault_it_is(status: int, words: str, kind: type):
    error = errors.classify(status, words, wait_seconds=None, where="http://server")

    assert type(error) is kind
