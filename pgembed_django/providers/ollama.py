"""Ollama's own routes: /api/embed, and /api/embeddings of servers before 0.2.6."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pgembed_django.core.text import clean
from pgembed_django.exceptions import (
    ModelMissing,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers import answers
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.connections import Answer
from pgembed_django.providers.http import ServerProvider

RECHECK_SECONDS: Final = 300.0
"""How long to cache a server's version and routes: it may be upgraded."""

DIGEST_SECONDS: Final = 60.0
"""How long to cache a model's digest: a tag that is pulled again may be a new model."""

BATCHES_SINCE: Final = (0, 2, 6)
IN_ORDER_SINCE: Final = (0, 3, 5)
"""Older servers may silently return a batch in another order (Ollama issue 6187)."""

DEFAULT_PORT: Final = "11434"
_PORTS: Final = {"http": "80", "https": "443"}

_DURATION: Final = re.compile(r"-?(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+|0")


class OllamaProvider(ServerProvider):
    """A model of an Ollama server.

    By default the server would silently cut texts that do not fit. It is told to refuse them
    instead, unless ``truncate=True``.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        timeout_seconds: float = 120,
        truncate: bool = False,
        keep_alive: str | float | None = None,
        options: Mapping[str, Any] | None = None,
        use_digest: bool = True,
        **common: Any,
    ) -> None:
        if base_url is not None:
            self.name("base_url", base_url)
        where = base_url_of(base_url or os.environ.get("OLLAMA_HOST"))
        super().__init__(base_url=where, timeout_seconds=timeout_seconds, **common)
        # The same in every request: if num_ctx changed, the server would reload the model.
        self._constant: dict[str, Any] = {"model": self.model}
        if keep_alive is not None:
            self._constant["keep_alive"] = self._keep_alive(keep_alive)
        if options is not None and not isinstance(options, Mapping):
            raise self.wrong("options", options, "Set it to a dict of model options")
        if options:
            self._constant["options"] = dict(options)
        self._truncate = self.flag("truncate", truncate)
        self._use_digest = self.flag("use_digest", use_digest)
        self._version: tuple[int, ...] | None = None
        self._version_until = self.clock()
        self._one_by_one_until = self.clock()
        self._digest: str | None = None
        self._digest_until = self.clock()

    @property
    def texts_per_request(self) -> int:
        one_by_one = self._one_by_one() or not self._keeps_order()
        return 1 if one_by_one else super().texts_per_request

    @property
    def may_cut_silently(self) -> bool:
        return self._one_by_one()  # that route does not know "truncate"

    def embed_within(self, texts: Sequence[str], *, timeout_seconds: float) -> Vectors:
        if not self._one_by_one():
            payload = {**self._constant, "input": list(texts), "truncate": self._truncate}
            if self.send_dimensions:
                payload["dimensions"] = self.dimensions
            answer = self.ask("POST", "/api/embed", payload, timeout_seconds=timeout_seconds)
            # For a missing model, a 404 has a JSON error.
            if answer.status != 404 or "error" in answer.object():
                value = self._value_of(answer, texts)
                rows = value.get("embeddings")
                if not isinstance(rows, list):
                    raise ProviderError(f"{self.base_url} answered without embeddings.")
                return answers.from_rows(rows, dimensions=self.dimensions)
            self._confirm_one_by_one(answer, texts, timeout_seconds)
        rows = [self._embed_one(text, timeout_seconds) for text in texts]
        return answers.from_rows(rows, dimensions=self.dimensions)

    def model_digest(self) -> str | None:
        if not self._use_digest:
            return None
        if self._digest is None or self.clock() >= self._digest_until:
            self._digest = self._read_digest()
            self._digest_until = self.clock() + DIGEST_SECONDS
        return self._digest

    def _embed_one(self, text: str, timeout_seconds: float) -> object:
        payload = {**self._constant, "prompt": text}
        answer = self.ask("POST", "/api/embeddings", payload, timeout_seconds=timeout_seconds)
        return self._value_of(answer, [text]).get("embedding")

    def _value_of(self, answer: Answer, texts: Sequence[str]) -> dict[str, Any]:
        try:
            return self.value_of(answer, texts=texts)
        except ModelMissing as error:
            raise self._not_pulled() from error

    def _not_pulled(self) -> ModelMissing:
        return ModelMissing(
            f"{self.base_url} does not have the model {self.model!r}. "
            f"Run there: ollama pull {self.model}"
        )

    def _one_by_one(self) -> bool:
        return self.clock() < self._one_by_one_until

    def _confirm_one_by_one(
        self, answer: Answer, texts: Sequence[str], timeout_seconds: float
    ) -> None:
        """Raise unless the server is really too old to have /api/embed.

        The 404 may also be temporary, from a proxy during a restart, or be due to a wrong address.
        """
        version = self._server_version()
        old = version is not None and version < BATCHES_SINCE
        if version is None:
            try:
                one = self._embed_one(self.health_check_text, timeout_seconds)
                old = isinstance(one, answers.ROW)
            except ModelMissing:
                raise
            except ProviderError:
                old = False
        if not old:
            raise ProviderMisconfigured(
                f"{self.base_url} has no /api/embed: {self._quote(answer, texts)}. "
                "Is base_url, or OLLAMA_HOST, the address of an Ollama server?"
            )
        self._one_by_one_until = self.clock() + RECHECK_SECONDS

    def _keeps_order(self) -> bool:
        if self.clock() >= self._version_until:
            self._version = self._server_version()
            self._version_until = self.clock() + RECHECK_SECONDS
        return self._version is None or self._version >= IN_ORDER_SINCE

    def _server_version(self) -> tuple[int, ...] | None:
        """Return the version, such as (0, 3, 5), or None if the server does not report a release.

        Raises:
            ProviderUnavailable: it cannot be asked now.
        """
        told = self._look_up("/api/version").object().get("version", "")
        match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", str(told))
        # A build without a version says 0.0.0.
        return tuple(map(int, match.groups())) if match and match[0] != "0.0.0" else None

    def _look_up(self, path: str) -> Answer:
        try:
            return self.ask("GET", path, timeout_seconds=self.query_timeout_seconds)
        except ProviderUnavailable:
            raise
        except ProviderError as error:
            # The server closed the connection. No text was sent, so charge none.
            raise ProviderUnavailable(str(error)) from error

    def _read_digest(self) -> str | None:
        answer = self._look_up("/api/tags")
        models = answer.object().get("models")
        if answer.status == 200 and isinstance(models, list):
            for known in models:
                if isinstance(known, dict) and _tagged(known.get("name")) == _tagged(self.model):
                    return clean(str(known["digest"])) if known.get("digest") else None
            raise self._not_pulled()
        # A proxy may block the route. But if a digest is known, None would open a new space.
        if answer.status in (403, 404, 405) and self._digest is None:
            return None
        error = self.error_of(answer)
        raise error if isinstance(error, ProviderUnavailable) else ProviderUnavailable(str(error))

    def _keep_alive(self, value: str | float) -> str | float:
        """Return the value as Ollama accepts it: a number of seconds, or a duration with units.

        Ollama refuses the string "300", but a setting from the environment is a string.
        """
        if isinstance(value, str):
            if re.fullmatch(r"-?\d+(\.\d+)?", value.strip()):
                return float(value) if "." in value else int(value)
            if _DURATION.fullmatch(value):
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return value
        raise self.wrong("keep_alive", value, 'Set it to seconds, or to a duration like "10m"')


def _tagged(name: object) -> str:
    full = str(name).lower()
    return full if ":" in full.rpartition("/")[2] else f"{full}:latest"


def base_url_of(value: str | None) -> str:
    """Return the base URL that a value of OLLAMA_HOST means, without a slash at its end.

    Source: ollama envconfig/config.go, ``Host()`` and ``ConnectableHost()``.
    """
    host = (value or "").strip().strip("\"'").strip()
    scheme, found, rest = host.partition("://")
    if not found:
        scheme, rest, port = "http", host, DEFAULT_PORT
    else:
        scheme = scheme.lower()
        port = _PORTS.get(scheme, DEFAULT_PORT)
    if rest == "ollama.com" and not found:
        return "https://ollama.com:443"
    rest, _, path = rest.partition("/")
    user, at, rest = rest.rpartition("@")
    name, given = _host_and_port(rest)
    if given is not None:
        is_port = given.isdecimal() and int(given) <= 65535
        port = given if is_port else DEFAULT_PORT
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    path = path.strip("/")
    return f"{scheme}://{user}{at}{name}:{port}" + (f"/{path}" if path else "")


def _host_and_port(rest: str) -> tuple[str, str | None]:
    """Return name and port of "host", "host:1", ":1", "::1", "[::1]" or "[::1]:1"."""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        return name, port[1:] if port.startswith(":") else None
    if rest.count(":") > 1:
        return rest, None
    name, colon, port = rest.partition(":")
    return name, port if colon else None
