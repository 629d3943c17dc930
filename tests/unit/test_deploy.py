"""The files in docs/deploy say nothing that our commands and settings do not know.

What is wrong with them by their own schemas is told by ``tox run -e quality``.
"""

from __future__ import annotations

import configparser
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.db import connections
from django.test import override_settings

from pgembed_django import conf, providers
from pgembed_django.queue import maintenance

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OTHERS = {
    "DJANGO_SETTINGS_MODULE",
    "OLLAMA_HOST",
    "OLLAMA_KEEP_ALIVE",
    "OLLAMA_MODELS",
    "PORT",
    "POSTGRES_DB",
    "POSTGRES_PASSWORD",
    "POSTGRES_USER",
    "WORKER_DATABASE_URL",
}
"""Environment variables that neither our settings nor production.py name."""


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def unit() -> configparser.ConfigParser:
    class Unit(configparser.ConfigParser):
        optionxform = staticmethod(str)  # type: ignore[assignment]

    # Environment= stands there more than once: the last one counts here, all for systemd.
    parser = Unit(strict=False, interpolation=None)
    parser.read(DEPLOY / "pgembed-worker.service")
    return parser


def procfile() -> dict[str, str]:
    lines = (DEPLOY / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def manifests() -> list[dict[str, Any]]:
    return [one for path in KUBERNETES for one in yaml.safe_load_all(path.read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in manifests() if of(one) == (kind, name)]
    return found


def of(one: dict[str, Any]) -> tuple[str, str]:
    return one["kind"], one.get("metadata", {}).get("name", "")


def pods() -> dict[str, dict[str, Any]]:
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["spec"]["template"]["spec"]
        for one in manifests()
        if one["kind"] in ("Deployment", "Job", "StatefulSet")
    }


def containers() -> dict[str, dict[str, Any]]:
    return {name: pod["containers"][0] for name, pod in pods().items()}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield each command line with where it stands."""
    for name, service in compose()["services"].items():
        if "command" in service:
            yield f"compose.yaml, {name}", service["command"]
    for name, container in containers().items():
        if "command" in container:
            yield f"kubernetes, {name}", container["command"]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "exec" in container.get(probe, {}):
                yield f"kubernetes, {name}, {probe}", container[probe]["exec"]["command"]
    for name, line in procfile().items():
        yield f"Procfile, {name}", shlex.split(line)
    yield "pgembed-worker.service", shlex.split(unit()["Service"]["ExecStart"])
    for line in re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        yield "Dockerfile", json.loads(line)


@pytest.mark.parametrize(
    ("where", "words"), list(command_lines()), ids=[where for where, _ in command_lines()]
)
def test_every_command_line_is_one(where: str, words: list[str]) -> None:
    if "manage.py" not in words:
        assert words[0] in ("gunicorn", "ollama", "pg_isready", "postgres"), where
        return
    name, *arguments = words[words.index("manage.py") + 1 :]
    command = load_command_class(get_commands()[name], name)

    command.create_parser("manage.py", name).parse_args(arguments)


def test_workers_are_among_the_command_lines() -> None:
    started = [where for where, words in command_lines() if "embed_worker" in words]

    assert len(started) >= 4


def environment_of_compose() -> dict[str, str]:
    return dict(compose()["x-app"]["environment"])


def environment_of_kubernetes() -> dict[str, str]:
    return {
        **manifest("ConfigMap", "mysite")["data"],
        **manifest("Secret", "mysite")["stringData"],
    }


def names_set() -> set[str]:
    """Return all environment variables that the files set."""
    names = {*environment_of_compose(), *environment_of_kubernetes()}
    for service in compose()["services"].values():
        names |= set(service.get("environment", {}))
    for container in containers().values():
        names |= {one["name"] for one in container.get("env", ())}
    service = (DEPLOY / "pgembed-worker.service").read_text()
    return names | set(re.findall(r"^Environment=(\w+)=", service, re.MULTILINE))


def names_read() -> set[str]:
    return set(re.findall(r'os\.environ(?:\.get\(|\[)"(\w+)"', production()))


def production() -> str:
    return (DEPLOY / "production.py").read_text()


def test_every_environment_variable_is_read_by_somebody() -> None:
    assert names_set() - names_read() <= OTHERS
    for name in names_set():
        if name.startswith("PGEMBED_"):
            assert name in conf.NAMES


@pytest.mark.parametrize("given", [environment_of_compose(), environment_of_kubernetes()])
def test_what_the_settings_need_is_given(given: dict[str, str]) -> None:
    needed = set(re.findall(r'os\.environ\["(\w+)"\]', production()))

    assert needed - set(given) <= {"WORKER_DATABASE_URL"}  # asked for only where it is there


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that production.py makes of Kubernetes's environment and a pooler."""
    for name, value in environment_of_kubernetes().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORKER_DATABASE_URL", "postgresql://mysite@direct/mysite")
    project = ModuleType("mysite")
    monkeypatch.setitem(sys.modules, "mysite", project)
    monkeypatch.setitem(sys.modules, "mysite.settings", ModuleType("mysite.settings"))
    return runpy.run_path(str(DEPLOY / "production.py"))


def test_the_settings_are_good_ones(
    settled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    [worker] = settled["DATABASES"].keys() - {"default"}
    monkeypatch.setitem(connections.settings, worker, settled["DATABASES"][worker])
    ours = {name: value for name, value in settled.items() if name.startswith(conf.PREFIX)}

    with override_settings(**ours):
        assert list(conf.problems()) == []
        assert providers.get("default").base_url == "http://ollama:11434"
        assert conf.current().worker_database in settled["DATABASES"]
    assert settled["DATABASES"]["default"]["HOST"] == "postgres.mysite.svc"


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_nobody_is_killed_while_it_stops() -> None:
    """Requests in flight, then two threads with a step of the maintenance each."""
    needed = float(environment_of_kubernetes()["PGEMBED_STOP_GRACE_SECONDS"])
    assert float(environment_of_compose()["PGEMBED_STOP_GRACE_SECONDS"]) == needed
    assert f"PGEMBED_STOP_GRACE_SECONDS={needed:g}" in unit()["Service"]["Environment"]
    needed += 2 * maintenance.STOP_SECONDS

    assert seconds(compose()["services"]["worker"]["stop_grace_period"]) >= needed
    for name in ("worker", "worker-llm"):
        assert pods()[f"Deployment/{name}"]["terminationGracePeriodSeconds"] >= needed
    assert seconds(unit()["Service"]["TimeoutStopSec"]) >= needed


def test_both_ways_run_the_same_images() -> None:
    for theirs, ours in (
        ("postgres", "StatefulSet/postgres"),
        ("ollama", "Deployment/ollama"),
        ("pull-model", "Job/pull-model"),
    ):
        image = compose()["services"][theirs]["image"]
        assert containers()[ours]["image"] == image
        assert not image.endswith(":latest")


def test_the_pulled_model_is_the_settings_model(settled: dict[str, Any]) -> None:
    model = settled["PGEMBED_PROVIDERS"]["default"]["MODEL"]

    assert compose()["services"]["pull-model"]["entrypoint"][-1] == model
    assert containers()["Job/pull-model"]["command"][-1] == model


def test_every_container_says_what_it_needs() -> None:
    for name, container in containers().items():
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name


def test_every_manifest_is_applied_or_said_to_be_left_out() -> None:
    path = DEPLOY / "kubernetes" / "kustomization.yaml"
    applied = set(yaml.safe_load(path.read_text())["resources"])

    left_out = {"autoscaling.yaml", "ray.yaml", "tasks.yaml", "tasks-autoscaling.yaml"}
    assert {one.name for one in KUBERNETES} == applied | {"kustomization.yaml"} | left_out
    assert all(name in path.read_text() for name in left_out)


def test_every_manifest_with_a_schema_is_validated() -> None:
    tox = configparser.ConfigParser()
    tox.read(DEPLOY.parents[1] / "tox.ini")
    validated = {Path(path).name for path in tox["deploy"]["manifests"].split()}

    assert {one.name for one in KUBERNETES} - validated == {
        "kustomization.yaml",
        "autoscaling.yaml",
        "ray.yaml",
        "tasks-autoscaling.yaml",
    }


def test_no_secret_gets_into_the_image() -> None:
    said = (DEPLOY / "compose.yaml").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()

    assert "SECRET_KEY and POSTGRES_PASSWORD into .env" in said
    assert {"**/.env", "**/.env.*"} <= set(ignored)
    assert "COPY . ." in (DEPLOY / "Dockerfile").read_text()


def test_what_a_manifest_refers_to_is_there() -> None:
    known = {of(one) for one in manifests()}
    for container in containers().values():
        for source in container.get("envFrom", ()):
            for kind, there in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if there in source:
                    assert (kind, source[there]["name"]) in known
    for one in manifests():
        if one["kind"] == "Service":
            app = one["spec"]["selector"]["app"]
            assert {("Deployment", app), ("StatefulSet", app)} & known


WORKERS = pytest.mark.parametrize("name", ["worker", "worker-llm"])


@WORKERS
def test_keda_scales_the_worker_by_the_secret_that_is_there(name: str) -> None:
    scaled = manifest("ScaledObject", name)["spec"]
    [trigger] = scaled["triggers"]
    login = manifest("TriggerAuthentication", trigger["authenticationRef"]["name"])
    [reference] = login["spec"]["secretTargetRef"]

    assert manifest("Deployment", scaled["scaleTargetRef"]["name"])
    assert 1 <= scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    assert (trigger["type"], reference["parameter"]) == ("postgresql", "connection")
    assert reference["key"] in manifest("Secret", reference["name"])["stringData"]
    # KEDA compares numbers that it reads from strings.
    assert float(trigger["metadata"]["targetQueryValue"]) > 0


def test_keda_counts_on_as_many_tasks_as_a_worker_runs_at_once() -> None:
    command = containers()["Deployment/worker-llm"]["command"]
    [trigger] = manifest("ScaledObject", "worker-llm")["spec"]["triggers"]

    at_once = command[command.index("--tasks-concurrency") + 1]
    assert trigger["metadata"]["targetQueryValue"] == at_once
    queue = command[command.index("--queues") + 1]
    assert trigger["metadata"]["query"].count(f"spec = '{queue}'") == 3


@WORKERS
def test_probes_ask_the_port_that_the_worker_listens_on(name: str) -> None:
    worker = containers()[f"Deployment/{name}"]
    [port] = worker["ports"]
    listens = worker["command"][worker["command"].index("--listen") + 1]
    page = (DEPLOY.parent / "reference" / "probes.md").read_text()

    # All addresses: the kubelet comes from outside.
    assert listens == f"0.0.0.0:{port['containerPort']}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert worker[probe]["httpGet"]["port"] == port["name"]
        assert f"| `{worker[probe]['httpGet']['path']}`" in page
    annotations = manifest("Deployment", name)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert "pgembed-django[metrics]" in (DEPLOY / "requirements.txt").read_text()
    # A worker that is not ready is left alone, one that is stuck is not.
    assert worker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"


@WORKERS
def test_a_worker_ends_by_itself_before_it_is_killed_for_its_memory(name: str) -> None:
    worker = containers()[f"Deployment/{name}"]
    most = int(worker["command"][worker["command"].index("--max-memory") + 1])

    assert most < int(worker["resources"]["limits"]["memory"].removesuffix("Mi"))


def test_the_ray_cluster_is_the_one_that_its_page_connects_to() -> None:
    cluster = manifest("RayCluster", "mysite-ray")
    head, [group] = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    [head_container], [container] = (one["template"]["spec"]["containers"] for one in (head, group))
    page = (DEPLOY.parent / "how-to" / "ray.md").read_text()
    asked = dict(re.findall(r'"([A-Z]+)": "?([^",]+)"?,', page.split("EXECUTOR", 1)[1]))

    # KubeRay names the head's service so.
    host = f"{cluster['metadata']['name']}-head-svc"
    ports = {one["name"]: one["containerPort"] for one in head_container["ports"]}
    assert asked["ADDRESS"] == f"ray://{host}:{ports['client']}"
    # Each of the actors has its node.
    assert int(asked["ACTORS"]) == group["replicas"] == group["minReplicas"]
    assert asked["GPUS"] == container["resources"]["limits"]["nvidia.com/gpu"]
    assert asked["CPUS"] == container["resources"]["limits"]["cpu"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    # The workers' own image: other versions of Python or Ray cannot talk with each other.
    image = containers()["Deployment/worker"]["image"]
    assert {head_container["image"], container["image"]} == {image}
    for one in (head_container, container):
        assert {"cpu", "memory"} <= set(one["resources"]["requests"])
        assert "memory" in one["resources"]["limits"]


def test_the_health_check_looks_at_the_file_that_the_worker_touches() -> None:
    worker = compose()["services"]["worker"]
    path = worker["command"][worker["command"].index("--heartbeat-file") + 1]

    assert f"find {path} " in worker["healthcheck"]["test"][1]


def test_the_service_is_one_that_systemd_reads(tmp_path: Path) -> None:
    known = {
        "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
        "Install": {"WantedBy"},
        "Service": {
            *("User", "WorkingDirectory", "EnvironmentFile", "Environment", "ExecStart"),
            *("CPUWeight", "Nice", "Restart", "RestartSec", "SuccessExitStatus"),
            *("KillMode", "KillSignal", "TimeoutStopSec"),
            *("NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectSystem"),
        },
    }
    parser = unit()
    assert set(parser.sections()) == set(known)
    for section, names in known.items():
        assert set(parser[section]) <= names
    # A database that has yet to start ends it with 2: after a reboot, for instance.
    assert parser["Service"]["Restart"] == "always"
    assert "RestartPreventExitStatus" not in parser["Service"]
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"

    # Where there is a systemd, it is asked too.
    if shutil.which("systemd-analyze"):
        text = (DEPLOY / "pgembed-worker.service").read_text()
        mine = tmp_path / "pgembed-worker.service"
        mine.write_text(text.replace("/srv/mysite/.venv/bin/python", sys.executable))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(mine)], capture_output=True, text=True, check=False
        )
        assert "pgembed-worker" not in done.stderr, done.stderr
