"""``embed_probe`` and its system check tell a person what is wrong with a provider."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from pgembed_django import providers
from pgembed_django.providers import openai, probes
from pgembed_django.providers.deterministic import DeterministicProvider
from tests import played

OLLAMA = "pgembed_django.providers.ollama.OllamaProvider"


@pytest.fixture
def serve(settings: Any) -> Iterator[Callable[..., played.Ollama]]:
    """Play Ollama, and let PGEMBED_PROVIDERS name it."""
    with ExitStack() as stack:

        def start(alias: str = "default", **config: Any) -> played.Ollama:
            server = stack.enter_context(played.serving(played.Ollama()))
            options = {"base_url": server.url, **config.pop("OPTIONS", {})}
            one = {"BACKEND": OLLAMA, "MODEL": server.model, "DIMENSIONS": 16, "OPTIONS": options}
            settings.PGEMBED_PROVIDERS = {**others, alias: {**one, **config}}
            others.update(settings.PGEMBED_PROVIDERS)
            return server

        others: dict[str, Any] = {}
        yield start


def probe(*arguments: str) -> str:
    """Return what the command writes."""
    out = io.StringIO()
    call_command("embed_probe", *arguments, stdout=out)
    return out.getvalue()


def problems(*, deploy: bool = True) -> list[Any]:
    return [
        problem
        for problem in run_checks(tags=["pgembed_probe"], include_deployment_checks=deploy)
        if problem.id.startswith("pgembed")
    ]


def test_a_width_that_is_cut_is_shown(serve):
    serve(DIMENSIONS=8, OPTIONS={"truncate_dimensions": True})

    assert "width:                  16, cut to 8" in probe()


def test_a_provider_that_is_well_is_described(serve):
    server = serve()

    written = probe()

    assert "played (provider 'default')" in written
    for label, value in {
        "reachable": "yes",
        "model": "present",
        "width": "16",
        "digest": "sha-one",
        "batch of 1": "ms per text",
        "batch of 8": "ms per text",
        "batch of 32": "ms per text",
        "recommended batch_size": "",
    }.items():
        [line] = [line for line in written.splitlines() if line.strip().startswith(f"{label}:")]
        assert line.rstrip().endswith(value)
    assert list(map(len, server.asked)) == [1, 1, 1, 8, 32]
    assert problems() == []


def test_each_finding_is_written_before_the_next_is_made(serve):
    server, out, written = serve(), io.StringIO(), []

    def embed(seen: played.Seen) -> played.Reply:
        written.append(out.getvalue().splitlines())
        return played.Ollama.embed(server, seen)

    server.embed = embed

    call_command("embed_probe", stdout=out)

    word, _, one, eight, _ = written
    assert word == ["played (provider 'default')"]
    assert one[-1].split() == ["first", "word:", one[-1].split()[2], "ms"]
    assert eight[-1].strip().startswith("batch of 1:")


def test_no_batch_is_larger_than_the_provider_allows(serve):
    server = serve(OPTIONS={"batch_size": 8})

    probe("default")

    assert list(map(len, server.asked)) == [1, 1, 1, 8]


def test_a_model_that_is_not_pulled_is_named_with_the_remedy(serve):
    serve(MODEL="other")

    with pytest.raises(CommandError, match="These failed: default") as raised:
        probe()

    assert raised.value.returncode == 1
    [problem] = problems()
    assert problem.id == "pgembed.E021"
    assert "ollama pull other" in problem.msg
    assert problem.hint == "For details, run manage.py embed_probe default"


def test_a_server_that_is_down_is_told_from_one_that_is_not_well(serve, capsys):
    serve(OPTIONS={"base_url": "http://127.0.0.1:9"})

    with pytest.raises(CommandError):
        call_command("embed_probe")

    written = capsys.readouterr().out
    assert "reachable:              no" in written
    assert "Connection refused" in written
    assert [problem.id for problem in problems()] == ["pgembed.E020"]


def test_another_width_than_the_settings_say_is_told(serve, capsys):
    serve(DIMENSIONS=768)

    with pytest.raises(CommandError):
        call_command("embed_probe")

    assert "set DIMENSIONS to 16" in capsys.readouterr().out
    assert [problem.id for problem in problems()] == ["pgembed.E021"]


def test_all_providers_are_asked_even_where_the_first_is_not_well(serve, capsys):
    serve("broken", MODEL="other")
    serve("well")

    with pytest.raises(CommandError, match=r"These failed: broken\."):
        call_command("embed_probe")

    assert "batch of 32" in capsys.readouterr().out


def test_an_error_of_the_providers_own_is_told_by_its_name(settings, capsys):
    backend = "tests.played.provider.RaisingProvider"
    declared = {"BACKEND": backend, "MODEL": "mine", "DIMENSIONS": 8}
    settings.PGEMBED_PROVIDERS = {"default": declared}

    with pytest.raises(CommandError, match="These failed: default"):
        call_command("embed_probe")

    assert "mine (provider 'default') raised OSError." in capsys.readouterr().out
    assert [problem.id for problem in problems()] == ["pgembed.E021"]


@pytest.mark.parametrize("arguments", [["nobody"], ["default", "nobody"]])
def test_an_unknown_provider_is_a_mistake_of_the_call(serve, arguments):
    server = serve()

    with pytest.raises(CommandError, match="No provider named 'nobody'") as raised:
        probe(*arguments)

    assert raised.value.returncode == 2
    assert server.asked == []


def test_without_providers_there_is_nothing_to_probe(settings):
    settings.PGEMBED_PROVIDERS = {}

    with pytest.raises(CommandError, match="PGEMBED_PROVIDERS is empty") as raised:
        probe()

    assert raised.value.returncode == 2


def test_the_check_talks_to_nobody_unless_asked_for_deployment(serve):
    server = serve()

    assert problems(deploy=False) == []
    assert server.asked == []


def test_an_unusable_setting_is_left_to_the_check_of_settings(settings):
    settings.PGEMBED_PROVIDERS = {"default": {"BACKEND": "nowhere.Provider"}}

    assert problems() == []


def test_the_smallest_batch_that_is_nearly_as_fast_is_recommended():
    times = iter([0.0, 0.1, 1.0, 1.21, 2.0, 2.8])  # 100, 26 and 25 ms for each text
    provider = DeterministicProvider(alias="a", model="m", dimensions=8)

    report = probes.report(provider, clock=lambda: next(times))

    assert report.recommended_batch_size == 8
    assert [round(timing.milliseconds_per_text) for timing in report.timings] == [100, 26, 25]


def test_a_batch_that_fails_is_told_and_not_recommended(serve):
    server = serve()
    server.poison = lambda text: played.plain(500, "too much") if text[:3] == "32." else None

    report = providers.report(providers.get())

    assert report.ok
    assert report.timings[-1].milliseconds_per_text is None
    assert "too much" in report.timings[-1].message
    assert report.recommended_batch_size in (1, 8)


@pytest.fixture
def reranking(serve, settings) -> Iterator[played.Reranking]:
    serve()
    with played.serving(played.Reranking()) as server:
        config = {"BACKEND": "pgembed_django.rerankers.http.HttpReranker", "MODEL": "m"}
        settings.PGEMBED_RERANKERS = {"best": {**config, "OPTIONS": {"base_url": server.url}}}
        yield server


def test_rerankers_are_asked_too(reranking):
    written = probe()

    assert "m (reranker 'best')\n  first passage:" in written
    assert "  50 passages:" in written
    assert "timeout_seconds" not in written
    assert [len(texts) for texts in reranking.asked] == [1, 50]


def test_rerankers_are_not_asked_where_a_provider_is_named(reranking):
    probe("default")

    assert not reranking.asked


def test_a_reranker_that_searches_would_not_wait_for_is_told(reranking, settings):
    settings.PGEMBED_RERANKERS["best"]["OPTIONS"]["timeout_seconds"] = 1e-6

    assert "Searches wait 1e-06 s for it: see timeout_seconds." in probe()


def test_a_reranker_that_fails_is_told(reranking, capsys):
    reranking.faults.append(played.plain(503, "still loading"))

    with pytest.raises(CommandError, match=r"These failed: best\."):
        call_command("embed_probe")
    assert "answered 503: still loading" in capsys.readouterr().out


def test_a_reranker_that_cannot_be_built_is_told(serve, settings):
    serve()
    settings.PGEMBED_RERANKERS = {"best": {"BACKEND": "nowhere.Class", "MODEL": "m"}}

    with pytest.raises(CommandError, match=r"PGEMBED_RERANKERS\['best'\]: BACKEND is"):
        call_command("embed_probe")


@pytest.fixture
def listing(settings: Any) -> Iterator[Callable[..., str]]:
    """Return what the command writes of a server that answers any name, and lists some."""
    with ExitStack() as stack:

        def ask(answer: played.Reply | list[str]) -> str:
            server = stack.enter_context(played.serving(played.OpenAI()))
            if isinstance(answer, list):
                answer = played.reply({"object": "list", "data": [{"id": one} for one in answer]})
            server.other = lambda seen: answer
            settings.PGEMBED_PROVIDERS = {
                "default": {
                    "BACKEND": "pgembed_django.providers.openai.OpenAIProvider",
                    "MODEL": server.model,
                    "DIMENSIONS": server.width,
                    "OPTIONS": {"base_url": server.url + "/v1"},
                }
            }
            return probe()

        yield ask


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (["plaid"], "Did you mean 'plaid'? It lists 'plaid'."),
        (["minilm.gguf", "bge-m3"], "It lists 'minilm.gguf', 'bge-m3'."),
        (["elsewhere/played-2"], "It lists 'elsewhere/played-2'."),
        (
            [f"vendor/model-{number}" for number in range(4000)],
            "It lists 4,000 models, such as 'vendor/model-0', 'vendor/model-1', 'vendor/model-2', "
            "'vendor/model-3', 'vendor/model-4'.",
        ),
    ],
)
def test_a_model_that_the_server_does_not_list_is_a_warning(listing, listed, told):
    written = listing(listed)

    assert f"/v1 does not list the model 'played'. {told} Some servers answer" in written
    assert "model:                  unknown" in written
    assert "recommended batch_size" in written
    [problem] = problems()
    assert problem.id == "pgembed.W013"
    assert told in problem.msg


@pytest.mark.parametrize(
    "listed",
    [
        ["other", "played"],
        ["Played"],
        ["played:latest"],  # Ollama's
        ["models/played"],  # Gemini's
        ["/home/models/played"],  # llama.cpp's
        [],
    ],
)
def test_a_model_that_the_server_lists_by_its_full_name_is_no_doubt(listing, listed):
    written = listing(listed)

    assert "does not list" not in written
    assert "model:                  present" in written
    assert problems() == []


def test_other_names_that_the_server_lists_for_a_model_are_known(listing):
    model = {"id": "minilm.gguf", "aliases": ["mini", "played"]}

    assert "does not list" not in listing(played.reply({"data": [model]}))


def test_a_bare_list_of_models_is_read_too(listing):
    assert "It lists 'plaid'." in listing(played.reply([{"id": "plaid"}]))


@pytest.mark.parametrize(
    "answer",
    [
        played.HTML,
        played.EMPTY,
        played.NO_ROUTE,
        played.HANG_UP,
        played.SILENT,
        played.DRIP,
        played.plain(200, "["),
        played.plain(200, "[" * 100_000),
        played.plain(500, "no"),
        played.plain(429, "slow down", Retry_After="600"),
        played.plain(301, "", Location="http://127.0.0.1:9/"),
        *map(
            played.reply,
            [
                None,
                5,
                "played",
                [],
                ["plaid"],
                {"data": None},
                {"data": 5},
                {"data": {"plaid": 1}},
                {"data": [{"name": "plaid"}, {"id": None}, {"id": 5}, {"id": ["plaid"]}, None]},
                {"data": [{"id": None, "aliases": 5}]},
            ],
        ),
    ],
)
def test_a_server_that_lists_nothing_usable_is_well_all_the_same(listing, monkeypatch, answer):
    monkeypatch.setattr(openai, "LIST_SECONDS", 0.2)

    written = listing(answer)

    assert "does not list" not in written
    assert "recommended batch_size" in written


def test_names_that_a_server_lists_are_quoted_safely(listing):
    written = listing(["\ud800\x1b[31m\n" + "x" * 10_000, "token=abcdefghij"])

    assert "abcdefghij" not in written
    assert "\x1b" not in written
    assert "x" * 400 not in written


@pytest.fixture
def local(settings):
    """A model in a process of its own, which takes longer to start than half a lease."""
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": "tests.providers.PlayedLocalProvider",
            "MODEL": "played",
            "DIMENSIONS": 4,
            "EXECUTOR": {"BACKEND": "pgembed_django.executors.OwnProcess"},
        }
    }
    yield providers.get()
    providers.get().close()


def test_a_local_model_tells_what_it_runs_on_and_how_fast(local, capsys):
    call_command("embed_probe")

    written = capsys.readouterr().out
    assert "runs on:                cpu, float32, OwnProcess" in written
    assert re.search(r"starts in: +\d+\.\d s\n", written)
    assert "batch of 256:" in written
    assert re.search(r"rate: +[\d,]+ texts of 200 words per second", written)


def test_a_lease_that_is_too_short_for_a_model_to_start_is_told(local, settings):
    assert problems() == []
    settings.PGEMBED_LEASE_SECONDS = local.start_seconds

    [problem] = problems()

    assert problem.id == "pgembed.W022"
    assert "The model of the provider 'default' takes" in problem.msg
    assert f"to {math.ceil(local.start_seconds * 2)} or more" in problem.hint
