"""Without the extras everything runs, nothing of them is loaded, and what is missing is named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from pgembed_django.contrib import metrics
from pgembed_django.management.commands import embed_worker
from tests.unit.test_docs import ROOT

LOADED = """
import sys
import django
django.setup()
import pgembed_django.contrib.metrics, pgembed_django.contrib.tracing
import pgembed_django.management.commands.embed_worker
from django.core.management import call_command
call_command("check")
print([name for name in ("prometheus_client", "opentelemetry") if name in sys.modules])
"""


@pytest.fixture
def without_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)


def test_what_nobody_asked_for_is_not_loaded() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.splitlines()[-1] == "[]"


def test_the_view_names_the_extra_that_it_lacks(without_prometheus) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'pgembed-django\[metrics\]'"):
        metrics.view(RequestFactory().get("/metrics"))


def test_a_workers_port_is_there_without_the_extra_and_names_it(without_prometheus) -> None:
    answer = embed_worker._metrics(object())("")  # type: ignore[arg-type]

    assert answer.status == 501
    assert "pgembed-django[metrics]" in str(answer.body)
