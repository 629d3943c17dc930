"""Ask a provider to embed a plain word, to find out whether it or a text is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgembed_django.exceptions import (
    InputRefused,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderUnavailable,
)

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider


def ask(provider: Provider) -> None:
    """Raise ``ProviderUnavailable`` unless the provider now embeds a plain word."""
    try:
        _, faults = provider.answer([provider.plain_text])
    except ProviderLost as error:
        raise as_kind(ProviderUnavailable, error) from error
    except ProviderUnavailable:
        raise
    except InputRefused as error:
        raise ProviderMisconfigured(f"Even a plain word is refused: {error}") from error
    except ProviderError as error:
        raise ProviderUnavailable(str(error)) from error
    if faults[0]:
        raise ProviderMisconfigured(f"{provider} answered {faults[0]} for a plain word.")


def as_kind(kind: type[ProviderUnavailable], outage: ProviderUnavailable) -> ProviderUnavailable:
    """Return the same outage as an exception of another kind."""
    return kind(str(outage), retry_after_seconds=outage.retry_after_seconds)
