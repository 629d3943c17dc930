"""The dashboard and the alerts use only what is exported. Exported is what the docs list:
``tests/db/test_metrics.py`` holds them to the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from tests.docs_tables import DOCS, documented_metrics

DASHBOARD = json.loads((DOCS / "deploy/grafana-dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DOCS / "deploy/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
]

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds to whatever it scrapes."""

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def exported() -> dict[str, set[str]]:
    """Return the labels of each series that can be asked for, by its name."""
    found = {"process_resident_memory_bytes": set(SCRAPED)}
    for name, (kind, labels) in documented_metrics().items():
        for suffix in SUFFIXES[kind]:
            found[name + suffix] = labels | SCRAPED | ({"le"} if suffix == "_bucket" else set())
    return found


def parsed(expression: str) -> Any:
    """Parse as Prometheus would, with values for Grafana's variables."""
    return promql_parser.parse(
        expression.replace("$__rate_interval", "5m").replace("$spec", "blog.+")
    )


def selectors(node: Any) -> Iterator[Any]:
    """Yield the series that an expression reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for child in children(node):
        yield from selectors(child)


def children(node: Any) -> Iterator[Any]:
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            yield child
    args = getattr(node, "args", None)
    yield from args or ()


def groupings(node: Any) -> Iterator[tuple[Any, set[str]]]:
    """Yield the nodes that name labels to group or match by, with these labels."""
    modifier = getattr(node, "modifier", None)
    for holder in (modifier, getattr(modifier, "matching", None)):
        labels = getattr(holder, "labels", None)
        if labels:
            yield node, set(labels)
    for child in children(node):
        yield from groupings(child)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_that_is_asked_for_is_exported(expression: str) -> None:
    found = list(selectors(parsed(expression)))

    assert found
    for selector in found:
        assert selector.name in exported()
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= exported()[selector.name], selector.name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_that_is_grouped_by_exists(expression: str) -> None:
    for node, labels in groupings(parsed(expression)):
        for selector in selectors(node):
            assert labels <= exported()[selector.name], selector.name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_counter_is_never_read_as_it_stands(expression: str) -> None:
    """It starts at zero with each worker."""
    text = re.sub(r"(?:rate|increase)\([^()]*\)", "", expression)

    assert not re.search(r"_total|_bucket|_sum\b|_count\b", text)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_names_only_labels_that_it_has(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    wanted = set(re.findall(r"\$labels\.(\w+)", text))
    kept = set.union(set(), *(labels for _, labels in groupings(parsed(rule["expr"]))))

    assert wanted <= kept
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_the_values_that_are_asked_for_exist() -> None:
    page = (DOCS / "reference/metrics.md").read_text()
    for parameter in EXPRESSIONS:
        for selector in selectors(parsed(str(parameter.values[0]))):
            for matcher in selector.matchers.matchers:
                if matcher.name in ("state", "space", "kind", "outcome"):
                    assert f"`{matcher.value}`" in page


def test_every_alert_is_explained_and_no_other() -> None:
    explained = set(
        re.findall(r"^\| `(Pgembed\w+)`", (DOCS / "how-to/monitor.md").read_text(), re.M)
    )

    assert explained == {rule["alert"] for rule in RULES}


def test_every_metric_is_on_the_dashboard_or_in_an_alert_but_these() -> None:
    read = {
        selector.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for parameter in EXPRESSIONS
        for selector in selectors(parsed(str(parameter.values[0])))
    }

    assert set(documented_metrics()) - read == {
        "pgembed_held_jobs",
        "pgembed_loop_age_seconds",
        "pgembed_oldest_waiting_seconds",
        "pgembed_rows",
        "pgembed_worker_info",
    }


def test_the_panels_are_on_the_page_and_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))


def test_the_dashboards_variables_are_the_ones_that_it_uses() -> None:
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}

    assert used == declared == {"datasource", "spec"}
    [spec] = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "spec"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", spec["definition"]).groups()
    assert label in exported()[name]
