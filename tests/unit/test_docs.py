"""The docs say what the code does, and their links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import re
import shlex
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class

from pgembed_django import Chunker, Results, conf, search, similar_to
from pgembed_django.admin.actions import ACTIONS
from pgembed_django.checks import databases
from pgembed_django.declaration import decorator
from pgembed_django.embedding import planner
from pgembed_django.models import Job, Space
from pgembed_django.ops import status
from pgembed_django.retrieval import Hit
from tests import docs_tables

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / page for page in ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/NOTES.md")),
    *sorted(DOCS.rglob("*.md")),
]

PLAIN = """
    admin aembed asearch asimilar assert at b backend build collector concurrency config
    construction created database deterministic done ef enqueue enqueued error expires fake filter
    finished forget get grace hnsw id index input is items k keep kind large last limit long lost m
    manager many match max misconfigured missing mixin model notify now pgembed pk poll postgres
    query queue rate ready refused report results retry rows run search seconds set setting similar
    size started status stop text time timeout to too total traceparent tracing triggers type
    unavailable up vector vectors view warm without
"""
"""Words of public names that mean what they mean elsewhere."""

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(
    r"^(?P<indent> *)```(\w+)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


def table(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's tables, by their first cell. Pipes in code are not cells."""
    rows = {}
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("| `"):
            first, *others = [cell.strip() for cell in line.strip("|").split(" |")]
            rows[first.strip("`| ")] = [cell.strip("| ") for cell in others]
    return rows


def blocks(page: Path, language: str) -> list[str]:
    return [
        inspect.cleandoc(match["code"])
        for match in BLOCK.finditer(page.read_text())
        if match[2] == language
    ]


# Settings, checks, keywords, commands


@pytest.mark.parametrize("page", [*docs_tables.pages()], ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_code(page: Path) -> None:
    """To write them: ``python -m tests.docs_tables``."""
    assert page.read_text() == docs_tables.written(page.read_text())


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in docs_tables.pages())

    assert sorted(re.findall(r"<!-- generated: (.+) -->", text)) == sorted(docs_tables.tables())


def test_every_setting_that_a_page_names_exists() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"\bPGEMBED_[A-Z_]+\b", page.read_text())
    }

    of_the_demo = {"PGEMBED_PROVIDER", "PGEMBED_CHAT_URL", "PGEMBED_CHAT_MODEL"}
    assert named <= set(conf.NAMES) | of_the_demo


def test_the_pages_ask_for_the_pgvector_that_the_check_asks_for() -> None:
    named = {
        tuple(map(int, version.split(".")))
        for page in PAGES
        for version in re.findall(r"\b(?:pgvector|`vector`,) (\d+\.\d+) or later", page.read_text())
    }

    assert named == {databases.OLDEST_VECTOR}


def test_every_keyword_of_the_decorator_is_in_the_docs_with_its_default() -> None:
    documented = table("reference/embeddable.md")
    parameters = inspect.signature(decorator.embeddable).parameters.values()

    assert list(documented) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        written = documented[parameter.name][0]
        if parameter.default not in (inspect.Parameter.empty, None):
            assert written == f"`{json.dumps(parameter.default).replace('true', 'True')}`"


def test_every_argument_of_a_search_is_in_the_docs_with_its_default() -> None:
    page = (DOCS / "reference/search.md").read_text()
    given = {}
    for function in (similar_to, search):
        given |= inspect.signature(function).parameters

    for parameter in given.values():
        default = parameter.default
        written = "needed" if default is parameter.empty else f"`{default!r}`".replace("'", '"')
        row = rf"^\| `{parameter.name}` +\| {re.escape(written)} "
        assert re.search(row, page, re.MULTILINE), parameter.name


def test_every_value_of_a_hit_and_of_the_results_is_in_the_docs() -> None:
    page = (DOCS / "reference/search.md").read_text()

    for field in (*fields(Results), *fields(Hit)):
        assert re.search(rf"^- [^:]*`{field.name}`", page, re.MULTILINE), field.name


def test_every_keyword_of_a_chunker_is_in_the_docs_with_its_default() -> None:
    page = (DOCS / "reference/embeddable.md").read_text()

    for field in fields(Chunker):
        written = str(field.default) if isinstance(field.default, int) else f"`{field.default!r}`"
        assert f"`{field.name}` ({written})".replace("'", '"') in page


def command_lines() -> list[tuple[str, str]]:
    """Return our commands with their arguments, as the shell blocks of all pages have them."""
    return [
        (page.name, line)
        for page in PAGES
        for language in ("sh", "text")
        for block in blocks(page, language)
        for line in re.findall(r"manage\.py (embed_\w+[^&|\n]*)", block.replace("\\\n", " "))
        if language == "sh" or f"$ python manage.py {line}" in block
    ]


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_every_command_line_of_ours_is_one(page: str, line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)

    load_command_class("pgembed_django", name).create_parser("manage.py", name).parse_args(
        arguments
    )


def test_the_permissions_that_the_docs_name_are_those_of_the_actions() -> None:
    text = (DOCS / "how-to/triage-failures.md").read_text()

    for codename, _ in Job._meta.permissions:
        assert f"`pgembed.{codename}`" in text
    assert {f"{act.permission}_job" for act in ACTIONS.values()} == dict(
        Job._meta.permissions
    ).keys()


# The README


def test_the_quickstart_is_the_example_projects_code() -> None:
    """But for its imports of Django and its __str__, which every model has."""
    declared = next(block for block in blocks(README, "python") if "class Article" in block)
    example = (ROOT / "example_project/blog/models.py").read_text()

    for part in declared.split("\n\n\n"):
        assert part in example
    assert 8 <= len(declared.partition("@embeddable")[2].splitlines()) + 1 <= 12


def test_the_quickstarts_settings_are_the_example_projects() -> None:
    written = next(block for block in blocks(README, "python") if "PGEMBED_PROVIDERS" in block)
    tree = ast.parse((ROOT / "example_project/config/settings.py").read_text())
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    names: dict[str, object] = {"INSTALLED_APPS": []}
    exec(written, names)

    providers = ast.literal_eval(assigned["PROVIDERS"])
    assert names["PGEMBED_PROVIDERS"] == {"default": providers["wordllama"]}
    assert set(names["INSTALLED_APPS"]) <= set(ast.literal_eval(assigned["INSTALLED_APPS"]))


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m pip install tox && python3 -m tox run -e demo",
        "python3 -m pip install tox && python3 -m tox run",
    ],
)
def test_the_two_commands_are_single_lines(command: str) -> None:
    assert command in blocks(README, "sh")


def test_a_reader_of_the_readme_chooses_between_nine_links() -> None:
    text = README.read_text()

    assert len([link for link in LINK.findall(text) if "/img/" not in link]) == 9


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_that_a_newcomer_is_sent_to_is_there(page: Path) -> None:
    for path in re.findall(r"`([\w.]+/[\w./]*)`", page.read_text()):
        assert (ROOT / path).exists() or (ROOT / "pgembed_django" / path).exists(), path


def test_the_code_for_wagtail_is_that_of_its_tests() -> None:
    site = ROOT / "tests/packages/with_wagtail"
    code = "".join(path.read_text() for path in (*site.glob("*.py"), *site.rglob("*.html")))
    page = DOCS / "how-to/wagtail.md"

    for block in (*blocks(page, "python"), *blocks(page, "html")):
        for part in block.split("\n\n\n"):
            assert part in code


# All pages


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_between_files_leads_to_one(page: Path) -> None:
    text = page.read_text()
    images = re.findall(r'src="([^"]+)"', text)
    for link in [*LINK.findall(text), *images]:
        if "://" in link or link.startswith("#"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve()
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, link


def test_every_address_elsewhere_is_on_the_list() -> None:
    """No network here. To ask them all: ``xargs -n1 curl -sfLo /dev/null < external_links.txt``."""
    listed = (Path(__file__).parent / "external_links.txt").read_text().splitlines()
    found = {
        link.partition("#")[0]
        for page in PAGES
        for link in LINK.findall(CODE.sub("", page.read_text()))
        if "://" in link
    }

    assert sorted(found) == listed


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_name_of_ours_can_be_imported(page: Path) -> None:
    for name in re.findall(r"(?<!/)\bpgembed_django(?:\.[A-Za-z_]\w*)+", page.read_text()):
        pkgutil.resolve_name(name)


def test_the_chunker_of_the_page_cuts_into_lines() -> None:
    [written] = [
        block for block in blocks(DOCS / "reference/embeddable.md", "python") if "Lines" in block
    ]
    names: dict[str, Any] = {}
    exec(written, names)
    lines = names["Lines"](shortest=2)

    chunks = planner.split(lines, "one\n\n2\nthree")

    assert [(chunk.position, chunk.text) for chunk in chunks] == [(0, "one"), (1, "three")]
    assert lines.recipe != names["Lines"]().recipe


def test_every_test_that_the_guarantees_name_is_there() -> None:
    page = (DOCS / "guarantees.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    for path in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in tests, name


def test_the_tables_that_are_told_of_are_those_that_there_are() -> None:
    ours = {model._meta.db_table for model in apps.get_app_config("pgembed").get_models()}
    section = (DOCS / "how-it-works.md").read_text().partition("\n## The tables\n")[2]

    assert set(re.findall(r"^- `(pgembed_\w+)`", section.partition("\n## ")[0], re.M)) == ours


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


GLOSSARY = [
    (term, words(term))
    for cell in re.findall(r"^- (`.+?): ", (DOCS / "reference/glossary.md").read_text(), re.M)
    for term in re.findall(r"`([^`]+)`", cell)
]


def public_names() -> set[str]:
    page = (DOCS / "stability.md").read_text()
    modules = re.findall(r"^\| `(pgembed_django[\w.]*)`", page, re.MULTILINE)
    return {
        *(name for module in modules for name in import_module(module).__all__),
        *(name.removeprefix(conf.PREFIX).lower() for name in conf.NAMES),
        *(name for name, app in get_commands().items() if app == "pgembed_django"),
        *(model.__name__ for model in apps.get_app_config("pgembed").get_models()),
        *(field.name for field in Job._meta.fields),
        *Job.Status.values,
        *Job.Kind.values,
        *Space.State.values,
        *status.STATES,
    }


def test_every_word_of_a_public_name_is_in_the_glossary_or_a_plain_one() -> None:
    known = tuple(word for _, parts in GLOSSARY for word in parts)
    used = {word for name in public_names() for word in words(name)}

    # "chunker" and "claims" are told by "chunk" and "claim".
    assert {word for word in used if not word.startswith(known)} <= set(PLAIN.split())


def test_every_word_of_the_glossary_is_one_of_the_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "pgembed_django").rglob("*.py"))

    assert [term for term, _ in GLOSSARY if not re.search(rf"\b{term}", code, re.I)] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}

    assert {page for page in pages if f"- {page}" not in navigation} == set()


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()
