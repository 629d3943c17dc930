"""What is asked over HTTP: options, secrets, and the meaning of answers."""

from __future__ import annotations

import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured

from pgembed_django.core.options import Options
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured, ProviderUnavailable
from pgembed_django.providers import answers, connections, errors
from pgembed_django.providers.answers import Vector, Vectors
from pgembed_django.providers.base import Provider
from pgembed_django.providers.connections import Answer, Client

MAX_WAIT_SECONDS: Final = 600.0
"""The longest wait that a server, or any other provider, may ask for."""

NUMBER: Final = re.compile(r"\s*\d+(?:\.\d+)?\s*")
UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

LIKE_THIS: Final = 'Set it to something like "http://host:8080"'
_SECRET_HEADER: Final = re.compile(r"auth|key|token|secret|cookie|passw|credential", re.IGNORECASE)


class Server(Options):
    """The part of a provider, or of a reranker, that is about its server."""

    setting = "PGEMBED_PROVIDERS"
    quotes_no_text = True
    alias: str
    clock: Callable[[], float]

    def __init__(
        self,
        *,
        base_url: str,
        connect_timeout_seconds: float = 5,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        header_envs: Mapping[str, str] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._plain_headers = dict(self.mapping("headers", headers))
        self._header_envs = dict(self.mapping("header_envs", header_envs))
        self._api_key_env = api_key_env
        given = [] if api_key_env is None else [api_key_env]
        self._secret_names = [*given, *self._header_envs.values()]
        self._refuse_secrets(base_url)
        connect_seconds = self.seconds("connect_timeout_seconds", connect_timeout_seconds)
        self._not_before = self.clock()
        self.client = Client(
            base_url, connect_timeout_seconds=connect_seconds, headers=self._headers
        )
        self.base_url = self.client.base_url

    @property
    def connection(self) -> object | None:
        return self.client.connection

    def close(self) -> None:
        self.client.close()

    def ask(
        self, method: str, path: str, payload: object = None, *, timeout_seconds: float
    ) -> Answer:
        """Return the server's answer, whatever its status. See ``Client.request``.

        Raises:
            ProviderUnavailable: the server is down, or has asked to wait: then no request is sent.
        """
        wait = self._not_before - self.clock()
        if wait > 0:
            raise ProviderUnavailable(
                f"{self.base_url} asked to wait for another {wait:.1f} s.",
                retry_after_seconds=wait,
            )
        answer = self.client.request(method, path, payload, timeout_seconds=timeout_seconds)
        seconds = wait_seconds(answer.headers, now=time.time())
        if seconds:
            self._not_before = self.clock() + seconds
        return answer

    def value_of(self, answer: Answer, *, texts: Iterable[str]) -> dict[str, Any]:
        """Return the JSON object of a successful answer. Its lists of numbers may be arrays.

        Raises:
            ProviderError: the answer is not a success. Status and body determine the subclass.
        """
        value = answer.json() if answer.status == 200 else None
        error = value.get("error") if isinstance(value, dict) else None
        if answer.status != 200 or isinstance(error, answers.ROW) or error:
            raise self.error_of(answer, texts=texts)
        if isinstance(value, dict):
            return value
        if answer.body.lstrip().startswith(b"<"):
            raise ProviderUnavailable(
                f"{self.base_url} answered {self._quote(answer, texts)} instead of JSON. "
                "Does base_url lead to the right server?"
            )
        what = "a body that is not JSON" if answer.body.strip() else "an empty body"
        raise ProviderError(f"{self.base_url} answered 200 with {what}.")

    def error_of(self, answer: Answer, *, texts: Iterable[str] = ()) -> ProviderError:
        """Return the error that an unsuccessful answer stands for."""
        return errors.classify(
            answer.status,
            self._quote(answer, texts),
            wait_seconds=wait_seconds(answer.headers, now=time.time()),
            where=self.base_url,
            remedy=self.remedy(answer.status),
        )

    def remedy(self, status: int) -> str:
        """Return what to look at after an answer with this status. Empty: the answer says it."""
        if status == 404:
            return "Is base_url right?"
        if status in (401, 403) and not (self._api_key_env or self._header_envs):
            return "No key was sent: set api_key_env."
        return ""

    def _quote(self, answer: Answer, texts: Iterable[str]) -> str:
        secrets = [os.environ.get(name, "").strip() for name in self._secret_names]
        return errors.quote(
            errors.reason_of(answer.body),
            # Of "Basic …", a server may quote what comes after the scheme.
            secrets=[part for secret in secrets for part in (secret, secret.rpartition(" ")[2])],
            texts=texts,
        )

    def _headers(self) -> dict[str, str]:
        """Return the headers. Reads the keys for each request, because they may be rotated."""
        headers = dict(self._plain_headers)
        if self._api_key_env:
            headers["Authorization"] = f"Bearer {self._secret(self._api_key_env)}"
        return headers | {header: self._secret(name) for header, name in self._header_envs.items()}

    def _secret(self, name: str) -> str:
        secret = os.environ.get(name, "").strip()
        if not secret:
            raise ProviderMisconfigured(
                f"The environment variable {name}, which {self.setting}[{self.alias!r}] names, is "
                "not set."
            )
        if not secret.isascii() or not secret.isprintable():
            raise ProviderMisconfigured(
                f"The environment variable {name} holds characters that no HTTP header may have."
            )
        return secret

    def parts_of(self, base_url: str) -> SplitResult:
        """Return the parts of ``base_url``. The errors do not quote it: it may hold a secret."""
        # Looked for in the whole: without a scheme, no part of it counts as the user.
        if any(mark in str(base_url) for mark in "@?#"):
            raise ImproperlyConfigured(
                "base_url holds a user, a password, a query or a fragment, which may be secret. "
                "Use api_key_env or header_envs, which name environment variables."
            )
        try:
            parts = urlsplit(self.string("base_url", base_url))
            _ = parts.port  # is checked only when it is read
        except ValueError:
            raise ImproperlyConfigured(
                f"base_url is no URL with a host and perhaps a port. {LIKE_THIS}."
            ) from None
        return parts

    def _refuse_secrets(self, base_url: str) -> None:
        """Refuse secrets in OPTIONS: a provider's are stored in the database with the space.

        The errors do not quote the values.
        """
        parts = self.parts_of(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self.wrong("base_url", base_url, LIKE_THIS)
        for header, value in self._plain_headers.items():
            if not isinstance(value, str | int):
                raise ImproperlyConfigured(
                    f"headers has {type(value).__name__} for {header!r}. Give a string."
                )
            if _SECRET_HEADER.search(header) or errors.has_secret(str(value)):
                raise ImproperlyConfigured(
                    f"headers holds {header!r}, which may be secret. "
                    "Put the name of an environment variable into header_envs instead."
                )
        for name in self._secret_names:
            # A key of small letters and digits may pass for a name, but is not one that is set.
            is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name)
            is_key = re.search(r"[a-z]", str(name)) and re.search(r"[0-9]{2}", str(name))
            if not is_name or (is_key and name not in os.environ):
                raise ImproperlyConfigured(
                    "api_key_env and header_envs take names of environment variables, not secrets."
                )


class ServerProvider(Server, Provider):
    """A provider over HTTP. A subclass implements ``embed_within``."""

    def __init__(
        self,
        *,
        timeout_seconds: float = 60,
        query_timeout_seconds: float = 10,
        send_dimensions: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.send_dimensions = self.flag("send_dimensions", send_dimensions)
        if self.send_dimensions and self.truncate_dimensions:
            raise self.wrong(
                "truncate_dimensions",
                True,
                "Leave it out, or send_dimensions: either the server shortens vectors, or we do",
            )
        self.timeout_seconds = self.seconds("timeout_seconds", timeout_seconds)
        self.query_timeout_seconds = self.seconds("query_timeout_seconds", query_timeout_seconds)

    @abstractmethod
    def embed_within(self, texts: Sequence[str], *, timeout_seconds: float) -> Vectors:
        """Do what ``embed_batch`` does, within ``timeout_seconds``."""

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        return self.embed_within(texts, timeout_seconds=self.timeout_seconds)

    def embed_query(self, text: str, *, timeout_seconds: float | None = None) -> Vector:
        # All requests together: a text that is too long takes several.
        with connections.within(timeout_seconds or self.query_timeout_seconds):
            return super().embed_query(text, timeout_seconds=timeout_seconds)

    def embed_query_batch(self, texts: Sequence[str], *, timeout_seconds: float | None) -> Vectors:
        return self.embed_within(
            texts, timeout_seconds=timeout_seconds or self.query_timeout_seconds
        )

    def _quote(self, answer: Answer, texts: Iterable[str]) -> str:
        plain = [
            text.removeprefix(self.document_prefix).removeprefix(self.query_prefix)
            for text in texts
        ]
        return super()._quote(answer, plain)


def wait_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return how many seconds the server asks to wait, or None.

    ``headers`` must be case-insensitive.

    Source: RFC 9110 section 10.2.3; OpenAI "Rate limits", the headers x-ratelimit-*.
    """
    after = headers.get("retry-after", "")
    if milliseconds := NUMBER.fullmatch(headers.get("retry-after-ms", "")):
        seconds = float(milliseconds[0]) / 1000
    elif NUMBER.fullmatch(after):
        seconds = float(after)
    elif (until := _date(after)) is not None:
        # Relative to the server's clock if it sends the time: ours may be wrong.
        told = _date(headers.get("date", ""))
        seconds = until - (now if told is None else told)
    else:
        waits = [
            _duration(headers.get(f"x-ratelimit-reset-{what}", ""))
            for what in ("requests", "tokens")
            if headers.get(f"x-ratelimit-remaining-{what}", "").strip() == "0"
        ]
        if not waits:
            return None
        seconds = max(waits)
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _duration(value: str) -> float:
    """Return the seconds in a value such as "6m0s", "20ms" or "1.5". Zero: it is none of these."""
    if NUMBER.fullmatch(value):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", value)
    return sum(float(number) * UNITS[unit] for number, unit in parts)
