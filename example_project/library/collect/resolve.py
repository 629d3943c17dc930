"""Follow imports and assignments to where a name is defined. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from library.collect.shapes import Definition, Module

# These modules are public only by name: what they define is documented in other modules.
IMPLEMENTATIONS = frozenset({"posix", "genericpath"})

# Chains of imports that are longer than this are circular.
LONGEST_CHAIN = 8

Origin: TypeAlias = tuple[str, str]
"""``(module, name in it)`` of a definition. The name of a method has a dot."""


def is_open(module: str) -> bool:
    """Return whether names in ``module`` are public, not only where other modules import them."""
    if module == "_collections_abc":
        return True
    return not module.startswith("_") and module not in IMPLEMENTATIONS


def definition_of(origin: Origin, modules: Mapping[str, Module]) -> Definition:
    module, dotted = origin
    first, *rest = dotted.split(".")
    definition = modules[module].definitions[first]
    for name in rest:
        definition = next(member for member in definition.members if member.name == name)
    return definition


def exports(name: str, modules: Mapping[str, Module]) -> set[str]:
    """Return the names of a module: its own, and those imported from its implementation."""
    module = modules[name]
    listed = module.exported
    names = set(module.definitions) | (_lazy(module, modules) if listed else set())
    for local, (target, _) in module.imported.items():
        if _implements(target, name) and (listed is None or local in listed):
            names.add(local)
    for local, target in module.assigned.items():
        is_listed = not local.startswith("_") and (listed is None or local in listed)
        if (
            is_listed
            and (origin := resolve(name, target, modules))
            and _implements(origin[0], name)
        ):
            names.add(local)
    for target in module.starred:
        if target in modules and _implements(target, name):
            found = modules[target].exported
            names |= found if found is not None else _public(exports(target, modules))
    return names


def _public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def _lazy(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """Return the names in ``__all__`` that the package only imports when they are used."""
    known = {*module.definitions, *module.imported, *module.assigned}
    return {
        name
        for name in (module.exported or frozenset()) - known
        if _submodule(module, name, modules)
    }


def _submodule(module: Module, local: str, modules: Mapping[str, Module]) -> str | None:
    for name, candidate in modules.items():
        if name.startswith(f"{module.name}.") and local in candidate.definitions:
            return name
    return None


def _implements(target: str, name: str) -> bool:
    return not is_open(target) or target.split(".")[0] == name.split(".")[0]


def resolve(name: str, dotted: str, modules: Mapping[str, Module], depth: int = 0) -> Origin | None:
    """Return where ``dotted``, as written in module ``name``, is defined, or None."""
    module = modules.get(name)
    if module is None or depth > LONGEST_CHAIN:
        return None
    head, _, rest = dotted.partition(".")
    if rest:
        return _resolve_attribute(name, head, rest, modules, depth)
    own = (name, head) if head in module.definitions else None
    if own and definition_of(own, modules).docstring:
        return own
    # signal.signal only wraps _signal.signal, which has the docstring.
    other = _resolve_import(module, head, modules, depth)
    if own and not (other and definition_of(other, modules).docstring):
        return own
    return other


def _resolve_import(
    module: Module, local: str, modules: Mapping[str, Module], depth: int
) -> Origin | None:
    if local in module.imported:
        return resolve(*module.imported[local], modules, depth + 1)
    if local in module.assigned:
        target = module.assigned[local]
        return resolve(module.name, target, modules, depth + 1) if target != local else None
    for target in module.starred:
        if found := resolve(target, local, modules, depth + 1):
            return found
    if module.exported and local in module.exported:
        submodule = _submodule(module, local, modules)
        return (submodule, local) if submodule else None
    return None


def _resolve_attribute(
    name: str, head: str, rest: str, modules: Mapping[str, Module], depth: int
) -> Origin | None:
    """Resolve ``_socket.socket``, an attribute of a module, or ``_inst.shuffle``, of a class."""
    module = modules[name]
    if head in module.definitions or module.assigned.get(head, head) != head:
        owner = resolve(name, head, modules, depth + 1)
        if owner is None:
            return None
        members = {member.name for member in definition_of(owner, modules).members}
        return (owner[0], f"{owner[1]}.{rest}") if rest in members else None
    return resolve(head, rest, modules, depth + 1)
