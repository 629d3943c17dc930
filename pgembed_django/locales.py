"""Make texts the same in all processes, whichever language and time zone are active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.utils import timezone, translation


@contextmanager
def of_settings() -> Iterator[None]:
    """Activate the language and time zone of the settings, as in a worker."""
    if _are_active():
        yield
        return
    with translation.override(settings.LANGUAGE_CODE), timezone.override(None):
        yield


def reset() -> None:
    """Activate them again, within ``of_settings``, if a project's code has changed them."""
    if not _are_active():
        translation.activate(settings.LANGUAGE_CODE)
        timezone.deactivate()


def _are_active() -> bool:
    return (
        translation.get_language() == settings.LANGUAGE_CODE
        and timezone.get_current_timezone() is timezone.get_default_timezone()
    )
