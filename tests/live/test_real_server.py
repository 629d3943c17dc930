"""A real embedding server: llama.cpp's, with real weights.

``minilm.json`` holds texts and their vectors (float16, base64) by sentence-transformers 6.2.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import requests
from django.core.management import call_command
from django.test import override_settings

from pgembed_django import providers, search, spaces
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderMisconfigured, ProviderUnavailable
from pgembed_django.models import Job
from pgembed_django.providers.openai import OpenAIProvider
from tests import played
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until

if TYPE_CHECKING:
    from tests.live.llama import Llama

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

REFERENCE = json.loads(Path(__file__).with_name("minilm.json").read_text())
BACKEND = "pgembed_django.providers.openai.OpenAIProvider"
CLOSE = 0.999
HOSTILE = [
    "",
    " \n\t ",
    "a" * 100_000,
    "word " * 5_000,
    "\u202eright to left\u202c \u0301\u0301\u0301",
    "🦉" * 2_000,
    "漢字" * 3_000,
    "\ufffd\ufeff\u0007\u001b[31m",
    "[CLS] [SEP] [MASK] [PAD] <s> </s> <|endoftext|>",
    '{"input": ["a"]}, "model": "b"',
    "' OR 1 = 1 --",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """MiniLM, and MiniLM without its upper three layers: another model of the same width."""
    from tests.live import minilm

    folder = tmp_path_factory.mktemp("models")
    return {layers: minilm.write(folder / f"{layers}.gguf", layers=layers) for layers in (6, 3)}


@pytest.fixture
def llama(models: dict[int, Path], tmp_path: Path) -> Iterator[Any]:
    from tests.live.llama import Llama

    server = Llama(tmp_path / "llama.log")
    server.start(models[6])
    yield server
    server.kill()


def provider(url: str, **options: Any) -> OpenAIProvider:
    return OpenAIProvider(alias="default", model="minilm", dimensions=384, base_url=url, **options)


def declared(url: str, *, model: str = "minilm", **options: Any) -> dict[str, Any]:
    return {
        "BACKEND": BACKEND,
        "MODEL": model,
        "DIMENSIONS": 384,
        "OPTIONS": {"base_url": url, **options},
    }


def settings(url: str, **given: Any) -> dict[str, Any]:
    return {
        "PGEMBED_PROVIDERS": {"default": declared(url, **given)},
        "PGEMBED_RECONCILE_SECONDS": 1,
        "PGEMBED_CANARY_SECONDS": 300,
    }


def cosine(left: Any, right: Any) -> float:
    left, right = np.asarray(left, float), np.asarray(right, float)
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def test_vectors_are_those_of_the_reference(llama):
    outcomes = provider(llama.url + "/v1").embed_each(list(REFERENCE))

    for outcome, expected in zip(outcomes, REFERENCE.values(), strict=True):
        vector = np.frombuffer(base64.b64decode(expected), "<f2")
        assert cosine(outcome.vector, vector) > CLOSE


def test_hostile_texts_are_stored_as_the_server_answers_them(llama, start_worker):
    Note.objects.bulk_create(Note(body=text) for text in HOSTILE)
    start_worker(**settings(llama.url + "/v1"))
    wait_until(lambda: not Job.objects.filter(status__in=("pending", "running")).exists())

    assert not Job.objects.filter(status="failed").exists()
    stored = NoteEmbedding.objects.filter(embedding__isnull=False)
    assert set(stored.values_list("source__body", flat=True)) == {
        text for text in HOSTILE if text.strip()
    }
    for chunk in stored.filter(was_cut=False):
        assert cosine(chunk.embedding, llama.embed(chunk.passage)) > CLOSE


def test_a_server_killed_in_mid_run_costs_nobody_an_attempt(llama, models, start_worker):
    rows = 600
    Note.objects.bulk_create(Note(body=f"note {n} about {n * 7}") for n in range(rows))
    worker = start_worker(**settings(llama.url + "/v1"))
    for asked in (50, 250):
        wait_until(lambda asked=asked: embedded() > asked)
        llama.kill()
        wait_until(lambda: "is paused" in worker.log.read_text())
        llama.start(models[6])
    wait_until(lambda: embedded() == rows, seconds=90)
    wait_until(lambda: Job.objects.filter(status="succeeded").count() == rows)

    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}
    chunk = NoteEmbedding.objects.get(source__body="note 599 about 4193")
    assert cosine(chunk.embedding, llama.embed(chunk.passage)) > CLOSE


def test_an_address_without_v1_is_told(llama):
    with pytest.raises(ProviderMisconfigured, match="/v1"):
        provider(llama.url).embed_batch(["a", "b"])


class Infinity(played.OpenAI):
    """Cuts texts to 128 tokens and answers all the same: those of the model, by its vocabulary."""

    def __init__(self, model: Llama) -> None:
        super().__init__(width=384)
        self.real = model

    def vector_of(self, text: str) -> np.ndarray:
        return np.asarray(self.real.embed(self.real.cut(text, tokens=128)), dtype=np.float32)


def test_what_a_server_cuts_silently_is_cut_here_and_marked(llama, start_worker):
    bodies = ["A ship came in. " * 5, "A ship came in. " * 40, "船进港了。" * 40]
    Note.objects.bulk_create(Note(body=body) for body in bodies)
    with played.serving(Infinity(llama)) as server:
        settings_ = settings(server.url + "/v1")
        settings_["PGEMBED_PROVIDERS"]["default"]["MODEL"] = server.model
        start_worker(**settings_)
        wait_until(
            lambda: Job.objects.filter(status="succeeded").count() == len(bodies), seconds=120
        )
        sent = {text for texts in server.asked for text in texts}

    for chunk in NoteEmbedding.objects.all():
        fits = llama.count(chunk.passage) <= 128
        assert chunk.was_cut is not fits
        starts = [text for text in sent if chunk.passage.startswith(text)]
        whole = [text for text in starts if llama.count(text) <= 128]
        assert max(cosine(chunk.embedding, llama.embed(text)) for text in whole) > 0.9999


def test_a_wrong_name_is_told_with_the_one_that_the_server_lists(llama, models):
    out = io.StringIO()

    with override_settings(**settings(llama.url + "/v1")):
        call_command("embed_probe", stdout=out)

    told = f"does not list the model 'minilm'. It lists '{models[6]}'."
    assert told in out.getvalue()
    assert "recommended batch_size" in out.getvalue()  # it answers any name

    with override_settings(**settings(llama.url + "/v1", model=models[6].name)):
        assert providers.get().probe().doubt == ""


def test_another_model_behind_the_same_address_is_noticed(llama, models, start_worker):
    Note.objects.bulk_create(Note(body=f"note {n}") for n in range(50))
    worker = start_worker(**settings(llama.url + "/v1"))
    wait_until(lambda: embedded() == 50)

    llama.kill()
    llama.start(models[3])
    Note.objects.bulk_create(Note(body=f"later {n}") for n in range(50))
    wait_until(lambda: "embed_spaces renew" in worker.log.read_text(), seconds=60)

    # By words alone, although the server answers.
    wait_until(lambda: NoteEmbedding.objects.count() == 100)
    assert embedded() == 50
    assert spaces.active(specs.get("app.NoteEmbedding"), using="default") is not None
    assert [note.body for note in search(Note, "later 7", limit=1)] == ["later 7"]

    llama.kill()
    llama.start(models[6])
    worker.terminate()  # rather than to wait until it asks again: its pauses grow to a minute
    start_worker(**settings(llama.url + "/v1"))
    wait_until(lambda: embedded() == 100, seconds=90)
    chunk = NoteEmbedding.objects.get(source__body="later 7")
    assert cosine(chunk.embedding, llama.embed("later 7")) > CLOSE


def embedded() -> int:
    return NoteEmbedding.objects.filter(embedding__isnull=False).count()


# Behind LiteLLM's proxy, where its command is at hand: it needs an environment of its own.

LITELLM = os.environ.get("PGEMBED_TEST_LITELLM") or shutil.which("litellm")
KEY = "sk-only-for-tests-0123456789abcdef"


@pytest.fixture
def litellm(llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a proxy in front of llama.cpp, with a key and one model."""
    from tests.live.llama import free_port

    config = tmp_path / "litellm.json"
    upstream = {"model": "openai/minilm", "api_base": f"{llama.url}/v1", "api_key": "none"}
    config.write_text(
        json.dumps({"model_list": [{"model_name": "minilm", "litellm_params": upstream}]})
    )
    port = free_port()
    monkeypatch.setenv("TEST_KEY", KEY)
    with (tmp_path / "litellm.log").open("w") as log:
        process = subprocess.Popen(
            [LITELLM, "--config", config, "--host", "127.0.0.1", "--port", str(port)],
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.fspath(tmp_path),
                "LITELLM_MASTER_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(requests.ConnectionError):
            return requests.get(f"{url}/health/liveliness", timeout=5).status_code == 200
        return False

    wait_until(answers, seconds=120)
    yield f"{url}/v1"
    process.kill()
    process.wait()


@pytest.mark.skipif(LITELLM is None, reason="PGEMBED_TEST_LITELLM names no litellm command")
def test_a_server_behind_litellm_is_treated_as_itself(llama, models, litellm, start_worker):
    proxied = provider(litellm, api_key_env="TEST_KEY")
    for outcome, expected in zip(
        proxied.embed_each(list(REFERENCE)), REFERENCE.values(), strict=True
    ):
        assert cosine(outcome.vector, np.frombuffer(base64.b64decode(expected), "<f2")) > CLOSE
    # A missing key is a bare 500 there. Nothing of it is the texts' fault.
    with pytest.raises(ProviderUnavailable):
        provider(litellm).embed_each(["a", "b"])
    with pytest.raises(ProviderMisconfigured, match="nope"):
        OpenAIProvider(
            alias="default", model="nope", dimensions=384, base_url=litellm, api_key_env="TEST_KEY"
        ).embed_each(["a", "b"])

    llama.kill()
    Note.objects.bulk_create(Note(body=text) for text in ["a" * 20_000, *HOSTILE[4:]])
    worker = start_worker(**settings(litellm, api_key_env="TEST_KEY"))
    wait_until(lambda: "is paused" in worker.log.read_text(), seconds=60)
    llama.start(models[6])
    wait_until(lambda: embedded_notes() == 8, seconds=90)

    assert set(Job.objects.values_list("status", "attempts", "crashes")) == {("succeeded", 0, 0)}


def embedded_notes() -> int:
    stored = NoteEmbedding.objects.filter(embedding__isnull=False)
    return stored.values("source").distinct().count()
