"""Read the definitions of a compiled module from the module object."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from types import ModuleType

from library.collect.shapes import Definition, Module

# If C code gives no machine-readable signature, the docstring often begins with one.
FIRST_LINE = re.compile(
    r"\A(?P<call>\w+\([^\n]*\)(?: *->[^\n]*)?)(?:\n+(?P<rest>.*)|\Z)", re.DOTALL
)

# The first parameter, which callers do not pass: ($self, key, /), ($module, /, x).
BOUND = re.compile(r"\A\(\$\w+(?:, /)?(?:, )?")


# Types that are not an attribute of any module. They are found as the type of a value.
NAMELESS = {
    re: ["Pattern", "Match"],
    types: [name for name in types.__all__ if name.endswith("Type")],
}


def read(name: str, module: ModuleType) -> Module:
    """Return the classes and functions of ``module``. Further names of them become aliases."""
    read = Module(name, docstring=inspect.cleandoc(module.__doc__ or ""))
    names: dict[int, str] = {}
    # SocketType is socket: the object's own name comes first.
    own_name_first = sorted(
        vars(module).items(),
        key=lambda item: (getattr(item[1], "__name__", "") != item[0], item[0]),
    )
    for local, value in own_name_first:
        if local.startswith("__"):
            continue
        if id(value) in names:
            read.assigned[local] = names[id(value)]
        elif definition := _definition(local, value):
            names[id(value)] = local
            read.definitions[local] = definition
    return read


def nameless() -> Iterator[tuple[str, Definition]]:
    """Yield ``(module, definition)`` of the ``NAMELESS`` types."""
    for module, names in NAMELESS.items():
        for name in names:
            if definition := _definition(name, getattr(module, name)):
                yield module.__name__, definition


def _definition(name: str, value: object) -> Definition | None:
    if isinstance(value, type):
        members = (_member(key, member) for key, member in sorted(vars(value).items()))
        signature, docstring = _described(name, value, vars(value).get("__doc__"))
        return Definition(
            name,
            "class",
            signature,
            docstring,
            bases=tuple(base.__name__ for base in value.__bases__ if base is not object),
            members=tuple(member for member in members if member),
        )
    if inspect.isbuiltin(value):
        return Definition(name, "function", *_described(name, value, value.__doc__))
    return None


def _member(name: str, value: object) -> Definition | None:
    if name.startswith("_"):
        return None
    if inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
        return Definition(name, "property", docstring=inspect.cleandoc(value.__doc__ or ""))
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if inspect.isroutine(value):
        return Definition(name, "method", *_described(name, value, value.__doc__))
    return None


def _described(name: str, value: object, doc: object) -> tuple[str, str]:
    """Return ``(signature, docstring)``. Either may be empty."""
    docstring = inspect.cleandoc(doc) if isinstance(doc, str) else ""
    if arguments := getattr(value, "__text_signature__", None):
        return name + BOUND.sub("(", arguments, count=1), docstring
    match = FIRST_LINE.match(docstring)
    if match is None or not match["call"].startswith(f"{name}("):
        return "", docstring
    return match["call"], (match["rest"] or "").strip() or docstring
