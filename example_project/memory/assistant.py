"""Who answers and extracts: the language model that the settings name, or else plain rules."""

from __future__ import annotations

from django.conf import settings

from memory.language_model import LanguageModel
from memory.rules import PlainRules


def current() -> LanguageModel | PlainRules:
    if not settings.CHAT_URL:
        return PlainRules()
    return LanguageModel(
        url=settings.CHAT_URL, name=settings.CHAT_MODEL, api_key=settings.CHAT_API_KEY
    )
