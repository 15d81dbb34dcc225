from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.text import names


@pytest.mark.parametrize("topic", ["TopicTest", "%RETRY%g", "a|b", "_-", "x" * 127, "%DLQ%" + "g" * 250])
def test_topic_that_a_broker_takes_is_taken(topic: str) -> None:
    names.validate_topic(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        ".",
        "..",
        "a/b",
        "../x",
        "a b",
        "a\n",
        "topic\x00",
        "Тема",
        "a.b",
        "١",
        "x" * 128,
        "%RETRY%" + "g" * 249,
        "g+orders",
        "%DLQ%g+orders",
        "%RETRY%g+../orders",
        None,
    ],
)
def test_topic_that_is_no_safe_directory_name_is_refused(topic: str) -> None:
    with pytest.raises(UsageError, match="topic"):
        names.validate_topic(topic)


def test_retry_topic_of_a_brokers_pop_may_have_a_plus_and_belongs_to_the_group_before_it() -> None:
    names.validate_topic("%RETRY%g+orders")
    assert [names.retry_group(topic) for topic in ("%RETRY%g+orders", "%RETRY%g_orders")] == ["g", "g_orders"]


def test_group_has_its_own_limit() -> None:
    names.validate_group("g" * 120)
    for bad in ("g" * 121, "", "a/b", "g\n"):
        with pytest.raises(UsageError, match="group"):
            names.validate_group(bad)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topics_of_the_broker_are_system_topics(topic: str) -> None:
    assert names.is_system_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%orders", "%DLQ%orders", "RMQ_SYS_other", "schedule_topic_xxxx"])
def test_topics_of_users_are_not_system_topics(topic: str) -> None:
    assert not names.is_system_topic(topic)


@pytest.mark.statement("C11", "D04")
def test_retry_and_dlq_topics_carry_the_group_once() -> None:
    assert names.retry_topic("billing") == "%RETRY%billing"
    assert names.dlq_topic("billing") == "%DLQ%billing"


@given(st.integers(0, 2**63 - 1))
@pytest.mark.statement("G03")
def test_segment_name_sorts_and_reads_back(offset: int) -> None:
    assert names.parse_segment_name(f"{offset:020d}") == offset


@pytest.mark.statement("G03")
def test_second_gigabyte_segment_has_the_name_that_java_gives_it() -> None:
    assert names.parse_segment_name("00000000001073741824") == 1 << 30


@pytest.mark.parametrize(
    "name", ["", "1", "0" * 19, "0" * 21, "0" * 19 + "x", "-" + "0" * 19, "9" * 20, "٠" * 20, "0" * 20 + "\n"]
)
def test_other_file_names_are_no_segments(name: str) -> None:
    assert names.parse_segment_name(name) is None


@pytest.mark.statement("F04")
def test_index_file_is_named_by_local_time_of_its_creation() -> None:
    time_ms = 1795220514882
    assert names.index_file_name(time_ms, UTC) == "20261121002154882"
    assert names.index_file_name(time_ms, timezone(timedelta(hours=8))) == "20261121082154882"
    assert names.index_file_name(1795220514007, UTC).endswith("007")
    assert names.is_index_file_name(names.index_file_name(time_ms))


@pytest.mark.parametrize(
    "name", ["", "2026112100215488", "202611210021548820", "2026112100215488x", "20261121002154882\n"]
)
def test_other_file_names_are_no_index_files(name: str) -> None:
    assert not names.is_index_file_name(name)
