"""Without the extras everything runs, nothing of them is loaded, and what is missing is named."""

from __future__ import annotations

import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from pgembed_django.contrib import metrics
from pgembed_django.executors import Recipe
from pgembed_django.executors.ray import Ray
from pgembed_django.management.commands import embed_worker


@pytest.fixture
def without_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)


def test_the_view_names_the_extra_that_it_lacks(without_prometheus) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'pgembed-django\[metrics\]'"):
        metrics.view(RequestFactory().get("/metrics"))


def test_a_workers_port_is_there_without_the_extra_and_names_it(without_prometheus) -> None:
    answer = embed_worker._metrics(object())("")  # type: ignore[arg-type]

    assert answer.status == 501
    assert "pgembed-django[metrics]" in str(answer.body)


def test_a_model_on_ray_names_the_extra_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ImproperlyConfigured, match=r'pip install "pgembed-django\[ray\]"'):
        Ray(Recipe(load="", model="any"))
