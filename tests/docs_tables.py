"""Write the tables of the reference pages from the code: ``python -m tests.docs_tables``.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. What it says is said in
the code: in docstrings, helps and declarations. tests/unit/test_docs.py fails if they differ.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import django

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pgembed_django"
BLOCK = re.compile(r"(?<=<!-- generated: )([\w ]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
EMIT = "events.tell"
"""The call that logs an event, as the code writes it."""


def quoted(text: str) -> str:
    """Return a text with the names of settings and options as code."""
    return re.sub(
        r"(?<![`\w-])(?:--[a-z][a-z…-]*|PGEMBED_[A-Z_]+|/[a-z]+z|/metrics)", r"`\g<0>`", text
    )


def items(of: Iterable[tuple[str, str]]) -> str:
    return "".join(f"- {name}: {text}\n" for name, text in of)


def settings() -> str:
    """Return the settings with their defaults, and what their docstrings say."""
    from pgembed_django import conf

    [declared] = ast.parse(inspect.getsource(conf.Settings)).body
    assert isinstance(declared, ast.ClassDef)
    said = {
        ast.unparse(one.target): " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
        for one, text in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(one, ast.AnnAssign)
    }

    def names(text: str) -> str:
        text = text.replace("``", "`")
        for name in said:
            text = text.replace(f"`{name}`", f"`{conf.PREFIX}{name.upper()}`")
        return text

    return items(
        (
            f"`{conf.PREFIX}{one.name.upper()}` "
            + f"(`{ ({} if one.default is MISSING else one.default)!r}`)".replace("'", '"'),
            names(said[one.name]),
        )
        for one in fields(conf.Settings)
    )


def checks() -> str:
    from pgembed_django import checks

    return items((f"`{one}`", text) for one, text in checks.IDS.items())


@functools.cache
def fields_of_events() -> dict[str, set[str]]:
    """Return the fields that the code gives each event, by its name.

    Of those that it gives by ``**``, only the ones of the text are known.
    """
    from pgembed_django import events

    constants = {name: one for name, one in vars(events).items() if isinstance(one, events.Event)}
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == EMIT:
                event = constants[ast.unparse(node.args[0]).removeprefix("events.")]
                given = {str(keyword.arg) for keyword in node.keywords} - {"about", "is_logged"}
                if "None" in given:  # **fields
                    assert not event.means, f"{event.name} is public: name its fields in the call"
                    given = given - {"None"} | set(re.findall(r"%\((\w+)\)", event.text))
                assert found.setdefault(event.name, given) == given, path
    return found


def event_table() -> str:
    """Return the events that say what they mean: those are an interface."""
    from pgembed_django import events

    def shown(event: events.Event) -> tuple[str, str]:
        in_text = re.findall(r"%\((\w+)\)", event.text)
        others = sorted(fields_of_events()[event.name] - set(in_text))
        names = [f"`{name}`" for name in [*dict.fromkeys(in_text), *others]]
        about = f"{logging.getLevelName(event.level)} {' '.join(names)}".strip()
        return f"`{event.name}` ({about})", quoted(event.means)

    return items(shown(event) for event in events.ALL.values() if event.means)


METRIC = re.compile(r"^- `(pgembed_\w+)` \((\w+)([` \w]*)\): (.+)", re.MULTILINE)


def documented_metrics() -> dict[str, tuple[str, set[str]]]:
    """Return the types and labels of the metrics on their page."""
    page = (DOCS / "reference/metrics.md").read_text()
    return {
        name: (kind, set(labels.replace("`", "").split()))
        for name, kind, labels, _ in METRIC.findall(page)
    }


def metrics(families: Iterable[Any]) -> str:
    """Return the metrics. What a metric means is said on the page alone; a new one has its help."""
    page = (DOCS / "reference/metrics.md").read_text()
    meaning = {name: text for name, _, _, text in METRIC.findall(page)}

    def shown(family: Any) -> tuple[str, str]:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        kind = "gauge" if family.type == "info" else family.type
        labels = ("version",) if family.type == "info" else family.labels
        name = family.name + suffix
        about = " ".join([kind, *(f"`{label}`" for label in labels)])
        return f"`{name}` ({about})", meaning.get(name, family.documentation)

    return items(map(shown, families))


class Family(NamedTuple):
    name: str
    type: str
    documentation: str
    labels: Sequence[str] = ()

    @classmethod
    def of(cls, family: Any) -> Family:
        labels = getattr(family, "_labelnames", ())
        if hasattr(family, "name"):
            return cls(family.name, family.type, family.documentation, labels)
        return cls(family._name, family._type, family._documentation, labels)


def metrics_of_queue() -> str:
    from pgembed_django.contrib.metrics import collectors
    from pgembed_django.ops.status import Overview

    nothing: dict[str, Any] = dict.fromkeys((field.name for field in fields(Overview)), ())
    of_specs = [*map(Family.of, collectors.families(Overview(**{**nothing, "unknown": {}})))]
    # Those that are there without an overview, too: each is made by its name.
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(collectors))))
    names = {
        "pgembed_" + str(call.args[0].value).removeprefix("pgembed_")
        for call in calls
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("GaugeMetricFamily", "_gauge")
        and isinstance(call.args[0], ast.Constant)
    }
    alone = sorted(names - {family.name for family in of_specs}, reverse=True)
    return metrics([*(Family(name, "gauge", "") for name in alone), *of_specs])


def metrics_of_worker() -> str:
    from prometheus_client import CollectorRegistry

    from pgembed_django.contrib.metrics import collectors

    # What a worker is asked for; no worker is started.
    liveness = SimpleNamespace(stuck=lambda: None, age_seconds=0)
    worker: Any = SimpleNamespace(specs=(), is_running=False, liveness=liveness, works=())
    registry = CollectorRegistry()
    of_worker = collectors.WorkerCollector(worker, registry)
    counters = [one for one in registry._collector_to_names if hasattr(one, "_labelnames")]
    return metrics(map(Family.of, [*counters, *of_worker.collect()]))


def parser_of(name: str) -> argparse.ArgumentParser:
    from django.core.management import load_command_class

    return load_command_class("pgembed_django", name).create_parser("manage.py", name)


def arguments(name: str, *, is_common: bool) -> str:
    """Return the arguments of a command: those that most have, or the others."""
    from django.core.management.base import BaseCommand

    of_django = BaseCommand().create_parser("manage.py", name)._option_string_actions
    found = [
        action
        for action in parser_of(name)._actions
        if not set(action.option_strings) & set(of_django)
        and bool({"--specs", "--database"} & set(action.option_strings)) is is_common
    ]
    return items((named(action), quoted(str(action.help))) for action in found)


def named(action: argparse.Action) -> str:
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    metavar = str(action.metavar or action.dest.upper())
    if action.nargs == 0:
        metavar = ""
    elif action.nargs in ("+", "*"):
        metavar = f"{metavar} …"
    elif action.nargs == "?":
        metavar = f"[{metavar}]"
    if not action.option_strings:
        return f"`{metavar}`"
    return ", ".join(f"`{f'{option} {metavar}'.strip()}`" for option in action.option_strings)


def command(name: str) -> str:
    """Return what ``--help`` says of a command: what it does, its exit statuses, its options."""
    text, _, statuses = (parser_of(name).description or "").partition(" Exit status: ")
    exits = f"Exit status: {statuses}" if statuses else ""
    options = arguments(name, is_common=False)
    if name == "embed_dismiss" and options == arguments("embed_retry", is_common=False):
        options = "Its options are those of `embed_retry`."
    return "\n\n".join(part.strip() for part in (quoted(text), quoted(exits), options)) + "\n"


def tables() -> dict[str, Callable[[], str]]:
    from django.core.management import get_commands

    found: dict[str, Callable[[], str]] = {
        "settings": settings,
        "checks": checks,
        "events": event_table,
        "metrics of the queue": metrics_of_queue,
        "metrics of a worker": metrics_of_worker,
        "common options": functools.partial(arguments, "embed_status", is_common=True),
    }
    ours = [name for name, app in get_commands().items() if app == "pgembed_django"]
    return found | {name: functools.partial(command, name) for name in ours}


def written(text: str) -> str:
    """Return a page with its tables as the code has them."""
    known = tables()
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{known[found[1]]()}\n", text)


def pages() -> Iterator[Path]:
    return (page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text()))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    for page in pages():
        page.write_text(written(page.read_text()))
