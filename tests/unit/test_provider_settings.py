"""PGEMBED_PROVIDERS: every mistake is told with its remedy, every change is seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from pgembed_django import providers
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.ollama import OllamaProvider
from pgembed_django.providers.openai import OpenAIProvider
from pgembed_django.providers.sentence_transformers import SentenceTransformerProvider
from pgembed_django.providers.wordllama import WordLlamaProvider

BACKEND = "pgembed_django.providers.deterministic.DeterministicProvider"
GOOD = {"BACKEND": BACKEND, "MODEL": "hashes", "DIMENSIONS": 8}


def test_a_provider_is_built_once():
    with override_settings(PGEMBED_PROVIDERS={"default": dict(GOOD)}):
        first = providers.get()
    with override_settings(PGEMBED_PROVIDERS={"default": dict(GOOD)}):
        assert providers.get("default") is first


@pytest.mark.parametrize("change", [{"DIMENSIONS": 16}, {"OPTIONS": {"query_prefix": "q: "}}])
def test_a_changed_setting_builds_it_anew(change: dict[str, Any]):
    config = {"default": dict(GOOD)}
    with override_settings(PGEMBED_PROVIDERS=config):
        first = providers.get()
        config["default"].update(change)
        assert providers.get() is not first


def test_the_batch_size_is_the_settings_unless_the_options_say_otherwise():
    own = {**GOOD, "OPTIONS": {"batch_size": 7}}
    with override_settings(PGEMBED_PROVIDERS={"a": GOOD, "b": own}, PGEMBED_BATCH_SIZE=9):
        assert providers.get("a").batch_size == 9
        assert providers.get("b").batch_size == 7


def test_a_provider_is_built_for_a_space_whose_settings_have_moved_on():
    provider = providers.build(
        alias="gone",
        backend=BACKEND,
        model="hashes",
        dimensions=8,
        options={"query_prefix": "q: "},
        batch_size=3,
    )
    assert isinstance(provider, DeterministicProvider)
    assert (provider.alias, provider.batch_size, provider.query_prefix) == ("gone", 3, "q: ")


def test_an_unknown_alias_lists_the_known_ones():
    with (
        override_settings(PGEMBED_PROVIDERS={"fast": GOOD, "good": GOOD}),
        pytest.raises(ImproperlyConfigured, match=r"'slow'.*'fast', 'good'"),
    ):
        providers.get("slow")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"BACKEND": "nowhere.Provider"}, r"'nowhere.Provider', which cannot be imported"),
        ({"BACKEND": "pgembed_django.conf.Settings"}, "not a subclass"),
        ({"BACKEND": "Provider"}, "cannot be imported"),
        ({"BACKEND": ".Provider"}, "cannot be imported"),
        (
            {"DIMENSION": 8},
            "an unknown key 'DIMENSION'. Did you mean 'DIMENSIONS'",
        ),
        ({"OPTIONS": {"prefix": "x"}}, "no option 'prefix'.*document_prefix, .*query_prefix"),
        ({"OPTIONS": {"clock": None}}, "no option 'clock'"),
        ({"DIMENSIONS": "8"}, "DIMENSIONS is '8'"),
        ({"DIMENSIONS": 0}, "DIMENSIONS is 0"),
        ({"MODEL": " "}, "MODEL is ' '. Give a name"),
    ],
)
def test_a_mistake_is_told_with_its_value(change: dict[str, Any], said: str):
    with (
        override_settings(PGEMBED_PROVIDERS={"default": {**GOOD, **change}}),
        pytest.raises(ImproperlyConfigured, match=said),
    ):
        providers.get()


@pytest.mark.parametrize(
    ("provider_class", "option", "value", "remedy"),
    [
        (DeterministicProvider, "truncate_dimensions", "False", "Set it to True or False"),
        (OllamaProvider, "truncate", "False", "Set it to True or False"),
        (OllamaProvider, "send_dimensions", "False", "Set it to True or False"),
        (OllamaProvider, "use_digest", None, "Set it to True or False"),
        (OllamaProvider, "options", ["num_ctx"], "Set it to a dict of model options"),
        (OpenAIProvider, "send_dimensions", "False", "Set it to True or False"),
    ],
)
def test_an_option_of_another_type_is_told_with_its_value(
    provider_class: type[providers.Provider], option: str, value: object, remedy: str
):
    with pytest.raises(ImproperlyConfigured) as raised:
        provider_class(alias="tested", model="m", dimensions=8, **{option: value})

    assert str(raised.value) == f"{option} is {value!r}. {remedy}."


@pytest.mark.parametrize("provider_class", [OllamaProvider, OpenAIProvider])
def test_vectors_are_shortened_by_the_server_or_by_us(provider_class: type[providers.Provider]):
    both = {"send_dimensions": True, "truncate_dimensions": True}
    with pytest.raises(ImproperlyConfigured, match="Leave it out, or send_dimensions"):
        provider_class(alias="tested", model="m", dimensions=8, **both)


@pytest.mark.parametrize(
    ("provider_class", "option"),
    [
        (DeterministicProvider, "batch_size"),
        (DeterministicProvider, "max_tokens_per_batch"),
        (DeterministicProvider, "max_input_tokens"),
        (OllamaProvider, "timeout_seconds"),
        (OllamaProvider, "connect_timeout_seconds"),
        (OllamaProvider, "query_timeout_seconds"),
        (OllamaProvider, "base_url"),
        (OllamaProvider, "options"),
        (OpenAIProvider, "base_url"),
        (OpenAIProvider, "organization"),
        (OpenAIProvider, "project"),
        (SentenceTransformerProvider, "device"),
        (SentenceTransformerProvider, "revision"),
    ],
)
@pytest.mark.parametrize("value", [0, False, "", []])
def test_an_empty_option_is_not_taken_for_one_left_out(
    provider_class: type[providers.Provider], option: str, value: object
):
    with pytest.raises(ImproperlyConfigured, match=re.escape(f"{option} is {value!r}. ")):
        provider_class(alias="tested", model="m", dimensions=8, **{option: value})


def test_an_option_that_may_be_left_out_says_so():
    config = {"default": {**GOOD, "OPTIONS": {"max_input_tokens": 0}}}
    with (
        override_settings(PGEMBED_PROVIDERS=config),
        pytest.raises(
            ImproperlyConfigured,
            match=r"'default'\]: max_input_tokens is 0\. "
            r"Set it to a whole number of one or more, or leave it out\.",
        ),
    ):
        providers.get()


@pytest.mark.parametrize("value", [0, False, "", []])
@pytest.mark.parametrize("option", ["api_key_env", "header_envs"])
def test_an_empty_name_of_a_variable_is_no_name(option: str, value: object):
    given = {"api-key": value} if option == "header_envs" else value
    with pytest.raises(ImproperlyConfigured, match="take names of environment variables"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, **{option: given})


def test_a_keep_alive_of_another_type_is_told_with_its_value():
    with pytest.raises(ImproperlyConfigured, match=r"keep_alive is \[\]"):
        OllamaProvider(alias="tested", model="m", dimensions=8, keep_alive=[])


@pytest.mark.parametrize("missing", ["BACKEND", "MODEL", "DIMENSIONS"])
def test_what_is_missing_is_named(missing: str):
    config = {key: value for key, value in GOOD.items() if key != missing}
    with (
        override_settings(PGEMBED_PROVIDERS={"default": config}),
        pytest.raises(ImproperlyConfigured, match=f"has no {missing}"),
    ):
        providers.get()


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("wordllama.WordLlamaProvider", "wordllama"),
        ("sentence_transformers.SentenceTransformerProvider", "sentence-transformers"),
    ],
)
def test_a_missing_extra_is_told_with_its_command(
    path: str, package: str, without: Callable[[str], None]
):
    without(package.replace("-", "_"))
    config = {**GOOD, "BACKEND": f"pgembed_django.providers.{path}", "DIMENSIONS": 64}
    with (
        override_settings(PGEMBED_PROVIDERS={"default": config}),
        pytest.raises(ImproperlyConfigured, match=rf'pip install "pgembed-django\[{package}\]"'),
    ):
        providers.get()


@pytest.mark.parametrize(
    "provider_class",
    [OllamaProvider, OpenAIProvider, WordLlamaProvider, SentenceTransformerProvider],
)
def test_every_option_is_in_the_docs(provider_class: type[providers.Provider]):
    docs = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
    assert [name for name in provider_class.known_options() if f"`{name}`" not in docs] == []


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package impossible to find, as where it is not installed."""
    from importlib.machinery import PathFinder

    def hide(package: str) -> None:
        found = PathFinder.find_spec

        def find_spec(name: str, *args: Any, **kwargs: Any) -> Any:
            return None if name == package else found(name, *args, **kwargs)

        monkeypatch.delitem(__import__("sys").modules, package, raising=False)
        monkeypatch.setattr(PathFinder, "find_spec", staticmethod(find_spec))

    return hide


LOCAL = {
    "BACKEND": "tests.providers.PlayedLocalProvider",
    "MODEL": "played",
    "DIMENSIONS": 4,
}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("here", "EXECUTOR is 'here'. Set it to a dict with a BACKEND, or leave it out."),
        ({"PROCESSES": 2}, "EXECUTOR is {'PROCESSES': 2}. Set it to a dict with a BACKEND, or"),
        ({"BACKEND": BACKEND}, "not a subclass of pgembed_django.executors.Executor. It takes"),
        (
            {"BACKEND": "pgembed_django.executors.OwnProcess", "PROCESES": 2},
            "EXECUTOR: OwnProcess has no option 'PROCESES'. Did you mean 'PROCESSES'? Its options",
        ),
        (
            {"BACKEND": "pgembed_django.executors.OwnProcess", "PROCESSES": 0},
            "EXECUTOR: PROCESSES is 0. Set it to a whole number of one or more, or leave it out.",
        ),
    ],
)
def test_a_wrong_executor_is_told(config: Any, said: str):
    with (
        override_settings(PGEMBED_PROVIDERS={"default": {**LOCAL, "EXECUTOR": config}}),
        pytest.raises(ImproperlyConfigured, match=re.escape(said)),
    ):
        providers.get()


def test_a_server_has_no_executor():
    config = {**GOOD, "EXECUTOR": {"BACKEND": "pgembed_django.executors.InProcess"}}
    with (
        override_settings(PGEMBED_PROVIDERS={"default": config}),
        pytest.raises(ImproperlyConfigured, match="no model of DeterministicProvider can be run"),
    ):
        providers.get()


def test_the_batch_size_of_servers_is_not_that_of_models_on_a_device():
    with override_settings(PGEMBED_PROVIDERS={"default": LOCAL}, PGEMBED_BATCH_SIZE=9):
        provider = providers.get()
        provider.warm_up()
    assert provider.batch_size == 256
