"""Retries, delays and dead letters: a real broker takes our store over and goes on, and we take it back.

The broker's own CONSUMER_SEND_MSG_BACK and delay service make the same hops from the same messages as ours, in the same
store; one witness, `Dump`, then looks at both. Its clock is the machine's, ours stands in the past or future of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import Message, StagingArea, Store, StoreConfig, SubscriptionGroup
from rmq_store.format.tables.config_json import loads
from rmq_store.format.text.hashing import java_hash
from rmq_store.verify import verify_store

from .test_java_agrees import GEOMETRY, LONG_TOPIC, copy, index_files, java_conf, orders, queue_files, rows

if TYPE_CHECKING:
    from .conftest import Answer, RocketMQ

# Levels 3 and 4, of the first two retries, are short: the broker waits for them in earnest.
LEVELS = "1s 5s 1s 1s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_MS = {1: 1_000, 3: 1_000, 4: 1_000, 18: 7_200_000}
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_pyrmq_timer"
HOUR_MS = 3_600_000

# Who does the hops: the name says it, and both are of one length, so that the frames must be, too.
OURS, JAVAS = "CG_ours", "CG_java"
# Makes the longest name of a group: its retry topic has 127 characters, the most of a V1 frame. We send back in bulk.
LONG = "g" * 113
DROPPING = "CG_dropping"


@dataclass
class Clock:
    """Our store's time."""

    now_ms: int

    def __call__(self) -> int:
        return self.now_ms


def machine_ms() -> int:
    return time.time_ns() // 1_000_000


def messages(store: Store, topic: str) -> list[dict[str, Any]]:
    """Every message of a topic, queue by queue."""
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "msgId"]
    return [
        row
        for queue_id, span in sorted(store.queue_ranges(topic).items())
        for batch in store.read(topic, queue_id, span.min_offset, span.max_offset, columns=columns)
        for row in batch.to_pylist()
    ]


def properties(answer: Mapping[str, Any]) -> dict[str, str]:
    """Without the checksum, which is of the frame and its place."""
    return {name: value for name, value in answer["properties"].items() if name != "__CRC32#"}


def delay_offsets(root: Path) -> dict[int, int]:
    return {int(k): v for k, v in loads((root / "config" / "delayOffset.json").read_bytes())["offsetTable"].items()}


# -- the hop table ----------------------------------------------------------------------------------------------------


def originals(root: Path, config: StoreConfig, clock: Clock) -> list[dict[str, Any]]:
    """Messages of all kinds: tags and keys or none, not ASCII, compressed, long topics; each with place and offset."""
    with Store.open(root, create=True, config=config, clock=clock) as store:
        for topic in ("Orders", "Events", LONG_TOPIC):
            store.create_topic(topic, queue_count=1)
        store.append(orders(9))
        store.send(
            Message(
                "Orders", b"tea", tags="TagA", keys="k1 k2", properties={"WAIT": "true", "a": "π"}, flag=-7,
                born_timestamp_ms=123_456,
            )
        )  # fmt: skip
        with StagingArea.for_task(root, "write", 0, 0, compress_over_bytes=2) as staging:
            compressible = pa.array([b"compress me " * 100] * 3, pa.binary())
            staging.write(orders(3, 9).set_column(1, "body", compressible))
            staged = staging.finish()
        assert staged is not None
        store.commit_staged([staged], key="query", value=0)
        for group in (OURS, JAVAS, OURS + LONG, JAVAS + LONG):
            store.create_group(SubscriptionGroup(group, retry_max_times=2))
        store.create_group(SubscriptionGroup(DROPPING, retry_queue_nums=0))
        return [row for topic in ("Orders", "Events", LONG_TOPIC) for row in messages(store, topic)]


def our_hops(root: Path, clock: Clock, sources: list[dict[str, Any]], ending: str) -> None:
    """Each message fails three times; then the first four once more with delay levels that their consumer chose."""
    group = OURS + ending
    with Store.open(root, clock=clock) as store:
        failed = sources
        for level in (3, 4):
            send_back(store, group, failed, in_bulk=bool(ending))
            clock.now_ms += DELAY_MS[level]
            assert store.schedule.deliver_due().delivered == len(sources)
            failed = messages(store, "%RETRY%" + group)[-len(sources) :]
        send_back(store, group, failed, in_bulk=bool(ending))
        send_back(store, group, sources[: len(CHOSEN_LEVELS)], CHOSEN_LEVELS, in_bulk=bool(ending))


def send_back(
    store: Store, group: str, failed: list[dict[str, Any]], levels: Sequence[int] | None = None, *, in_bulk: bool
) -> None:
    """One by one, or all as one unit."""
    levels = [0] * len(failed) if levels is None else levels
    if in_bulk:
        columns = {name: [row[name] for row in failed] for name in ("commitLogOffset", "msgId")}
        store.retry.send_back_all(group, pa.record_batch({**columns, "delayLevel": pa.array(levels, pa.int32())}))
        return
    for row, level in zip(failed, levels, strict=True):
        store.retry.send_back(group, row["commitLogOffset"], delay_level=level)


# Straight to the dead letters; the last level, and two beyond it.
CHOSEN_LEVELS = (-1, 18, 19, 99)


def java_hops(sources: list[dict[str, Any]], ending: str) -> list[dict[str, Any]]:
    """The same, told to the broker."""
    group, count = JAVAS + ending, len(sources)
    retry = "%RETRY%" + group
    back = {"do": "sendBack", "group": group}
    first = [{name: row[name] for name in ("topic", "queueId", "queueOffset")} for row in sources]
    again = [{"topic": retry, "queueId": 0, "queueOffset": offset} for offset in range(2 * count)]
    chosen = zip(first, CHOSEN_LEVELS, strict=False)
    return [
        *({**back, **place, "delayLevel": 0} for place in [*first, *again]),
        *({**back, **place, "delayLevel": level} for place, level in chosen),
    ]


def hops(answers: Iterable[Answer], who: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of one group and its long twin, by topic and the message's id: what was stored, in the order of the log."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for answer in sorted((a for a in answers if a["kind"] == "message"), key=lambda a: a["commitLogOffset"]):
        target = properties(answer).get("REAL_TOPIC", answer["topic"])
        if who not in target:
            continue
        own = dict(answer, properties=properties(answer))
        if answer["topic"] == SCHEDULE:
            own["tagsCode"] = answer["tagsCode"] - answer["storeTimestamp"]
        # What tells two records of one log apart, whoever wrote them.
        for name in ("commitLogOffset", "offsetMsgId", "queueOffset", "entryQueueOffset", "storeTimestamp"):
            del own[name]
        own["topic"] = answer["topic"].replace(who, "CG")
        own["properties"] = {name: value.replace(who, "CG") for name, value in own["properties"].items()}
        found.setdefault((target.replace(who, "CG"), answer["msgId"]), []).append(own)
    return found


@pytest.mark.statement("B03", "B05", "B14", "C03", "C04", "C06", "C12", "D01", "D04")
@pytest.mark.parametrize("crc_property", [True, False])
def test_the_brokers_hops_and_ours_are_the_same(
    rocketmq: RocketMQ, scratch: Path, tmp_path: Path, crc_property: bool
) -> None:
    """consumerSendMsgBack: every field but place and time, and the property set, after every hop."""
    root = scratch / "store"
    config = StoreConfig(**GEOMETRY, enabled_append_prop_crc=crc_property, message_delay_level=LEVELS)
    clock = Clock(machine_ms() - HOUR_MS)  # what waits two hours is not due for the broker either
    sources = originals(root, config, clock)
    for ending in ("", LONG):
        our_hops(root, clock, sources, ending)
    drop = {"do": "sendBack", "group": DROPPING, "topic": "Orders", "queueId": 0, "queueOffset": 0, "delayLevel": 0}
    in_turn = zip(java_hops(sources, ""), java_hops(sources, LONG), strict=True)
    instructions = [*(instruction for pair in in_turn for instruction in pair), drop]
    answers = rocketmq.run("retry", root, java_conf(tmp_path, config), questions=instructions)

    assert [a["code"] for a in answers if a["kind"] == "sendBack"] == [0] * len(instructions)
    assert all(a["frameOk"] and ("__CRC32#" in a["properties"]) == crc_property for a in answers if "frameOk" in a)
    ours, javas = hops(answers, OURS), hops(answers, JAVAS)
    assert ours == javas
    assert sum(map(len, ours.values())) == 2 * (5 * len(sources) + len(CHOSEN_LEVELS))
    assert {hop["storedSysFlag"] & 1 for stored in ours.values() for hop in stored} == {0, 1}, "some are compressed"
    assert not any(DROPPING in topic for topic, _ in [*ours, *javas])

    tea = next(a for a in answers if a["kind"] == "message" and a["topic"] == "Orders" and a["keys"] == "k1 k2")
    table(tea, ours["%RETRY%CG", tea["msgId"]])

    tables = {a["topic"]: (a["readQueueNums"], a["writeQueueNums"], a["perm"]) for a in answers if a["kind"] == "topic"}
    for topic in ("%RETRY%", "%DLQ%"):
        assert tables[topic + OURS] == tables[topic + JAVAS] == (1, 1, 6)
    assert verify_store(root).status == "clean"


def table(original: Answer, stored: list[dict[str, Any]]) -> None:
    """The hops of one message (consumerSendMsgBack, messageTimeUp), from what the broker read of us."""
    retried = {
        **properties(original),
        **{"WAIT": "false", "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": original["offsetMsgId"]},
        **{"REAL_TOPIC": "%RETRY%CG", "REAL_QID": "0"},
    }
    tag = java_hash("TagA")
    expected = [
        (SCHEDULE, 2, 1, "3", DELAY_MS[3]),
        ("%RETRY%CG", 0, 1, "3", tag),
        (SCHEDULE, 3, 2, "4", DELAY_MS[4]),
        ("%RETRY%CG", 0, 2, "4", tag),
        ("%DLQ%CG", 0, 3, "0", tag),
        (SCHEDULE, 17, 1, "18", DELAY_MS[18]),  # the original once more, with a level that its consumer chose
    ]
    for hop, (topic, queue_id, times, level, tags_code) in zip(stored, expected, strict=True):
        assert (hop["topic"], hop["queueId"], hop["reconsumeTimes"]) == (topic, queue_id, times)
        assert hop["tagsCode"] == tags_code
        assert hop["properties"] == retried | {"DELAY": level}


@pytest.mark.statement("C05", "F04", "G02")
def test_java_dispatches_parked_messages_to_the_bytes_of_our_queues(
    rocketmq: RocketMQ, scratch: Path, tmp_path: Path
) -> None:
    """Its tags code of an entry of the schedule queue is storeTimestamp + delay, from DELAY; so is ours.

    The timer topic is ours alone: a broker that makes its queue again puts hashes of tags there; nothing comes early.
    """
    root = scratch / "store"
    config = StoreConfig(**GEOMETRY, message_delay_level=LEVELS)
    clock = Clock(machine_ms() - 24 * HOUR_MS)
    sources = originals(root, config, clock)
    our_hops(root, clock, sources, "")
    with Store.open(root, clock=clock) as store:
        for level in range(1, 19):
            store.send_all([Message("Orders", b"%d" % level, tags="T", keys="k", delay_level=level)] * 3)
        store.create_topic("Timed", queue_count=1)
        due_ms = clock.now_ms + HOUR_MS // 2
        for tag in ("TagA", None):
            store.send(Message("Timed", b"later", tags=tag, deliver_timestamp_ms=due_ms, queue_id=0))
    java = copy(root, "java")
    shutil.rmtree(java / "consumequeue")
    shutil.rmtree(java / "index")
    rocketmq.run("dispatch", java, java_conf(tmp_path, config))
    ours, javas = queue_files(root), queue_files(java)
    assert len({path.parent for path in ours if path.parts[0] == SCHEDULE}) == 18
    assert {path for path in ours if ours[path] != javas[path]} == {path for path in ours if path.parts[0] == TIMER}
    assert ours.keys() == javas.keys()
    assert index_files(java) == index_files(root)

    with Store.open(java, clock=clock) as store:
        for now_ms, arrived_count in ((due_ms - 1, 0), (due_ms, 2)):
            clock.now_ms = now_ms
            store.schedule.deliver_due()
            assert store.queue_range("Timed", 0).max_offset == arrived_count


# -- taking over ------------------------------------------------------------------------------------------------------


def delayed(level: int, *bodies: str) -> list[Message]:
    return [Message("T", body.encode(), tags="TagA", keys=body, delay_level=level, queue_id=0) for body in bodies]


def java_delayed(level: int, *bodies: str) -> list[dict[str, Any]]:
    """The same messages, put by the broker."""
    return [
        {
            **{"do": "put", "topic": "T", "queueId": 0, "body": body},
            "properties": {"TAGS": "TagA", "KEYS": body, "DELAY": str(level), "WAIT": "true", "UNIQ_KEY": f"U-{body}"},
        }
        for body in bodies
    ]


def grown_to(max_offset: int) -> dict[str, Any]:
    return {"do": "await", "topic": "T", "queueId": 0, "maxOffset": max_offset}


def arrived(root: Path) -> list[str]:
    """Keys, which are the bodies, of what was delivered to T."""
    return [row["keys"] for row in rows(root) if row["topic"] == "T"]


def delivered(root: Path, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Delivered messages by key, without what depends on when and behind what they were delivered."""
    wanted = set(keys)
    free = ("commitLogOffset", "queueOffset", "storeTimestamp")
    return {
        row["keys"]: {name: value for name, value in row.items() if name not in free}
        for row in rows(root)
        if row["topic"] == "T" and row["keys"] in wanted
    }


@pytest.mark.statement("C05", "C07", "C10")
def test_a_broker_goes_on_delivering_where_we_stopped_and_we_where_it_stopped(
    rocketmq: RocketMQ, scratch: Path, tmp_path: Path
) -> None:
    """ScheduleMessageService loads our delayOffset.json, we its: each message is delivered once, by either."""
    root = scratch / "store"
    config = StoreConfig(**GEOMETRY, message_delay_level=LEVELS)
    conf = java_conf(tmp_path, config)
    start_ms = machine_ms()
    clock = Clock(start_ms - 3 * HOUR_MS)
    by_us = ["a1", "a2", "a3", "a4", "a5"]
    due_1, due_18 = ["b1", "b2", "b3", "b4"], ["c1", "c2"]
    with Store.open(root, create=True, config=config, clock=clock) as store:
        store.create_topic("T", queue_count=1)
        store.create_group(SubscriptionGroup("CG1", retry_max_times=7, retry_queue_nums=3))
        store.send_all([*delayed(1, *by_us), *delayed(18, *due_18)])
        clock.now_ms += DELAY_MS[1]
        assert store.schedule.deliver_due().delivered == 5
        store.send_all(delayed(1, *due_1))
        clock.now_ms = start_ms - 1_000
        store.send_all(delayed(18, "d1", "d2", "d3"))
        timer = store.send(
            Message("T", b"t1", keys="t1", properties={"TIMER_DELIVER_MS": str(start_ms + HOUR_MS)}, queue_id=0)
        )
        store.retry.send_back("CG1", messages(store, "T")[0]["commitLogOffset"], delay_level=-1)
        store.commit_offsets("CG1", {("T", 0): 4})
        parked_at = store.message_at(timer.commit_log_offset)
        assert parked_at.topic == TIMER
    assert delay_offsets(root) == {1: 5}
    untouched = copy(root, "untouched")

    later = ["e1", "e2", "f1", "f2"]
    instructions = [
        grown_to(5 + 4 + 2),
        *java_delayed(1, "e1", "e2"),
        *java_delayed(18, "f1", "f2"),
        grown_to(5 + 4 + 2 + 2),
        {"do": "awaitProgress", "level": 1, "offset": 11},
        {"do": "awaitProgress", "level": 18, "offset": 2},
    ]
    answers = rocketmq.run("retry", root, conf, questions=instructions)
    assert [a["status"] for a in answers if a["kind"] == "put"] == ["PUT_OK"] * len(later)
    keys = arrived(root)
    assert keys[:5] == by_us
    assert sorted(keys[5:11]) == due_1 + due_18
    assert keys[11:] == ["e1", "e2"]
    assert delay_offsets(root) == {**delay_offsets(root), 1: 11, 18: 2}
    check_tables(answers)
    (waiting,) = (a for a in answers if a["kind"] == "message" and a["topic"] == TIMER)
    assert waiting["frameOk"]
    assert properties(waiting) == parked_at.properties | {"TIMER_OUT_MS": str(start_ms + HOUR_MS)}

    # What it delivered is what we would have delivered.
    clock.now_ms = machine_ms()
    with Store.open(untouched, clock=clock) as store:
        assert store.schedule.deliver_due().delivered == 6
    assert delivered(root, due_1 + due_18) == delivered(untouched, due_1 + due_18)
    assert len(delivered(root, due_1 + due_18)) == 6

    with Store.open(root, clock=clock) as store:
        assert store.schedule.deliver_due().delivered == 0
        clock.now_ms = machine_ms() + 3 * HOUR_MS
        assert store.schedule.deliver_due().delivered == 3 + 2 + 1
    assert arrived(root)[:13] == keys
    assert sorted(arrived(root)[13:]) == ["d1", "d2", "d3", "f1", "f2", "t1"]
    assert delay_offsets(root)[18] == 7
    by_key = {a["keys"]: a for a in answers if a["kind"] == "message" and a["topic"] == SCHEDULE and a["keys"] in later}
    for key in ("f1", "f2"):  # it parked them, we delivered them
        (ours,) = (row for row in rows(root) if row["topic"] == "T" and row["keys"] == key)
        assert ours["properties"] == properties(by_key[key])
        assert (ours["bornTimestamp"], ours["msgId"]) == (by_key[key]["bornTimestamp"], by_key[key]["msgId"])

    before = arrived(root)
    rocketmq.run("retry", root, conf, questions=[*java_delayed(1, "g1"), grown_to(20)])
    assert arrived(root) == [*before, "g1"]
    with Store.open(root, clock=clock) as store:
        assert store.schedule.deliver_due().delivered == 0
    assert verify_store(root).status == "clean"


def check_tables(answers: list[Answer]) -> None:
    """What we wrote into config/, as the broker has it."""
    topics = {a["topic"]: (a["readQueueNums"], a["writeQueueNums"], a["perm"]) for a in answers if a["kind"] == "topic"}
    assert topics["%RETRY%CG1"] == (3, 3, 6)
    assert topics["%DLQ%CG1"] == (1, 1, 6)
    assert topics["T"] == (1, 1, 6)
    groups = {a["group"]: (a["retryMaxTimes"], a["retryQueueNums"]) for a in answers if a["kind"] == "group"}
    assert groups["CG1"] == (7, 3)
    offsets = {a["topicAtGroup"]: a["offsets"] for a in answers if a["kind"] == "offsets"}
    assert offsets["T@CG1"] == {"0": 4}
    assert [a["reconsumeTimes"] for a in answers if a["kind"] == "message" and a["topic"] == "%DLQ%CG1"] == [1]
