"""Collect the documentation of the running interpreter's standard library."""

from __future__ import annotations

import tokenize

from library.collect import compiled, modules, public, python
from library.collect.shapes import Documented, Module

__all__ = ["Documented", "collect"]


def collect() -> list[Documented]:
    """Return a row for each module, class, function and method with a docstring.

    Ordered by name, each name once, private ones included. Python modules are parsed, never
    imported, so that nothing with a side effect runs.
    """
    found: dict[str, Module] = {}
    for name, module in modules.compiled():
        found[name] = compiled.read(name, module)
    for name, file in modules.sources():
        with tokenize.open(file) as source:
            found[name] = python.read(name, source.read(), is_package=file.stem == "__init__")
    for name, definition in compiled.nameless():
        found[name].definitions.setdefault(definition.name, definition)
    return public.rows(found)
