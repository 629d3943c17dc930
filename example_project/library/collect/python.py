"""Read a module's definitions from its source. Pure: nothing is imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from library.collect.shapes import Definition, Module

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

PROPERTIES = frozenset({"property", "cached_property", "functools.cached_property"})
LONGEST_SIGNATURE = 300


def read(name: str, source: str, *, is_package: bool) -> Module:
    """Return what ``source`` defines and imports at its top level, also within ``if``s."""
    tree = ast.parse(source)
    module = Module(name, docstring=ast.get_docstring(tree) or "")
    all_assignments = []
    for statement in _statements(tree.body):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                _keep_better(module.definitions, _definition(statement))
            case ast.ImportFrom():
                _note_import(module, statement, is_package=is_package)
            case ast.Import(names=names):
                module.assigned.update({each.name: each.name for each in names if not each.asname})
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                all_assignments.append(value)
            case ast.Assign(targets=[ast.Name(id=local)], value=value):
                match value:
                    case ast.Name() | ast.Attribute() | ast.Call(func=ast.Name(), args=[]):
                        module.assigned[local] = ast.unparse(value).removesuffix("()")
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                all_assignments.append(value)
    module.exported = _literal_names(all_assignments)
    return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                continue
            case ast.If(body=inner, orelse=other):
                yield from _statements(inner)
                yield from _statements(other)
            case ast.Try(body=inner, handlers=handlers, orelse=other):
                yield from _statements(inner)
                for handler in handlers:
                    yield from _statements(handler.body)
                yield from _statements(other)
            case ast.With(body=inner):
                yield from _statements(inner)
            case _:
                yield statement


def _keep_better(found: dict[str, Definition], new: Definition) -> None:
    """Add a definition. Of several with one name (setters, fallbacks), keep a documented one."""
    if new.name not in found or (new.docstring and not found[new.name].docstring):
        found[new.name] = new


def _definition(node: Function | ast.ClassDef, *, in_class: bool = False) -> Definition:
    docstring = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        members: dict[str, Definition] = {}
        for statement in _statements(node.body):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                _keep_better(members, _definition(statement, in_class=True))
        constructor = members.get("__init__") or members.get("__new__")
        return Definition(
            node.name,
            "class",
            signature=_class_signature(node, constructor),
            docstring=docstring or (constructor.docstring if constructor else ""),
            bases=tuple(ast.unparse(base) for base in node.bases),
            members=tuple(members.values()),
        )
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if decorators & PROPERTIES:
        return Definition(node.name, "property", docstring=docstring)
    bound = in_class and "staticmethod" not in decorators
    kind = "method" if in_class else "function"
    return Definition(node.name, kind, _signature(node, drop_first=bound), docstring)


def _signature(node: Function, *, drop_first: bool) -> str:
    arguments = node.args
    if drop_first:
        # Defaults count from the right, so the first argument can be dropped without them.
        first = arguments.posonlyargs or arguments.args
        del first[:1]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"{node.name}({ast.unparse(arguments)}){returns}"
    if len(signature) > LONGEST_SIGNATURE:
        signature = signature[: LONGEST_SIGNATURE - 1] + "…"
    return signature


def _class_signature(node: ast.ClassDef, constructor: Definition | None) -> str:
    if constructor is None:
        return ""
    _, _, arguments = constructor.signature.partition("(")
    return f"{node.name}({arguments.removesuffix(' -> None')}"


def _note_import(module: Module, node: ast.ImportFrom, *, is_package: bool) -> None:
    target = node.module or ""
    if node.level:
        parts = module.name.split(".")
        base = parts[: len(parts) - node.level + is_package]
        target = ".".join([*base, *([target] if target else [])])
    for alias in node.names:
        if alias.name == "*":
            module.starred.append(target)
        else:
            module.imported.setdefault(alias.asname or alias.name, (target, alias.name))


def _literal_names(values: list[ast.expr]) -> frozenset[str] | None:
    names: set[str] = set()
    for value in values:
        try:
            names.update(ast.literal_eval(value))
        except ValueError:
            return None
    return frozenset(names) if values else None
