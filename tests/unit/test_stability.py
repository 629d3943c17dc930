"""docs/stability.md lists what is public: all of it, and nothing that is not there."""

from __future__ import annotations

import importlib
import re

import pytest
from django.apps import apps

from pgembed_django.models import AbstractEmbedding, Job
from pgembed_django.triggers import sql
from tests.app.models import ArticleEmbedding
from tests.unit.test_docs import DOCS

TEXT = (DOCS / "stability.md").read_text()


def listed(title: str) -> dict[str, set[str]]:
    """Return the table under a title: what is quoted in the second cell, by the first."""
    section = re.split(r"^## ", TEXT.partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `([^`]+)` +\| (.+) \|$", section, re.MULTILINE)
    return {first: set(re.findall(r"`([^`]+)`", cell)) for first, cell in rows}


@pytest.mark.parametrize("module", listed("Import paths"))
def test_the_public_names_of_a_module_are_those_of_the_page(module):
    assert listed("Import paths")[module] == set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("module", listed("Import paths"))
def test_every_public_name_can_be_imported(module):
    imported = importlib.import_module(module)

    for name in imported.__all__:
        assert getattr(imported, name)


def test_the_sql_functions_are_those_of_the_page():
    functions = {
        name: "".join(arguments)
        for name, arguments in listed("The database").items()
        if re.search(r"_v\d+$", name)
    }

    assert functions == sql.FUNCTIONS


def test_the_columns_of_the_page_are_there():
    tables = {model._meta.db_table: model for model in apps.get_app_config("pgembed").get_models()}
    tables["<app>_<model>embedding"] = ArticleEmbedding
    named = {
        table: columns
        for table, columns in listed("The database").items()
        if not re.search(r"_v\d+$", table)
    }

    assert len(named) == 4
    for table, columns in named.items():
        there = {field.column for field in tables[table]._meta.fields}
        assert columns <= there, table
    generated = {field.column for field in AbstractEmbedding._meta.get_fields()}
    assert named["<app>_<model>embedding"] - {"source_id"} <= generated


def test_the_permissions_are_those_of_the_page():
    names = {"view_job", *dict(Job._meta.permissions)}

    assert {name for name in names if f"`{name}`" in TEXT} == names
