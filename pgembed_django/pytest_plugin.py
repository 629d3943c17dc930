"""Fixtures for pytest, found through an entry point. Imports neither Django nor our models.

It is loaded for every project in an environment, including those without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest


@pytest.fixture
def pgembed_provider() -> Iterator[None]:
    """Embed with hashes instead of the providers of PGEMBED_PROVIDERS: no network."""
    from pgembed_django.testing import fake_providers

    with fake_providers():
        yield


@pytest.fixture
def pgembed_run_jobs(pgembed_provider: None) -> Callable[..., int]:
    """Return ``run_jobs``, which embeds everything due in the test's transaction, with hashes."""
    from pgembed_django.testing import run_jobs

    return run_jobs


@pytest.fixture
def pgembed_run_tasks(db: None) -> Callable[..., int]:
    """Return ``run_tasks``, which raises the errors of tasks. Uses pytest-django's ``db``."""
    from pgembed_django.testing import run_tasks

    return partial(run_tasks, raises=True)


@pytest.fixture
def pgembed_without_triggers(db: None) -> Iterator[None]:
    """Let the test write past the triggers. Uses pytest-django's ``db``."""
    from pgembed_django.testing import without_triggers

    with without_triggers():
        yield
