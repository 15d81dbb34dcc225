"""Where queries start and end, on a home in memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.options.options import SourceOptions, source_options
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId
from pyspark_rmq.read import starting_offsets
from rmq_store import Message, Store
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.errors import DataLossError, UnknownTopicError, UsageError

Make = Callable[..., Any]
T0, T1, RETRY = Queue("T", 0), Queue("T", 1), Queue("%RETRY%g", 0)
BEGIN = StreamPosition("", {})
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
WHERE = ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP")


def options(use: str = "stream read", **given: str) -> SourceOptions:
    return source_options({"path": "/s"} | ({"subscribe": "T"} | given), use, 2_000_000)  # type: ignore[arg-type]


def start_in_cluster(home: Any, given: str) -> dict[Queue, int]:
    texts = {"nameServer": "ns:9876", "subscribe": "T", "startingOffsets": given}
    asked = source_options(texts, "batch read", 2_000_000)
    return starting_offsets.batch_start(home, asked, starting_offsets.subscribed(home, asked.subscription))


def start(home: Any, asked: SourceOptions) -> dict[Queue, int]:
    return starting_offsets.stream_start(home, asked, starting_offsets.subscribed(home, asked.subscription))


def test_subscriptions_name_topics_match_them_or_assign_queues(fake_store: Make) -> None:
    home = fake_store({T0: (0, 1), T1: (0, 2), Queue("T2", 0): (0, 3)})
    assert set(starting_offsets.subscribed(home, options().subscription)) == {T0, T1}
    assert set(starting_offsets.subscribed(home, options(subscribe="T2,T").subscription)) == {T0, T1, Queue("T2", 0)}
    assigned = source_options({"path": "/s", "assign": '{"T":[1]}'}, "batch read", 0)
    assert set(starting_offsets.subscribed(home, assigned.subscription)) == {T1}
    missing = source_options({"path": "/s", "assign": '{"T":[7]}'}, "batch read", 0)
    with pytest.raises(UsageError, match=r"'T' has no queue 7 to read; it has \[0, 1\]"):
        starting_offsets.subscribed(home, missing.subscription)
    with pytest.raises(UnknownTopicError):
        starting_offsets.subscribed(home, options(subscribe="Nope").subscription)


@pytest.mark.statement("D02")
def test_a_pattern_matches_whole_names_and_leaves_out_what_is_not_the_users() -> None:
    topics = dict.fromkeys(["Orders", "Orders2", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_pyrmq_units"])
    assert starting_offsets.matching_topics(topics, "Orders") == ["Orders"]
    assert starting_offsets.matching_topics(topics, ".*") == ["Orders", "Orders2"]
    assert starting_offsets.matching_topics(topics, "%DLQ%.*") == ["%DLQ%g"]


def test_a_position_for_every_queue_must_name_every_queue_and_no_other(fake_store: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (2, 20)})
    assert start(home, options(startingOffsets='{"T":{"0":-2,"1":-1}}')) == {T0: 0, T1: 20}
    assert start(home, options(startingOffsets='{"T":{"0":10,"1":0}}')) == {T0: 10, T1: 0}
    with pytest.raises(UsageError, match="must name every queue that is read; missing: T-1"):
        start(home, options(startingOffsets='{"T":{"0":0}}'))
    with pytest.raises(UsageError, match="not read: U-0"):
        start(home, options(startingOffsets='{"T":{"0":0,"1":0},"U":{"0":0}}'))
    with pytest.raises(UsageError, match="11 lies behind the end of queue T-0, 10"):
        start(home, options(startingOffsets='{"T":{"0":11,"1":0}}'))


def test_times_find_the_first_message_stored_then_or_later(fake_store: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (4, 20)})
    assert start(home, options(startingTimestamp="2500")) == {T0: 3, T1: 4}
    assert start(home, options(startingOffsetsByTimestamp='{"T":{"0":99999,"1":5000}}')) == {T0: 10, T1: 5}


def test_a_time_that_is_still_to_come_is_no_place_where_a_stream_can_start(
    fake_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began at the end at once, and read what came before that time."""
    monkeypatch.setattr(StoreDirectory, "clock", lambda location: lambda: 30_000)
    home = fake_store({T0: (0, 10), T1: (4, 20)})
    assert start(home, options(startingTimestamp="30000")) == {T0: 10, T1: 20}, "nothing came since"
    by_queue = '{"T":{"0":5000,"1":30001}}'
    for group in ({}, {"group": "g"}):
        with pytest.raises(UsageError, match="startingTimestamp: 30001 is still to come, now it is 30000"):
            start(home, options(startingTimestamp="30001", **group))
        with pytest.raises(UsageError, match="startingOffsetsByTimestamp: 30001"):
            start(home, options(startingOffsetsByTimestamp=by_queue, **group))
    batch = options("batch read", startingTimestamp="30001")
    ranges = starting_offsets.subscribed(home, batch.subscription)
    assert starting_offsets.batch_start(home, batch, ranges) == {T0: 10, T1: 20}
    monkeypatch.setattr(StoreDirectory, "clock", lambda location: lambda: 5)
    assert start(home, options(startingOffsets='{"T":{"0":10,"1":20}}')) == {T0: 10, T1: 20}, "these are no times"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.statement("G07")
def test_a_young_complete_queue_is_read_from_0_whatever_was_asked_for(fake_store: Make, where: str) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 0)}, log_end=MEMORY_BYTES * 40 // 100)
    assert start(home, options(group="g", consumeFromWhere=where)) == {T0: 0, T1: 0}


@pytest.mark.parametrize(("where", "expected"), list(zip(WHERE, (9000, 0, 200), strict=True)))
@pytest.mark.statement("G07")
def test_an_old_queue_is_read_from_where_was_asked_for(fake_store: Make, where: str, expected: int) -> None:
    given = {"group": "g", "consumeFromWhere": where}
    # one byte more than 40 % of the memory behind the first message; the default time is 30 minutes before now
    home = fake_store({T0: (0, 9000)}, log_end=MEMORY_BYTES * 40 // 100 + 1)
    assert start(home, options(**given)) == {T0: expected}
    # or the first messages are gone
    home = fake_store({T0: (5, 9000)}, log_end=0)
    assert start(home, options(**given)) == {T0: max(5, expected)}


@pytest.mark.parametrize(("where", "expected"), list(zip(WHERE, (0, 0, 9000), strict=True)))
def test_a_retry_topic_is_read_from_its_beginning(fake_store: Make, where: str, expected: int) -> None:
    home = fake_store({RETRY: (0, 9000)}, log_end=MEMORY_BYTES)
    assert start(home, options(subscribe="%RETRY%g", group="g", consumeFromWhere=where)) == {RETRY: expected}


def test_a_committed_offset_behind_the_end_means_that_the_store_lost_messages(
    fake_store: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10)}, committed={T0: 15})
    with pytest.raises(DataLossError, match=r"T-0 \[10, 15\) do not exist") as raised:
        start(home, options(group="g"))
    assert raised.value.ranges == [("T", 0, 10, 15)]
    with caplog.at_level(logging.WARNING):
        assert start(home, options(group="g", failOnDataLoss="false")) == {T0: 10}
    assert "T-0 [10, 15)" in caplog.text


def test_a_batch_looks_at_the_group_only_if_asked(fake_store: Make) -> None:
    home = fake_store({T0: (2, 10)}, committed={T0: 7})
    ranges = starting_offsets.subscribed(home, options().subscription)
    assert starting_offsets.batch_start(home, options("batch read", group="g"), ranges) == {T0: 2}
    from_group = options("batch read", group="g", startingOffsets="group")
    assert starting_offsets.batch_start(home, from_group, ranges) == {T0: 7}
    assert starting_offsets.batch_end(home, options("batch read"), ranges) == {T0: 10}
    to_offsets = options("batch read", endingOffsets='{"T":{"0":5}}')
    assert starting_offsets.batch_end(home, to_offsets, ranges) == {T0: 5}
    to_time = options("batch read", endingTimestamp="4001")
    assert starting_offsets.batch_end(home, to_time, ranges) == {T0: 5}


def test_a_queue_that_appears_while_the_query_runs_is_not_skipped(fake_store: Make) -> None:
    home = fake_store({T0: (2, 10), T1: (3, 10)}, committed={T1: 7})
    ranges = starting_offsets.subscribed(home, options().subscription)
    assert starting_offsets.new_queue_start(home, options(), BEGIN, ranges) == {T0: 2, T1: 3}
    assert starting_offsets.new_queue_start(home, options(group="g"), BEGIN, ranges) == {T0: 2, T1: 7}


def test_a_new_queue_with_a_stale_committed_offset_is_loss_or_read_from_its_beginning(
    fake_store: Make, caplog: pytest.LogCaptureFixture
) -> None:
    # The topic was deleted and made again; its group's offsets are still those of the old one.
    home = fake_store({T0: (2, 10)}, committed={T0: 15})
    ranges = starting_offsets.subscribed(home, options().subscription)
    with pytest.raises(DataLossError, match=r"T-0 \[10, 15\) do not exist") as raised:
        starting_offsets.new_queue_start(home, options(group="g"), BEGIN, ranges)
    assert raised.value.ranges == [("T", 0, 10, 15)]
    tolerant = options(group="g", failOnDataLoss="false")
    assert starting_offsets.new_queue_start(home, tolerant, BEGIN, ranges) == {T0: 2}
    assert "T-0 [10, 15)" in caplog.text


def test_a_negative_committed_offset_is_none(fake_store: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 10)}, committed={T0: -1, T1: 4})
    ranges = starting_offsets.subscribed(home, options().subscription)
    asked = options(group="g", startingOffsets="latest")
    assert start(home, asked) == {T0: 10, T1: 4}
    assert starting_offsets.new_queue_start(home, asked, BEGIN, ranges) == {T0: 0, T1: 4}
    assert starting_offsets.batch_start(home, options("batch read", group="g", startingOffsets="group"), ranges) == {
        T0: 0,
        T1: 4,
    }


def test_an_error_in_times_per_queue_names_their_own_option(fake_store: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 10)})
    with pytest.raises(UsageError, match="option startingOffsetsByTimestamp must name every queue"):
        start(home, options(startingOffsetsByTimestamp='{"T":{"0":5}}'))
    ranges = starting_offsets.subscribed(home, options().subscription)
    with pytest.raises(UsageError, match="option endingOffsetsByTimestamp names queues that are not read"):
        times = '{"T":{"0":5,"1":5,"2":5}}'
        starting_offsets.batch_end(home, options("batch read", endingOffsetsByTimestamp=times), ranges)


def test_a_batch_that_starts_at_an_unknown_group_is_refused_with_the_nearest_name(fake_store: Make) -> None:
    """It would read nothing, and say nothing."""
    home = fake_store({T0: (0, 10)}, names_of_groups=("cg_bills",))
    asked = options("batch read", group="cg_bill", startingOffsets="group")
    with pytest.raises(UsageError, match=r"knows no group 'cg_bill'.*did you mean 'cg_bills'"):
        starting_offsets.batch_start(home, asked, starting_offsets.subscribed(home, asked.subscription))
    known = options("batch read", group="cg_bills", startingOffsets="group")
    assert starting_offsets.batch_start(home, known, starting_offsets.subscribed(home, known.subscription)) == {T0: 0}


def test_a_group_is_known_by_its_offsets_or_its_retry_topic_too(fake_store: Make) -> None:
    asked = options("batch read", group="g", startingOffsets="group")
    for home in (
        fake_store({T0: (0, 10)}, names_of_groups=(), committed={T0: 4}),
        fake_store({T0: (0, 10), RETRY: (0, 1)}, names_of_groups=()),
    ):
        starting_offsets.batch_start(home, asked, starting_offsets.subscribed(home, asked.subscription))


def test_a_stream_that_starts_at_an_unknown_group_says_so(fake_store: Make, caplog: pytest.LogCaptureFixture) -> None:
    home = fake_store({T0: (0, 10)}, names_of_groups=("cg_bills",))
    with caplog.at_level(logging.WARNING):
        start(home, options(group="cg_bill", startingOffsets="group"))
    assert "knows no group 'cg_bill'" in caplog.text
    caplog.clear()
    start(home, options(group="cg_bills", startingOffsets="group"))
    start(home, options(group="new"))
    assert "knows no group" not in caplog.text


def test_a_pattern_matches_no_topic_that_is_only_found_by_its_queues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        for name in ("Orders", "Others"):
            store.create_topic(name, 2)
            store.send(Message(name, b"x", queue_id=1))
    TopicTable(tmp_path / "store").delete("Orders")
    with Store.open(tmp_path / "store", read_only=True) as home:
        by_pattern = source_options({"path": "/s", "subscribePattern": "O.*"}, "batch read", 0).subscription
        assert {queue.topic for queue in starting_offsets.subscribed(home, by_pattern)} == {"Others"}
        starting_offsets.warn_of_unlisted(home, by_pattern)
        assert "not in config/topics.json: Orders." in caplog.text
        by_name = options(subscribe="Orders").subscription
        assert starting_offsets.subscribed(home, by_name)[Queue("Orders", 1)] == (0, 1)


def test_a_plain_number_names_the_queue_of_the_only_broker_that_has_it(fake_store: Make) -> None:
    a0, a1, b0 = (Queue("T", BrokerQueueId(*queue)) for queue in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0)))
    home = fake_store({a0: (0, 10), a1: (2, 20), b0: (0, 5)})
    assert start_in_cluster(home, '{"T":{"broker-a:0":3,"1":-2,"broker-b:0":5}}') == {a0: 3, a1: 2, b0: 5}
    with pytest.raises(UsageError, match='topic \'T\': queue 0 is at several brokers; write one of "broker-a:0"'):
        start_in_cluster(home, '{"T":{"0":3,"broker-a:1":-2}}')
    with pytest.raises(UsageError, match="option startingOffsets names queue T-broker-a:1 twice"):
        start_in_cluster(home, '{"T":{"1":3,"broker-a:1":-2}}')
    with pytest.raises(UsageError, match="missing: T-broker-b:0"):
        start_in_cluster(home, '{"T":{"broker-a:0":3,"1":-2}}')


def test_assigned_queues_of_a_cluster_need_a_broker_where_several_have_the_number(fake_store: Make) -> None:
    a0, a1, b0 = (Queue("T", BrokerQueueId(*queue)) for queue in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0)))
    home = fake_store({a0: (0, 10), a1: (2, 20), b0: (0, 5)})

    def assigned(text: str) -> set[Queue]:
        given = {"nameServer": "ns:9876", "assign": text}
        return set(starting_offsets.subscribed(home, source_options(given, "batch read", 0).subscription))

    assert assigned('{"T":[1,"broker-b:0"]}') == {a1, b0}
    with pytest.raises(UsageError, match="option assign: topic 'T': queue 0 is at several brokers"):
        assigned('{"T":[0]}')
    with pytest.raises(UsageError, match="option assign: topic 'T' names a queue twice"):
        assigned('{"T":[1,"broker-a:1"]}')
    with pytest.raises(UsageError, match=r"no queue broker-c:0 to read; it has \[broker-a:0, broker-a:1, broker-b:0"):
        assigned('{"T":["broker-c:0"]}')
