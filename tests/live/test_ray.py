"""Models in the actors of a real Ray cluster, which is started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ProviderMisconfigured, ProviderUnavailable
from pgembed_django.executors import InProcess
from pgembed_django.models import Job
from pgembed_django.providers.openai import OpenAIProvider
from tests.app.models import Note, NoteEmbedding
from tests.conftest import REPOSITORY, wait_until
from tests.live.conftest import wait_for_log
from tests.played.bag import PID, WIDTH, recipe

pytest.importorskip("ray")

from pgembed_django.executors import ray as ours

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

TRIES = 3
"""A node gives up if its own helpers take long to start, as on a busy machine."""


grpc = find_spec("grpc")
"""What ray:// needs: the extra has it."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Cluster:
    """A head without a dashboard. It has room for eight actors of half a core."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self.client_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None
        self._starts = 0

    def start(self) -> None:
        for _ in range(TRIES):
            self._starts += 1
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                    *(f"--port={self.port}", "--num-cpus=4", "--object-store-memory=100000000"),
                    *("--include-dashboard=false", "--disable-usage-stats"),
                    *([f"--ray-client-server-port={self.client_port}"] if grpc else []),
                    f"--temp-dir={self._folder}/{self._starts}",
                ],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert self._process.stdout
            said = ""
            for line in self._process.stdout:
                said += line
                if "--block" in line:
                    return
            self.stop()
        pytest.skip(f"Ray does not start here: {said}")

    def stop(self) -> None:
        """Kill the head with all that it has started, without a warning."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                if f"{self._folder}/{self._starts}/" in path.read_text():
                    os.kill(int(path.parent.name), signal.SIGKILL)
        if self._process and self._process.stdout:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        pytest.MonkeyPatch.context() as patch,
        # Not in pytest's own folder: the path of a socket must not be long.
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_AUTH_MODE", "disabled")
        made = Cluster(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextmanager
def executor(cluster: Cluster, name: str = "shared", **options: Any) -> Iterator[ours.Ray]:
    given = {"address": cluster.address, "cpus": 0.5, **options}
    with closing(ours.Ray(recipe(name), **given)) as made:
        yield made


def settings(address: str, name: str, **others: Any) -> dict[str, Any]:
    """Return the settings of a worker whose model runs at an address."""
    return {
        "PGEMBED_PROVIDERS": {
            "default": {
                "BACKEND": "tests.played.bag.BagProvider",
                "MODEL": name,
                "DIMENSIONS": WIDTH,
                "OPTIONS": {"batch_size": 8},
                "EXECUTOR": {
                    "BACKEND": "pgembed_django.executors.ray.Ray",
                    "ADDRESS": address,
                    "ACTORS": 2,
                    "CPUS": 0.5,
                },
            }
        },
        **others,
    }


def pid_of(one: ours.Ray) -> int:
    return int(one.compute([PID]).values[0][0])


def make_notes(count: int) -> None:
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(count))


def embedded() -> int:
    return NoteEmbedding.objects.filter(embedding__isnull=False).count()


def test_vectors_are_those_of_a_model_in_process(cluster: Cluster):
    texts = [f"text {number}" for number in range(100)]

    with executor(cluster) as one:
        assert one.start().hardware == "bag"
        found = one.compute(texts).values
        status = one.status()

    np.testing.assert_array_equal(found, InProcess(recipe("shared")).compute(texts).values)
    assert (status.kind, status.wanted, list(status.devices)) == ("Ray", 1, ["bag"])


def test_processes_share_actors_which_outlive_them(cluster: Cluster):
    code = (
        "from tests.live.test_ray import *; import sys;"
        "one = ours.Ray(recipe('shared'), address=sys.argv[1], cpus=0.5);"
        "print(pid_of(one))"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    code = "import django; django.setup();" + code
    done = subprocess.run(
        [sys.executable, "-c", code, cluster.address],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    with executor(cluster) as one:
        assert str(pid_of(one)) == done.stdout.strip()
    assert done.stderr == ""


@pytest.mark.skipif(not grpc, reason="ray[client] is not installed")
def test_a_machine_outside_of_the_cluster_uses_the_same_actors(cluster: Cluster):
    outside = f"ray://127.0.0.1:{cluster.client_port}"
    with executor(cluster) as one, executor(cluster, address=outside) as other:
        assert pid_of(other) == pid_of(one)
        assert list(other.status().devices) == ["bag"]


def test_ray_serve_is_a_server_like_others(cluster: Cluster):
    pytest.importorskip("starlette", reason="ray[serve] is not installed")
    port = free_port()
    subprocess.run(
        [sys.executable, "-m", "tests.played.ray_serve", cluster.address, str(port)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    texts = ["one", "two", "three"]
    provider = OpenAIProvider(
        alias="served",
        model="bag",
        dimensions=WIDTH,
        base_url=f"http://127.0.0.1:{port}/v1",
    )

    found = provider.embed_documents(texts)

    expected = InProcess(recipe("served")).compute(texts).values
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    provider.close()


def test_an_actor_that_nobody_needs_ends(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ours, "UNUSED_SECONDS", 3.0)
    with executor(cluster, "unused") as one:
        pid = pid_of(one)
        process = os.pidfd_open(pid)
    wait_until(lambda: has_ended(process))

    with executor(cluster, "unused") as one:
        assert pid_of(one) != pid


def has_ended(process: int) -> bool:
    try:
        signal.pidfd_send_signal(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_killed_actors_cost_no_row_and_no_attempt(
    cluster: Cluster, start_worker: Callable[..., Any]
):
    make_notes(400)
    start_worker(**settings(cluster.address, "killed"))
    with executor(cluster, "killed") as one:
        pid = pid_of(one)
        wait_until(lambda: embedded() >= 50)
        os.kill(pid, signal.SIGKILL)
        assert embedded() < 400
    wait_until(lambda: embedded() == 400)
    wait_until(lambda: not Job.objects.filter(status="running").exists())

    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_a_text_that_kills_its_actor_fails_alone(cluster: Cluster, start_worker):
    make_notes(20)
    Note.objects.create(body="poison")

    start_worker(**settings(cluster.address, "poisoned"), PGEMBED_MAX_CRASHES=2)
    failure = wait_until(Job.objects.filter(status="failed").first)
    wait_until(lambda: embedded() == 20)

    assert Note.objects.get(pk=failure.source_pk).body == "poison"
    assert "went down 2 times at this text alone: The Ray actor of the model" in failure.last_error
    others = Job.objects.exclude(pk=failure.pk)
    assert set(others.values_list("status", "attempts")) == {("succeeded", 0)}


def test_a_wrong_address_pauses_the_provider_and_charges_nothing(start_worker):
    make_notes(3)

    port = free_port()
    worker = start_worker(**settings(f"127.0.0.1:{port}", "nowhere"))
    wait_for_log(worker, f"ADDRESS is '127.0.0.1:{port}': no Ray cluster answers there. Start it,")

    assert set(Job.objects.values_list("status", "attempts")) <= {("pending", 0), ("running", 0)}
    assert worker.poll() is None


def test_an_address_without_a_port_says_what_one_is():
    with (
        closing(ours.Ray(recipe("any"), address="head")) as one,
        pytest.raises(ProviderMisconfigured, match=r'ADDRESS is \'head\'.*such as "head:6379"'),
    ):
        one.start()


@pytest.mark.parametrize(
    ("option", "value"), [("gpus", -1), ("cpus", "two"), ("actors", 0), ("address", "")]
)
def test_an_option_that_is_wrong_is_named(option: str, value: Any):
    with pytest.raises(ImproperlyConfigured, match=rf"^{option.upper()} is {value!r}\. "):
        ours.Ray(recipe("any"), **{option: value})


def test_an_actor_without_room_says_how_much_it_needs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ours, "START_SECONDS", 1.0)
    with (
        executor(cluster, "large", gpus=0.5) as one,
        pytest.raises(ProviderUnavailable, match=r"no actor with 0\.5 CPUs and 0\.5 GPUs within"),
    ):
        one.start()


def test_without_cpus_there_may_be_more_actors_than_cores(cluster: Cluster):
    with executor(cluster, "many", cpus=None, actors=5) as one:
        one.start()
        wait_until(lambda: one.status().running == 5)


def test_a_head_that_starts_again_costs_no_row_and_no_attempt(cluster: Cluster, start_worker):
    make_notes(50)
    worker = start_worker(**settings(cluster.address, "headless"))
    wait_until(lambda: embedded() == 50)

    cluster.stop()
    make_notes(50)
    wait_for_log(worker, "Ray cluster at")
    cluster.start()
    wait_until(lambda: embedded() == 100)

    wait_until(lambda: not Job.objects.filter(status="running").exists())
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}
    assert worker.poll() is None
