"""Parse the option ``--where``: a field lookup of Django's as text."""

from __future__ import annotations

import argparse
from typing import Any

TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def lookup(value: object) -> tuple[str, Any]:
    """Parse FIELD=VALUE. Django converts the value to the field's type."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value
    name, equals, text = str(value).partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{value!r} is not of the form FIELD=VALUE")
    if name.endswith("__isnull"):
        if text.lower() not in TRUTHS:
            raise argparse.ArgumentTypeError(f"{value!r}: {text!r} is not true or false")
        return name, TRUTHS[text.lower()]
    if name.endswith("__in"):
        return name, text.split(",")
    if name.endswith("__range"):
        if text.count(",") != 1:
            raise argparse.ArgumentTypeError(f"{value!r}: a range is two values with a comma")
        return name, text.split(",")
    return name, text
