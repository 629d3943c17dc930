"""Convert whatever a project's own provider raises or returns into what our code expects."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING

from pgembed_django import faults
from pgembed_django.exceptions import ProviderError
from pgembed_django.providers import quoting
from pgembed_django.text import clean
from pgembed_django.threads import OurThread

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider


@contextmanager
def provider_errors(provider: Provider, *, texts: Sequence[str] = ()) -> Iterator[None]:
    """Convert other errors to ``ProviderError``: a project's own provider may raise anything.

    Its messages quote none of the ``texts``.
    """
    try:
        yield
    except ProviderError as error:
        message = faults.message(error)
        if message is None:
            # Of the same kind, so that an outage stays one.
            kind = next(k for k in type(error).__mro__ if k.__module__ == ProviderError.__module__)
            raise kind(f"{provider} raised {faults.name(error)}, which has no message.") from None
        if texts and not provider.quotes_no_text:
            error.args = (quoting.without(message[: quoting.READ], texts),)
        raise
    except BaseException as error:
        if _is_interruption(error):
            raise
        # No message and no chaining: the message may contain the text.
        raise ProviderError(f"{provider} raised {faults.name(error)}.") from None


def counted(provider: Provider, text: str) -> int | None:
    """Return a provider's token count, or None if it cannot count, or fails."""
    try:
        count = provider.count_tokens(text)
        return None if count is None else index(count)
    except BaseException as error:
        if _is_interruption(error):
            raise
        return None


def _is_interruption(error: BaseException) -> bool:
    """Return whether somebody ends what this thread is doing: a search, in a web process.

    In a thread that nobody but us knows, an exit is the provider's own.
    """
    if isinstance(threading.current_thread(), OurThread):
        return False
    is_an_end = not isinstance(error, Exception) and type(error).__module__ != faults.PANICS
    return is_an_end or faults.is_interruption(error)


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
