"""OpenMetrics text, judged by the parser of Prometheus' own Python client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from rmq_store.format.text.openmetrics import Metric, MetricFamily, openmetrics_text

LAG = Metric("rmq_lag_seconds", "gauge", "How late.", ("topic", "queue_id"), "seconds")
SENT = Metric("rmq_sent_messages", "counter", "How many.", ("topic",))


def test_the_text_is_what_the_specification_shows() -> None:
    lags, sent = [(("Orders", "0"), 1.5), (("", ""), 0)], [(("Orders",), 1 << 60)]
    families = [MetricFamily(LAG, lags), MetricFamily(SENT, sent)]
    assert openmetrics_text(families) == (
        "# HELP rmq_lag_seconds How late.\n"
        "# TYPE rmq_lag_seconds gauge\n"
        "# UNIT rmq_lag_seconds seconds\n"
        'rmq_lag_seconds{topic="Orders",queue_id="0"} 1.5\n'
        "rmq_lag_seconds 0\n"
        "# HELP rmq_sent_messages How many.\n"
        "# TYPE rmq_sent_messages counter\n"
        'rmq_sent_messages_total{topic="Orders"} 1152921504606846976\n'
        "# EOF\n"
    )
    classic = openmetrics_text(families, classic=True)
    assert "# TYPE rmq_sent_messages_total counter\n" in classic
    assert "UNIT" not in classic
    assert "EOF" not in classic


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 53), 1 << 53))
def test_whatever_a_label_holds_both_parsers_read_it_back(value: str, number: float) -> None:
    families = [MetricFamily(LAG, [((value, "0"), number)]), MetricFamily(SENT, [((value,), abs(number))])]
    expected = {"topic": value} if value else {}
    for read, text in ((parse, openmetrics_text(families)), (parse_classic, openmetrics_text(families, classic=True))):
        lag, sent = read(text)
        assert (lag.name, lag.type) == ("rmq_lag_seconds", "gauge")
        assert (sent.name, sent.type) == ("rmq_sent_messages", "counter")
        assert [(sample.labels, sample.value) for sample in lag.samples] == [(expected | {"queue_id": "0"}, number)]
        assert [(sample.name, sample.labels) for sample in sent.samples] == [("rmq_sent_messages_total", expected)]


def test_an_empty_family_and_no_family_at_all_are_texts_too() -> None:
    assert list(parse(openmetrics_text([]))) == []
    (family,) = parse(openmetrics_text([MetricFamily(LAG, [])]))
    assert (family.unit, family.samples) == ("seconds", [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "rmq.lag"}, {"name": "rmq_sent_total"}, {"labels": ("queueId",)}, {"help": 'a "quote"'}, {"help": ""},
        {"unit": "seconds"},
    ],
)  # fmt: skip
def test_a_metric_that_the_format_cannot_say_is_a_mistake_of_ours(wrong: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        Metric(**({"name": "rmq_lag", "kind": "gauge", "help": "x"} | wrong))  # type: ignore[arg-type]


def test_a_number_that_is_none_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        openmetrics_text([MetricFamily(LAG, [(("", ""), float("nan"))])])
