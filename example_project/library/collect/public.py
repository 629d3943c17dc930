"""Give each definition one name. Pure.

``unittest.TestCase`` is defined in ``unittest.case``, ``collections.deque`` in ``_collections``.
A definition only gets the shortest public name under which it can be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from library.collect.resolve import Origin, definition_of, exports, is_open, resolve
from library.collect.shapes import Definition, Documented, Module, is_public

# Module -> its name in the documentation. "" drops the prefix: str.join, print.
DOCUMENTED_AS = {"builtins": "", "posixpath": "os.path", "_collections_abc": "collections.abc"}


def rows(modules: Mapping[str, Module]) -> list[Documented]:
    """Return a row for everything with a docstring, ordered by name."""
    return _Naming(modules).rows()


class _Naming:
    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.names = _names(modules)
        self.merged: set[Origin] = set()

    def rows(self) -> list[Documented]:
        found: dict[str, Documented] = {}
        for name in filter(is_open, self.modules):
            title = DOCUMENTED_AS.get(name, name) or name
            if docstring := self.modules[name].docstring:
                found[title] = Documented(title, "module", _top(title), "", docstring)
        # Public names first: they give their names to the methods of private base classes.
        for origin, dotted in sorted(
            self.names.items(), key=lambda item: (not is_public(item[1]), item[1])
        ):
            if origin in self.merged:
                continue
            definition = definition_of(origin, self.modules)
            top = "builtins" if origin[0] == "builtins" else _top(dotted)
            for row in self._with_members(dotted, top, definition, origin):
                found.setdefault(row.name, row)
        return [found[name] for name in sorted(found)]

    def _with_members(
        self, dotted: str, top: str, definition: Definition, origin: Origin
    ) -> Iterator[Documented]:
        if definition.docstring:
            yield Documented(
                dotted, definition.kind, top, definition.signature, definition.docstring
            )
        home, local = origin
        for member in definition.members:
            inner = home, f"{local}.{member.name}"
            # random.shuffle is a method of a hidden instance, and has its name already.
            if inner not in self.names:
                yield from self._with_members(f"{dotted}.{member.name}", top, member, inner)
        for base in definition.bases:
            # socket.socket.recv is a method of _socket.socket, which has no public name.
            parent = resolve(home, base, self.modules)
            if parent and parent != origin and not self._stands_alone(parent):
                self.merged.add(parent)
                inherited = definition_of(parent, self.modules)
                for row in self._with_members(dotted, top, inherited, parent):
                    if row.name != dotted:
                        yield row

    def _stands_alone(self, origin: Origin) -> bool:
        """Return whether a class has a public name of its own, not just one like SocketType."""
        name = self.names.get(origin, "_")
        return is_public(name) and (is_open(origin[0]) or name.endswith(f".{origin[1]}"))


def _names(modules: Mapping[str, Module]) -> dict[Origin, str]:
    candidates: dict[Origin, list[str]] = {}
    for module in filter(is_open, modules):
        prefix = DOCUMENTED_AS.get(module, module)
        for local in exports(module, modules):
            if origin := resolve(module, local, modules):
                candidates.setdefault(origin, []).append(f"{prefix}.{local}".lstrip("."))
    return {
        origin: min(names, key=lambda name: _preference(name, origin[1]))
        for origin, names in candidates.items()
    }


def _preference(name: str, defined_as: str) -> tuple[bool, bool, int, int, str]:
    renamed = name.split(".")[-1] != defined_as.split(".")[-1]
    return not is_public(name), renamed, name.count("."), len(name), name


def _top(dotted: str) -> str:
    return dotted.split(".")[0]
