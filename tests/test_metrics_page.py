"""docs/metrics.md and the dashboard, compared with the metrics that the code has and a store shows.

    python tests/test_metrics_page.py       writes the tables of the page (PYTHONPATH=storage:connector)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq.lag.lag_metrics import STREAM_METRICS, stream_metrics
from rmq_store import Metric, Store, openmetrics_text, store_metrics
from rmq_store.broker.monitoring.metric_table import (
    BROKER_AWAY,
    QUEUE_METRICS,
    REPLICA_METRICS,
    SLAVE_METRICS,
    STORE_METRICS,
)
from rmq_store.reliable.database.outage import RELIABLE_METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "conf" / "grafana-dashboard.json"

TABLES = {
    "STORE_METRICS": STORE_METRICS, "QUEUE_METRICS": QUEUE_METRICS, "REPLICA_METRICS": REPLICA_METRICS,
    "SLAVE_METRICS": SLAVE_METRICS,
    "STREAM_METRICS": STREAM_METRICS,
    "RELIABLE_METRICS": RELIABLE_METRICS,
}  # fmt: skip
_NAME = re.compile(r"\b(?:rocketmq|rmq)_[a-z0-9_]+")
_SELECTED = re.compile(r"\b((?:rocketmq|rmq)_[a-z0-9_]+)\{([^}]*)\}")
_COLUMNS = 24  # of Grafana's grid


def tables(text: str) -> str:
    """The page with the tables that the code has now."""
    for name, metrics in TABLES.items():
        note = f"<!-- {name}: python tests/test_metrics_page.py -->\n"
        head, _, rest = text.partition(note)
        assert rest, name
        text = head + note + rows(metrics) + "<!-- end -->" + rest.partition("<!-- end -->")[2]
    return text


def rows(metrics: Iterable[Metric]) -> str:
    """A table of metrics. The labels of the node, which all metrics of a store have, are left out."""
    lines = ["", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = [f"`{label}`" for label in metric.labels if label not in ("cluster", "node_type", "node_id")]
        lines.append(f"| `{metric.sample_name}` | {metric.kind} | {', '.join(labels)} | {metric.help} |")
    return "\n".join([*lines, "", ""])


def test_the_page_lists_the_metrics_that_the_code_has() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == tables(text), "PYTHONPATH=storage:connector python tests/test_metrics_page.py"


def test_the_page_names_no_metric_that_is_not_there() -> None:
    """But for those of a broker that it says are missing here, and RocketMQ's own short name of one."""
    text = PAGE.read_text(encoding="utf-8")
    known = {name for metrics in TABLES.values() for metric in metrics for name in (metric.sample_name, metric.name)}
    not_here = {"rocketmq_messages_out_total", "rocketmq_messages_in_total", "rocketmq_consumer_lag_latency"}
    assert set(_NAME.findall(text)) - known - not_here == {
        "rmq_store",  # the package
        BROKER_AWAY.name,  # of a cluster alone
    }


# ---- the dashboard


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return value


@pytest.fixture(scope="module")
def exposed(golden: Path) -> set[str]:
    """The names of all samples and of all empty metrics that a real text has."""
    with Store.open(golden / "store", read_only=True) as store:
        text = openmetrics_text([*store_metrics(store), *stream_metrics([], 0)])
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {f"{name}_total" if kind == "counter" else name for name, kind in kinds}


def charts(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in charts(dashboard) for target in panel["targets"]]


def test_the_dashboard_asks_for_all_metrics_that_are_exposed_and_for_no_other(
    dashboard: dict[str, Any], exposed: set[str]
) -> None:
    variables = [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert {name for text in (*queries(dashboard), *variables) for name in _NAME.findall(text)} == exposed


def test_the_dashboard_selects_and_sums_by_labels_that_the_metrics_have(dashboard: dict[str, Any]) -> None:
    labels = {metric.sample_name: set(metric.labels) for metric in (*STORE_METRICS, *STREAM_METRICS)}
    for query in queries(dashboard):
        for name, selectors in _SELECTED.findall(query):
            used = set(re.findall(r"(\w+)=", selectors))
            assert used <= labels[name], query
        by = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in group.split(", ")}
        assert all(by <= labels[name] for name in _NAME.findall(query)), query
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert label in labels[name]


def test_the_dashboard_has_what_grafana_needs(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 38
    assert (dashboard["uid"], dashboard["title"]) == ("pyspark-rmq", "pyspark-rmq")
    assert "id" not in dashboard  # of somebody's Grafana: an import would overwrite what has it
    known = {variable["name"] for variable in dashboard["templating"]["list"]}
    (source,) = (one for one in dashboard["templating"]["list"] if one["type"] == "datasource")
    assert source["query"] == "prometheus"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= _COLUMNS
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in charts(dashboard):
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target["expr"].count("(") == target["expr"].count(")")
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= known, target["expr"]
    used = {name for query in queries(dashboard) for name in re.findall(r"\$(\w+)", query)}
    assert known - {"datasource"} <= used


if __name__ == "__main__":
    PAGE.write_text(tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
