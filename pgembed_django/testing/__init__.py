"""Helpers for the tests of your project. They need no worker, no server and no commit.

Import this in test modules and fixtures, not in settings, because it imports models.
"""

from __future__ import annotations

from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.testing.asserting import (
    assert_embedding_pending,
    assert_enqueued,
    assert_fresh,
)
from pgembed_django.testing.running import fake_providers, run_jobs, run_tasks
from pgembed_django.testing.silencing import without_triggers

__all__ = [
    "DeterministicProvider",
    "assert_embedding_pending",
    "assert_enqueued",
    "assert_fresh",
    "fake_providers",
    "run_jobs",
    "run_tasks",
    "without_triggers",
]
