"""Convert whatever a project's own provider raises or returns into what our code expects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING

from pgembed_django import faults
from pgembed_django.exceptions import ProviderError
from pgembed_django.text import clean

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider


@contextmanager
def provider_errors(provider: object) -> Iterator[None]:
    """Convert other errors to ``ProviderError``: a project's own provider may raise anything."""
    try:
        yield
    except ProviderError:
        raise
    except BaseException as error:
        if faults.is_interruption(error):
            raise
        # No message and no chaining: the message may contain the text.
        raise ProviderError(f"{provider} raised {type(error).__name__}.") from None


def counted(provider: Provider, text: str) -> int | None:
    """Return a provider's token count, or None if it cannot count, or fails."""
    try:
        count = provider.count_tokens(text)
        return None if count is None else index(count)
    except BaseException as error:
        if faults.is_interruption(error):
            raise
        return None


def digest(provider: Provider) -> str | None:
    """Return a model's digest in a form that can be stored. Also sets ``told_digest``.

    Raises:
        ProviderError: the digest is not a string, or ``model_digest`` raised.
    """
    told = provider.model_digest()
    if not isinstance(told, str | None):
        # Not str(told): it may contain an address, and so be a new model in each process.
        raise ProviderError(
            f"{provider}: model_digest() returned {type(told).__name__}. It must return a string "
            "or None."
        )
    provider.told_digest = told and clean(told)
    return provider.told_digest
