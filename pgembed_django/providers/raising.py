"""What a provider of the user's own raises, as an error that everybody here expects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgembed_django.exceptions import ProviderError


@contextmanager
def provider_errors(provider: object) -> Iterator[None]:
    """Raise nothing but ``ProviderError``: a provider of the user's own may raise anything."""
    try:
        yield
    except ProviderError:
        raise
    except Exception as error:  # noqa: BLE001
        # Without the message, and not chained: it may hold the text.
        raise ProviderError(f"{provider} raised {type(error).__name__}.") from None
