"""Leaves these tests out where the settings are others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from tests.played.chat import Chat
from tests.played.server import serving

is_chosen = f"{__package__}.settings" == settings.SETTINGS_MODULE
collect_ignore = [] if is_chosen else ["test_memory.py", "test_search_page.py"]


@pytest.fixture
def chat(settings: Any) -> Iterator[Chat]:
    """A language model, which answers and extracts."""
    with serving(Chat()) as played:
        settings.CHAT_URL, settings.CHAT_MODEL = f"{played.url}/v1", "played"
        yield played
