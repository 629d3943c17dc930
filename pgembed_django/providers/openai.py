"""OpenAI's /v1/embeddings, which many servers implement.

Among them are OpenAI, vLLM, text-embeddings-inference, llama.cpp, LM Studio, LiteLLM and Ollama.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.core.text import clean
from pgembed_django.exceptions import (
    BatchTooLarge,
    ProviderError,
    ProviderMisconfigured,
    did_you_mean,
)
from pgembed_django.providers import answers, errors
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.http import ServerProvider

DEFAULT_URL: Final = "https://api.openai.com/v1"
_ENCODING: Final = re.compile(r"encoding[_ ]format|base64", re.IGNORECASE)

RECHECK_SECONDS: Final = 3600.0
"""How long to remember which encoding a server accepts, after it refused one."""

FACTS: Final = ("id", "root", "size", "n_params", "n_embd", "n_vocab", "max_model_len")
"""What /models tells that differs between models: of any server, of llama.cpp's, of vLLM's."""

LIST_SECONDS: Final = 2.0
"""How long to wait for the list of models, which is only for people."""

NAMED: Final = 5
"""How many of a server's models a message names."""

OWN_FIELDS: Final = ("model", "input", "encoding_format", "dimensions")
"""What the body of a request has in any case, or as other options say."""

Encoding = Literal["base64", "float"] | None
ENCODINGS: Final[Sequence[Encoding]] = ("base64", "float", None)
"""The encodings to try in turn. None: send no ``encoding_format``, for servers without it."""


class OpenAIProvider(ServerProvider):
    """A model of any server that implements OpenAI's embeddings API."""

    space_options = (*ServerProvider.space_options, "document_body", "query_body")

    def __init__(
        self,
        *,
        base_url: str = DEFAULT_URL,
        api_key_env: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        headers: Mapping[str, str] | None = None,
        encoding_format: Literal["auto", "base64", "float"] = "auto",
        document_body: Mapping[str, Any] | None = None,
        query_body: Mapping[str, Any] | None = None,
        max_tokens_per_batch: int | None = 100_000,
        **common: Any,
    ) -> None:
        if api_key_env is None and self.parts_of(base_url).hostname == "api.openai.com":
            api_key_env = "OPENAI_API_KEY"
        headers = dict(self.mapping("headers", headers))
        if organization is not None:
            headers["OpenAI-Organization"] = self.name("organization", organization)
        if project is not None:
            headers["OpenAI-Project"] = self.name("project", project)
        super().__init__(
            base_url=base_url,
            api_key_env=api_key_env,
            headers=headers,
            max_tokens_per_batch=max_tokens_per_batch,
            **common,
        )
        if encoding_format not in ("auto", "base64", "float"):
            raise self.wrong(
                "encoding_format", encoding_format, 'Set it to "auto", "base64" or "float"'
            )
        self._encoding_format = encoding_format
        self.document_body = self._body("document_body", document_body)
        self.query_body = self._body("query_body", query_body)
        self._learnt: Encoding = None
        self._learnt_until = self.clock()

    @property
    def may_cut_silently(self) -> bool:
        return True

    def remedy(self, status: int) -> str:
        remedy = super().remedy(status)
        if status != 404:
            return remedy
        if "/v1" not in self.base_url:
            return f"{remedy} It usually ends in /v1."
        return f"{remedy} Some servers, such as infinity, are asked without the /v1."

    def embed_within(self, texts: Sequence[str], *, timeout_seconds: float) -> Vectors:
        return self._embed(texts, self.document_body, timeout_seconds)

    def embed_query_batch(self, texts: Sequence[str], *, timeout_seconds: float | None) -> Vectors:
        return self._embed(texts, self.query_body, timeout_seconds or self.query_timeout_seconds)

    def _embed(
        self, texts: Sequence[str], body: Mapping[str, Any], timeout_seconds: float
    ) -> Vectors:
        first, *others = self._encodings()
        encoding = first
        while True:
            try:
                value = self._post(texts, body, encoding, timeout_seconds)
                break
            except ProviderError as error:
                if not others or not _ENCODING.search(str(error)):
                    raise
                encoding = others.pop(0)
        if encoding != first:
            self._learnt, self._learnt_until = encoding, self.clock() + RECHECK_SECONDS
        return self.vectors_of(value)

    def model_facts(self) -> str:
        # Only for people, not a digest: servers tell more after an upgrade, or less behind a proxy.
        models = self._listed()
        named = [one for one in models if one.get("id") == self.model] or models
        if len(named) != 1:
            return ""
        meta = named[0].get("meta")
        told = {**named[0], **(meta if isinstance(meta, dict) else {})}
        facts = [f"{name} {told[name]}" for name in FACTS if isinstance(told.get(name), str | int)]
        return clean(errors.quote(", ".join(facts)))

    def doubt(self) -> str:
        models = self._listed()
        told = [name for one in models for name in (one.get("id"), *_list(one.get("aliases")))]
        names = list(dict.fromkeys(name for name in told if isinstance(name, str)))
        if not names or any(_is_same(name, self.model) for name in names):
            return ""
        many = f"{len(names):,} models, such as " if len(names) > NAMED else ""
        listed = f"It lists {many}{', '.join(map(repr, names[:NAMED]))}."
        return (
            f"{self.base_url} does not list the model {self.model!r}. "
            f"{errors.quote(did_you_mean(self.model, names) + listed)} "
            "Some servers answer any name, with whatever model they have. Correct MODEL, unless "
            "it is an alias of the right one."
        )

    def _listed(self) -> list[dict[str, Any]]:
        """Return what the server tells of each of its models. Empty: nothing.

        Not by ``ask``: if this route is limited, texts need not wait.
        """
        answer = self.client.request("GET", "/models", timeout_seconds=LIST_SECONDS)
        value = answer.json() if answer.status == 200 else None
        models = value.get("data") if isinstance(value, dict) else value  # some send a bare list
        return [one for one in _list(models) if isinstance(one, dict)]

    def _encodings(self) -> Sequence[Encoding]:
        """Return the encodings to try, in order: each if the server refuses the one before."""
        if self._encoding_format != "auto":
            return [self._encoding_format]
        known = self.clock() < self._learnt_until
        return ENCODINGS[ENCODINGS.index(self._learnt) if known else 0 :]

    def vectors_of(self, value: dict[str, Any]) -> Vectors:
        """Return the vectors of an answer, in the order of its texts."""
        return answers.from_rows(self._rows(value), dimensions=self.dimensions)

    def _body(self, option: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an option's fields as they come back from the database."""
        given = dict(self.mapping(option, value))
        try:
            body: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError):
            raise self.wrong(option, value, "Set it to a dict that JSON can hold") from None
        if own := [field for field in OWN_FIELDS if field in body]:
            raise ImproperlyConfigured(
                f"{option} holds {own[0]!r}: {body[own[0]]!r}, which is sent anyway. Leave it out, "
                "and set MODEL, encoding_format, or DIMENSIONS and send_dimensions."
            )
        return body

    def _post(
        self,
        texts: Sequence[str],
        body: Mapping[str, Any],
        encoding: Encoding,
        timeout_seconds: float,
    ) -> dict[str, Any]:
        payload: dict[str, Any] = {**body, "model": self.model, "input": list(texts)}
        if encoding:
            payload["encoding_format"] = encoding
        if self.send_dimensions:
            payload["dimensions"] = self.dimensions
        answer = self.ask("POST", "/embeddings", payload, timeout_seconds=timeout_seconds)
        if "/v1" not in self.base_url and answer.status == 200 and answer.body[:1] == b"[":
            raise ProviderMisconfigured(  # by llama.cpp's own API
                f"{self.base_url} answered a bare list, not as OpenAI does. {self.remedy(404)}"
            )
        return self.value_of(answer, texts=texts)

    def _rows(self, value: dict[str, Any]) -> list[Any]:
        """Return the vectors in the order of the texts, that is, sorted by ``index``.

        An item without it, or with null, is in its place. Gemini leaves it out where it is 0.

        Raises:
            BatchTooLarge: all have the same index. A smaller batch helps: one text.
            ProviderError: there are no vectors, or other wrong indexes.
        """
        data = value.get("data")
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise ProviderError(f"{self.base_url} answered without a list of embeddings.")
        indexes = [
            at if item.get("index") is None else item["index"] for at, item in enumerate(data)
        ]
        rows = {
            index: self._row(item.get("embedding"))
            for index, item in zip(indexes, data, strict=True)
            if type(index) in answers.NUMBERS
        }
        if len(indexes) == len(rows) and rows.keys() == set(range(len(rows))):
            return [rows[index] for index in range(len(rows))]
        said = (
            f"{self.base_url} answered embeddings with a wrong index: they are numbered "
            f"{str(indexes[:5])[:80]} and so on, not from 0 to {len(data) - 1}."
        )
        if len(rows) == 1 < len(data):
            # Some servers number each so. Of a single text it is known whose vector it is.
            raise BatchTooLarge(f"{said} If this server always does so, set batch_size to 1.")
        raise ProviderError(said)

    def _row(self, embedding: Any) -> Any:
        """Return the floats of one embedding. A server may send floats when asked for base64."""
        if not isinstance(embedding, str):
            return embedding
        try:
            return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        except (binascii.Error, ValueError):
            # Not chained: its message contains the vector.
            raise ProviderError(f"{self.base_url} answered with invalid base64.") from None


def _is_same(one: str, other: str) -> bool:
    """Return whether two names mean the same model, perhaps with its owner, path or tag."""
    one, other = (f"/{name.casefold().removesuffix(':latest')}" for name in (one, other))
    return one.endswith(other) or other.endswith(one)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
