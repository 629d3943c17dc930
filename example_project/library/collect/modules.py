"""Find the standard library's modules without importing Python modules.

Python modules are found as files. Compiled ones are imported, which is safe, because they only
define names.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# Jokes, applications, tests, generated tables, and modules that newer Pythons lack.
LEFT_OUT = """
    this antigravity idlelib turtledemo test lib2to3 distutils ensurepip pydoc_data
    encodings ntpath nturl2path nt msilib winreg winsound msvcrt readline
"""
LEFT_OUT_FOLDERS = frozenset({"test", "tests", "__pycache__"})
TEST_PREFIXES = ("_test", "_xx", "xx", "_ctypes_test")


def top_level() -> list[str]:
    """Return the top-level modules' names. Private ones too, as some define public names."""
    return sorted(
        name
        for name in sys.stdlib_module_names
        if name not in LEFT_OUT.split() and not name.startswith(TEST_PREFIXES)
    )


def sources() -> Iterator[tuple[str, Path]]:
    """Yield ``(dotted name, file)`` of each Python module, packages before their contents."""
    root = Path(sysconfig.get_path("stdlib"))
    for name in top_level():
        if (file := root / f"{name}.py").is_file():
            yield name, file
        elif (root / name / "__init__.py").is_file():
            yield from _package(name, root / name)


def _package(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    yield name, folder / "__init__.py"
    for file in sorted(folder.iterdir()):
        if file.is_dir():
            if file.name not in LEFT_OUT_FOLDERS and (file / "__init__.py").is_file():
                yield from _package(f"{name}.{file.name}", file)
        elif file.suffix == ".py" and file.stem not in ("__init__", "__main__"):
            yield f"{name}.{file.stem}", file


def compiled() -> Iterator[tuple[str, ModuleType]]:
    """Yield ``(name, module)`` for each built-in and extension module that can be imported."""
    for name in top_level():
        if name not in sys.builtin_module_names and not _is_extension(name):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                yield name, importlib.import_module(name)
        except ImportError:
            continue  # A library that it needs is not installed, such as Tk or curses.


def _is_extension(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return isinstance(spec and spec.loader, importlib.machinery.ExtensionFileLoader)
