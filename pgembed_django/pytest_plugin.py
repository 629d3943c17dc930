"""Fixtures for pytest, found by its entry point. Imports neither Django nor our models.

It is loaded in every project of an environment, also in those that use no Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def pgembed_provider() -> Iterator[None]:
    """Embed with hashes instead of the providers of PGEMBED_PROVIDERS: no network."""
    from pgembed_django.testing import fake_providers

    with fake_providers():
        yield


@pytest.fixture
def pgembed_run_jobs(pgembed_provider: None) -> Callable[..., int]:
    """Return ``run_jobs``, which embeds all that is due in the test's transaction, with hashes."""
    from pgembed_django.testing import run_jobs

    return run_jobs


@pytest.fixture
def pgembed_without_triggers(db: None) -> Iterator[None]:
    """Let the test write past the triggers. Uses pytest-django's ``db``."""
    from pgembed_django.testing import without_triggers

    with without_triggers():
        yield
