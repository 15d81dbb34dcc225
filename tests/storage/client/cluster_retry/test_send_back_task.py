"""Send-backs of one task against simulated brokers: by which request, with which properties, and each of them once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SCHEDULE, SimulatedRetries
from rmq_store.client.cluster_retry import send_back_check
from rmq_store.client.cluster_retry.send_back_task import SendBackReport, SendBackSettings, SendBackTask
from rmq_store.client.cluster_retry.stored_copies import CopyKey, CopyKeys, keys_of_copy
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.tables.schema import PROPERTIES_TYPE
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import MQBrokerError, MQClientError, SendInDoubtError
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

PART = WritePart("back/g/query", 7, 3)
REASONS = {"PYRMQ_ERROR_CLASS": "ValueError", "PYRMQ_ERROR_MESSAGE": "no such bill"}
ROWS = pa.schema(
    [
        ("brokerName", pa.string()), ("commitLogOffset", pa.int64()), ("msgId", pa.string()),
        ("delayLevel", pa.int32()), ("properties", PROPERTIES_TYPE),
    ]
)  # fmt: skip
BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        yield brokers


@pytest.fixture
def retries(brokers: SimulatedCluster) -> list[SimulatedRetries]:
    return [SimulatedRetries(broker) for broker in brokers.brokers.values()]


@pytest.fixture
def cluster(brokers: SimulatedCluster) -> Iterator[Cluster]:
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        yield cluster


def failed(retries: SimulatedRetries, number: int = 0, **fields: int) -> StoredMessage:
    properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": "k", "a": "b", "DELAY": "2"}
    return retries.store("Orders", 0, b"bill %d" % number, properties, **fields)


def rows(*given: tuple[SimulatedRetries, StoredMessage], level: int = 0, reasons: Any = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "brokerName": at.broker.name, "commitLogOffset": message.commit_log_offset, "msgId": message.msg_id,
                "delayLevel": level, "properties": None if reasons is None else list(reasons.items()),
            }
            for at, message in given
        ],
        ROWS,
    )  # fmt: skip


def run(cluster: Cluster, batch: pa.RecordBatch, records: Path, **settings: Any) -> SendBackReport:
    given = {"settle_ms": 0, "send_timeout_ms": 20_000, "record_path": str(records)} | settings
    with SendBackTask(cluster, SendBackSettings("g", **given), PART) as task:
        task.write(batch)
        return task.finish()


def test_a_row_without_reasons_is_sent_back_by_number_at_its_broker(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[1])
    assert run(cluster, rows((retries[1], message)), tmp_path) == SendBackReport(1, 0, 0, {})
    assert (retries[0].broker.calls[BACK], retries[1].broker.calls[BACK]) == (0, 1)
    (copy,) = retries[1].messages(SCHEDULE)
    assert (copy.queue_id, copy.reconsume_times, copy.properties["REAL_TOPIC"]) == (2, 1, "%RETRY%g")


def test_a_row_with_reasons_is_sent_to_the_retry_topic_with_all_that_the_message_has(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[0], flag=9, born_ms=1_234)
    run(cluster, rows((retries[0], message), reasons=REASONS), tmp_path)
    (copy,) = retries[0].messages(SCHEDULE)
    assert (copy.body, copy.flag, copy.born_timestamp_ms, copy.reconsume_times) == (b"bill 0", 9, 1_234, 1)
    assert (copy.queue_id, copy.properties["REAL_TOPIC"]) == (2, "%RETRY%g"), "level 3"
    assert {name: copy.properties[name] for name in ("UNIQ_KEY", "KEYS", "a", "DELAY", *REASONS)} == {
        **message.properties, "DELAY": "3", **REASONS
    }  # fmt: skip
    assert copy.properties["RETRY_TOPIC"] == "Orders"
    assert copy.properties["ORIGIN_MESSAGE_ID"] == message.offset_msg_id
    assert copy.properties["PYRMQ_ORIGIN_TOPIC"] == "Orders"


def test_properties_of_an_earlier_retry_are_not_written_again(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    failed(retries[0])
    run(cluster, rows((retries[0], retries[0].messages("Orders")[0])), tmp_path)
    retries[0].deliver()
    (retry,) = retries[0].messages("%RETRY%g")
    run(cluster, rows((retries[0], retry), reasons=REASONS), tmp_path / "second")
    second = retries[0].messages(SCHEDULE)[-1]
    assert (second.queue_id, second.reconsume_times, second.properties["DELAY"]) == (3, 2, "4")
    assert second.properties["ORIGIN_MESSAGE_ID"] == retry.properties["ORIGIN_MESSAGE_ID"]
    assert second.properties["RETRY_TOPIC"] == "Orders"


@pytest.mark.parametrize("reasons", [None, REASONS])
@pytest.mark.parametrize(
    ("times", "level", "asked", "is_dead"),
    [
        (15, 0, None, False), (16, 0, None, True), (0, -1, None, True), (1, 0, 2, False), (2, 0, 2, True),
        (0, 0, 0, True),
    ],
)  # fmt: skip
def test_both_requests_make_a_dead_letter_behind_the_same_number_of_retries(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, reasons: Any, times: int, level: int,
    asked: int | None, is_dead: bool,
) -> None:  # fmt: skip
    message = failed(retries[0], reconsume_times=times)
    run(cluster, rows((retries[0], message), level=level, reasons=reasons), tmp_path, max_reconsume_times=asked)
    dead, waiting = retries[0].messages("%DLQ%g"), retries[0].messages(SCHEDULE)
    assert (len(dead), len(waiting)) == ((1, 0) if is_dead else (0, 1))
    (copy,) = dead + waiting
    assert copy.reconsume_times == times + 1
    if is_dead and reasons:
        assert "DELAY" not in copy.properties, "4.9 would park the dead letter once more"


def test_the_maximum_of_the_group_is_that_of_the_broker(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    retries[0].configs["g"] = SubscriptionGroupConfig(group_name="g", retry_max_times=1)
    message = failed(retries[0], reconsume_times=1)
    run(cluster, rows((retries[0], message), reasons=REASONS), tmp_path)
    assert len(retries[0].messages("%DLQ%g")) == 1


def test_without_the_right_to_see_the_settings_of_groups_those_of_a_new_group_count(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retries[0].broker.refuse(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 16)
    messages = [failed(retries[0], number, reconsume_times=15 + number) for number in range(2)]
    run(cluster, rows(*((retries[0], message) for message in messages), reasons=REASONS), tmp_path)
    assert [message.body for message in retries[0].messages("%DLQ%g")] == [b"bill 1"]
    assert "the settings of group 'g' are not known" in caplog.text


def test_with_live_push_consumers_reasons_are_left_out_because_of_their_locks(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retries[0].push_consumers, retries[0].holds_lock = ["java@1"], True
    message = failed(retries[0])
    report = run(cluster, rows((retries[0], message), reasons=REASONS), tmp_path)
    assert report.without_reasons == 1
    assert retries[0].messages("%DLQ%g") == [], "a SEND would have made a dead letter of it"
    assert len(retries[0].messages(SCHEDULE)) == 1
    assert "may hold locks of queues" in caplog.text


def test_a_message_without_room_for_a_retry_is_sent_back_without_reasons(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = retries[0].store("Orders", 0, b"x", {"UNIQ_KEY": "A" * 32, "long": "x" * 32_000})
    report = run(cluster, rows((retries[0], message), reasons=REASONS), tmp_path)
    assert (report.rows, report.without_reasons, retries[0].broker.calls[BACK]) == (1, 1, 1)


# -- repetitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reasons", [None, REASONS])
def test_a_repetition_leaves_out_what_is_sent_back(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, reasons: Any
) -> None:
    """Without the check each message would be there twice; with a check by UNIQ_KEY alone, or by partition alone, the
    second record of one key would be missing.
    """
    messages = [failed(retries[0], number, reconsume_times=16 * (number % 2)) for number in range(6)]
    twin = failed(retries[0], 0)  # a producer has stored it twice
    before = [(retries[0], message) for message in messages[:4]]
    run(cluster, rows(*before, reasons=reasons), tmp_path)
    retries[0].deliver()
    everything = rows(*((retries[0], message) for message in [*messages, twin]), reasons=reasons)
    assert run(cluster, everything, tmp_path) == SendBackReport(3, 4, 0, {})
    waiting = [message.body for message in retries[0].messages(SCHEDULE)]
    dead = [message.body for message in retries[0].messages("%DLQ%g")]
    assert sorted(waiting) == [b"bill 0", b"bill 0", b"bill 2", b"bill 4"]
    assert sorted(dead) == [b"bill 1", b"bill 3", b"bill 5"]
    assert run(cluster, everything, tmp_path).rows == 0


def test_what_was_sent_back_before_the_batch_is_no_earlier_attempt(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[0])
    run(cluster, rows((retries[0], message)), tmp_path / "other write")
    assert run(cluster, rows((retries[0], message)), tmp_path).rows == 1


def test_a_broker_that_the_first_attempt_did_not_reach_is_not_read(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    first, second = failed(retries[0], 1), failed(retries[1], 2)
    run(cluster, rows((retries[1], failed(retries[1]))), tmp_path / "other write")
    run(cluster, rows((retries[0], first)), tmp_path)
    retries[1].broker.refuse(RequestCode.PULL_MESSAGE, 1)
    report = run(cluster, rows((retries[0], first), (retries[1], second)), tmp_path)
    assert report == SendBackReport(1, 1, 0, {})


def test_a_broker_that_no_row_of_the_repetition_names_is_not_read(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    first, second = failed(retries[0], 1), failed(retries[1], 2)
    run(cluster, rows((retries[0], first), (retries[1], second)), tmp_path)
    retries[1].broker.refuse(RequestCode.PULL_MESSAGE, 1)
    retries[1].broker.refuse(RequestCode.GET_MAX_OFFSET, 16)
    assert run(cluster, rows((retries[0], first)), tmp_path) == SendBackReport(0, 1, 0, {})


def test_a_repetition_finds_a_copy_in_a_queue_of_the_retry_topic_that_is_not_written_any_more(
    brokers: SimulatedCluster, cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    """A broker puts copies into as many queues as the group's retryQueueNums says, whatever its topic has."""
    retries[0].store("%RETRY%g", 1, b"an older one", {})
    brokers.set_counts("%RETRY%g", read=2, write=1)
    message = failed(retries[0])
    assert run(cluster, rows((retries[0], message)), tmp_path) == SendBackReport(1, 0, 0, {})
    waiting = retries[0].broker.queues.topics[SCHEDULE][2]
    (copy,) = retries[0].messages(SCHEDULE)
    retries[0].store("%RETRY%g", 1, copy.body, copy.properties, reconsume_times=copy.reconsume_times)
    waiting.first = waiting.end  # retention has deleted what was delivered
    assert run(cluster, rows((retries[0], message)), tmp_path) == SendBackReport(0, 1, 0, {})


def test_records_of_a_cluster_do_the_same_as_those_in_a_directory(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    message = failed(retries[0])
    for expected in (SendBackReport(1, 0, 0, {}), SendBackReport(0, 1, 0, {})):
        with SendBackTask(cluster, SendBackSettings("g", settle_ms=0, send_timeout_ms=20_000), PART) as task:
            task.write(rows((retries[0], message)))
            assert task.finish() == expected


def test_the_keys_of_many_copies_take_little_memory() -> None:
    """A group may have a million failures since the record of an attempt: as sets of tuples 500 MB in each task."""
    count = 30_000
    keys = CopyKeys()
    tracemalloc.start()
    try:
        for number in range(count):
            full = CopyKey(f"{number:032X}", f"{number:032X}", 1)
            keys.add((full, full._replace(unique_key="")))
        some = [CopyKey(f"{number:032X}", "", times) for number in (0, count - 1, count) for times in (1, 2)]
        assert keys.contain(some) == [True, False, True, False, False, False]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes / (2 * count) < 128


def test_a_look_for_a_lost_answer_keeps_only_the_keys_that_are_wanted(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = most = 0

    class Key(tuple[Any, ...]):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def counted(message: StoredMessage) -> tuple[Any, ...]:
        nonlocal alive, most
        alive += 2
        most = max(most, alive)
        return tuple(Key(key) for key in keys_of_copy(message))

    monkeypatch.setattr(send_back_check, "keys_of_copy", counted)
    messages = [failed(retries[0], number) for number in range(30)]
    retries[0].lose_answers(BACK, 1)
    report = run(cluster, rows(*((retries[0], message) for message in messages)), tmp_path)
    assert report == SendBackReport(29, 1, 0, {})
    assert 0 < most <= 6


# -- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "reasons"), [(BACK, None), (SEND, REASONS)])
def test_a_lost_answer_is_looked_up_before_anything_is_sent_again(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, code: int, reasons: Any
) -> None:
    messages = [failed(retries[0], number) for number in range(5)]
    retries[0].lose_answers(code, 2)
    report = run(cluster, rows(*((retries[0], message) for message in messages), reasons=reasons), tmp_path)
    assert report == SendBackReport(3, 2, 0, {})
    assert len(retries[0].messages(SCHEDULE)) == 5


def test_a_request_that_was_not_carried_out_is_sent_again(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[0])
    retries[0].broker.refuse(BACK, 1, count=1)
    assert run(cluster, rows((retries[0], message)), tmp_path) == SendBackReport(1, 0, 0, {})
    assert len(retries[0].messages(SCHEDULE)) == 1


def test_without_the_check_a_lost_answer_is_sent_again(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[0])
    retries[0].lose_answers(BACK, 1)
    run(cluster, rows((retries[0], message)), tmp_path, replay_check=False, record_path="")
    assert len(retries[0].messages(SCHEDULE)) == 2


@pytest.mark.parametrize("code", [2, 14, 1500])
def test_a_broker_that_does_not_tell_its_ends_now_is_asked_again(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path, code: int
) -> None:
    """They are asked for before the first send-back, which would wait for the broker, too."""
    message = failed(retries[0])
    retries[0].broker.refuse(RequestCode.GET_MAX_OFFSET, code, count=2)
    assert run(cluster, rows((retries[0], message)), tmp_path) == SendBackReport(1, 0, 0, {})


def test_a_broker_that_stays_away_ends_the_task_within_its_time(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message = failed(retries[0])
    retries[0].broker.refuse(BACK, 2)
    with pytest.raises(MQClientError, match=r"row 0: the message 0{32} of broker 'broker-000' and 0 more could not"):
        run(cluster, rows((retries[0], message)), tmp_path, send_timeout_ms=300)


QUESTIONS = {
    "message": RequestCode.VIEW_MESSAGE_BY_ID, "settings": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "members": RequestCode.GET_CONSUMER_CONNECTION_LIST, "ends": RequestCode.GET_MAX_OFFSET, "send": SEND, "back": BACK,
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("away_ms", [180_000, 0])
def test_a_broker_that_is_away_is_waited_for_as_long_as_is_allowed(
    brokers: SimulatedCluster, retries: list[SimulatedRetries], tmp_path: Path, question: str, away_ms: int
) -> None:
    """No other broker has the message. It is away for longer than a send may take."""
    now_ms = 0.0

    def sleep(duration_s: float) -> None:
        nonlocal now_ms
        now_ms += 5_000

    at_once = 21 if question == "ends" else 1  # of each queue that a copy can be in
    retries[0].broker.refuse(QUESTIONS[question], 2, count=8 * at_once)
    batch = rows((retries[0], failed(retries[0])), reasons=None if question == "back" else REASONS)
    settings = SendBackSettings(
        "g", settle_ms=0, send_timeout_ms=20_000, patience_ms=away_ms, record_path=str(tmp_path)
    )
    with (
        Cluster(ClusterSettings.of_text(brokers.name_server), timer=lambda: now_ms) as cluster,
        SendBackTask(cluster, settings, PART, sleep=sleep) as task,
    ):
        if away_ms:
            task.write(batch)
            assert task.finish().rows == 1 and len(retries[0].messages(SCHEDULE)) == 1
        else:
            with pytest.raises((MQBrokerError, MQClientError, SendInDoubtError), match="broker-000"):
                task.write(batch)
            assert retries[0].messages(SCHEDULE) == []


def test_a_refusal_ends_the_task_at_once(cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path) -> None:
    message = failed(retries[0])
    retries[0].broker.refuse(BACK, 16)
    with pytest.raises(MQBrokerError, match="row 0"):
        run(cluster, rows((retries[0], message)), tmp_path)
    assert retries[0].broker.calls[BACK] == 1


def test_rows_that_name_another_message_are_refused(
    cluster: Cluster, retries: list[SimulatedRetries], tmp_path: Path
) -> None:
    message, other = failed(retries[0]), failed(retries[0], 1)
    wrong = rows((retries[0], message)).set_column(2, "msgId", pa.array([other.msg_id]))
    with pytest.raises(UsageError, match=f"row 0: the message at {message.commit_log_offset} of"):
        run(cluster, wrong, tmp_path)
    with pytest.raises(ResponseError, match="row 0: look message by offset failed"):
        run(cluster, rows((retries[1], message)), tmp_path)
    assert retries[0].broker.calls[BACK] == 0
