"""What full-text search takes for a word, and its configurations by language code. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

FALLBACK = "simple"
"""The configuration for languages that have none: it changes no word but for its case."""

JOINTS = "./@-~"
"""Postgres takes what these join for one word: a path, an address, a name with dots."""

GAPS = " " * len(JOINTS)

APART = {"joints": JOINTS, "gaps": GAPS}
"""Parameters of a statement that does what ``apart`` does."""

OF_CODES = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "nb": "norwegian",
    "ne": "nepali",
    "nl": "dutch",
    "nn": "norwegian",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}

CODE = re.compile(r"([a-z]{2})(?:-.+|_[a-z]{2})?", re.IGNORECASE)
"""A language code, such as ``de``, ``de-at`` or ``pt_BR``."""


def apart(text: str) -> str:
    """Return a text of the same length whose words Postgres takes one by one."""
    return text.translate(str.maketrans(JOINTS, GAPS))


def configuration(language: str) -> str:
    """Return the configuration of a language code. Anything else is taken for a configuration."""
    code = CODE.fullmatch(language)
    return OF_CODES.get(code[1].lower(), language) if code else language


def of_value(value: str | None, *, known: Collection[str], default: str) -> str:
    """Return the configuration that a row's language means: one of ``known``, or the default."""
    if value is None:
        return default
    name = configuration(value.strip()).lower()
    return name if name in known else FALLBACK
