"""What holds of every ``embed_…`` command: options, exit statuses, completion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import (
    CommandError,
    ManagementUtility,
    call_command,
    get_commands,
    load_command_class,
)
from django.core.management.base import CommandParser
from django.db import connections

from pgembed_django import search, testing
from tests.app.models import Article

ROOT = Path(__file__).resolve().parents[2]
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
COMMANDS = sorted(name for name, app in get_commands().items() if app == "pgembed_django")
WITHOUT_DATABASE = {"embed_probe", "embed_tasks"}
ONLY_LOOK = {"embed_publication", "embed_forget", "embed_spaces", "embed_status"}
"""Without further options."""
CHOICES = {"embed_dismiss": ["--all"], "embed_retry": ["--all"]}


def parser(name: str) -> CommandParser:
    return load_command_class("pgembed_django", name).create_parser("manage.py", name)


def test_they_are_all_here() -> None:
    assert COMMANDS == [
        "embed_backfill",
        "embed_dismiss",
        "embed_forget",
        "embed_probe",
        "embed_publication",
        "embed_reconcile",
        "embed_retry",
        "embed_spaces",
        "embed_status",
        "embed_tasks",
        "embed_worker",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_its_exit_status_means(name: str) -> None:
    description = parser(name).description or ""

    assert "Exit status: 0" in description
    assert "2 " in description.partition("Exit status:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_is_an_answer_and_no_traceback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = load_command_class("pgembed_django", name)

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    # At some point of its work: no signal can be sent to just that one.
    monkeypatch.setattr(command, "handle", interrupted)
    with pytest.raises(CommandError, match=r"^Stopped\.") as caught:
        call_command(command)

    assert caught.value.returncode == 130


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_explained(name: str) -> None:
    for action in parser(name)._actions:
        assert action.help, action.dest


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_DATABASE))
def test_one_option_is_called_and_explained_the_same_everywhere(name: str) -> None:
    mine = {option: one for one in parser(name)._actions for option in one.option_strings}
    theirs = {
        option: one for one in parser("embed_status")._actions for option in one.option_strings
    }

    for option in ("--specs", "--database"):
        assert mine[option].help == theirs[option].help
        assert mine[option].metavar == theirs[option].metavar


@pytest.mark.parametrize("name", COMMANDS)
def test_the_shell_completes_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DJANGO_AUTO_COMPLETE", "1")
    monkeypatch.setenv("COMP_WORDS", f"manage.py {name} --")
    monkeypatch.setenv("COMP_CWORD", "2")

    with pytest.raises(SystemExit):
        ManagementUtility(["manage.py"]).autocomplete()

    told = {word.rstrip("=") for word in capsys.readouterr().out.split()}
    # The shortest of its spellings, as Django completes all commands.
    wanted = {min(one.option_strings) for one in parser(name)._actions if one.option_strings}
    assert {word for word in wanted if word.startswith("--")} <= told


@pytest.fixture
def lite(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(connections.settings, "lite", SQLITE)
    yield "lite"
    del connections["lite"]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_DATABASE))
def test_a_database_that_is_not_postgres_is_named_with_those_that_are(name: str, lite: str) -> None:
    with pytest.raises(CommandError) as caught:
        call_command(name, *CHOICES.get(name, ()), "--database", lite)

    assert caught.value.returncode == 2
    assert str(caught.value) == (
        "The database 'lite' is SQLite, not PostgreSQL. "
        "Use --database to name one that is: default."
    )


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_DATABASE - ONLY_LOOK))
def test_a_database_where_nothing_would_be_committed_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)

    with pytest.raises(CommandError, match="'default' has AUTOCOMMIT off") as caught:
        call_command(name, *CHOICES.get(name, ()))

    assert caught.value.returncode == 2


def test_so_it_is_where_tests_embed_and_searches_ask(lite: str) -> None:
    said = r"'lite' is SQLite, not PostgreSQL\. Use using to name one that is: default\.$"

    with pytest.raises(ImproperlyConfigured, match=said):
        testing.run_jobs(using=lite)
    with pytest.raises(ImproperlyConfigured, match=said):
        search(Article.objects.using(lite), "bread")
    with pytest.raises(ImproperlyConfigured, match=said), testing.without_triggers(using=lite):
        pass


def test_where_no_database_is_postgres_none_is_named(
    monkeypatch: pytest.MonkeyPatch, lite: str
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")

    with pytest.raises(CommandError, match=r"not PostgreSQL, and no other in DATABASES is\.$"):
        call_command("embed_worker", "--database", lite)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_DATABASE))
def test_an_empty_alias_is_not_the_default_database(name: str) -> None:
    with pytest.raises(
        CommandError, match=r"^--database is empty\. There are: default\.$"
    ) as caught:
        call_command(name, *CHOICES.get(name, ()), "--database", "")

    assert caught.value.returncode == 2
