"""The example's collection of the standard library's documentation."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
sys.path.append(str(EXAMPLE))

from library.collect import Documented, collect, public, python  # noqa: E402
from library.collect.shapes import is_public  # noqa: E402


@cache
def rows() -> list[Documented]:
    return list(collect())


@cache
def collected() -> dict[str, Documented]:
    return {row.name: row for row in rows()}


def rows_of(**sources: str) -> dict[str, Documented]:
    """Collect from modules given as source. ``a__b`` is the submodule ``a.b``."""
    modules = {}
    names = {name.replace("__", ".") for name in sources}
    for name, source in sources.items():
        dotted = name.replace("__", ".")
        is_package = any(other.startswith(f"{dotted}.") for other in names)
        modules[dotted] = python.read(dotted, source, is_package=is_package)
    return {row.name: row for row in public.rows(modules)}


@pytest.mark.slow
def test_there_are_eight_thousand_rows_or_more():
    assert len(collected()) >= 8000


@pytest.mark.slow
def test_each_name_stands_once_and_in_order():
    names = [row.name for row in rows()]
    assert names == sorted(set(names))


@pytest.mark.slow
def test_each_row_can_be_stored():
    assert all(row.docstring for row in collected().values())
    assert not [row.name for row in collected().values() if "\0" in row.docstring + row.signature]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("time", "module"),
        ("time.perf_counter", "function"),
        ("print", "function"),
        ("str.join", "method"),
        ("math.gcd", "function"),
        ("collections.deque.appendleft", "method"),
        ("collections.abc.Mapping", "class"),
        ("bisect.bisect_left", "function"),
        ("heapq.heappush", "function"),
        ("os.path.join", "function"),
        ("os.open", "function"),
        ("datetime.date", "class"),
        ("json.dumps", "function"),
        ("io.StringIO.read", "method"),
        ("re.Pattern.match", "method"),
        ("random.shuffle", "function"),
        ("signal.signal", "function"),
        ("socket.socket.recv", "method"),
        ("threading.Thread.join", "method"),
        ("unittest.TestCase.assertEqual", "method"),
        ("asyncio.gather", "function"),
        ("concurrent.futures.ThreadPoolExecutor", "class"),
        ("pathlib.Path.exists", "method"),
    ],
)
def test_what_everybody_knows_goes_by_the_name_everybody_knows(name, kind):
    assert collected()[name].kind in (kind, {"function": "method"}.get(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_bisect.bisect_left", "posixpath.join", "posix.open"])
def test_implementations_do_not_stand_beside_what_they_implement(name):
    assert name not in collected()


@pytest.mark.slow
def test_a_signature_is_what_the_caller_writes():
    names = collected()
    assert names["textwrap.dedent"].signature == "dedent(text)"
    assert names["threading.Thread.join"].signature == "join(timeout=None)"
    assert names["str.join"].signature == "join(iterable, /)"


def test_a_class_without_a_docstring_has_that_of_its_constructor():
    rows = rows_of(
        shop='class Cart:\n    def __init__(self, owner):\n        "A cart of somebody."\n'
    )
    assert rows["shop.Cart"].docstring == "A cart of somebody."
    assert rows["shop.Cart"].signature == "Cart(owner)"


def test_a_definition_goes_by_the_shortest_public_name():
    rows = rows_of(
        shop="from .till import *",
        shop__till='__all__ = ["pay"]\ndef pay():\n    "Pay."\n',
    )
    assert list(rows) == ["shop.pay"]


def test_a_name_that_a_package_only_borrows_is_not_its_own():
    rows = rows_of(shop="from bank import pay", bank='def pay():\n    "Pay."\n')
    assert list(rows) == ["bank.pay"]


def test_imports_in_a_circle_end():
    assert rows_of(a="from a.b import x", a__b="from a import x") == {}


def test_methods_of_a_private_base_belong_to_the_public_class():
    rows = rows_of(
        shop="""
class _Base:
    def pay(self):
        "Pay."
class Cart(_Base):
    "A cart."
"""
    )
    assert rows["shop.Cart.pay"].docstring == "Pay."
    assert "shop._Base.pay" not in rows


@pytest.mark.parametrize(
    ("name", "answer"),
    [("a.b", True), ("a.__init__", True), ("a._b", False), ("_a.b", False), ("a.B._c", False)],
)
def test_a_name_is_private_by_any_of_its_parts(name, answer):
    assert is_public(name) is answer
