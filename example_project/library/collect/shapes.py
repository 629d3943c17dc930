"""The values that are collected: modules, their definitions, and rows of these. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


def is_public(dotted: str) -> bool:
    """Return whether no part of a dotted name is private. ``__init__`` counts as public."""
    return not any(part.startswith("_") and not part.endswith("__") for part in dotted.split("."))


@dataclass(frozen=True, slots=True)
class Documented:
    """One searchable row: something with a docstring."""

    name: str
    kind: str
    module: str
    signature: str
    docstring: str

    @property
    def is_public(self) -> bool:
        return is_public(self.name)


@dataclass(frozen=True, slots=True)
class Definition:
    """A class, function, method or property, whether or not it has a docstring."""

    name: str
    kind: str
    signature: str = ""
    docstring: str = ""
    bases: tuple[str, ...] = ()
    """The base classes of a class, as written in the source: "_socket.socket"."""

    members: tuple[Definition, ...] = ()


@dataclass(slots=True)
class Module:
    """One module, read from its source or, if it is compiled, from the module object."""

    name: str
    docstring: str = ""
    definitions: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """``from module import name as local``: local -> (module, name)."""

    assigned: dict[str, str] = field(default_factory=dict)
    """``Lock = _thread.lock``: name -> what is assigned, or the class of an assigned instance."""

    starred: list[str] = field(default_factory=list)
    """``from module import *``: the modules."""

    exported: frozenset[str] | None = None
    """``__all__`` if it is a plain list, else None."""
