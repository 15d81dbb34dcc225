"""A real broker takes over a store whose topics, groups and offsets were changed by `rmq` with mqadmin's commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.cli import commands

from .test_java_agrees import GEOMETRY, copy, java_conf

if TYPE_CHECKING:
    from .conftest import RocketMQ


def rmq(root: Path, line: str) -> None:
    result = CliRunner().invoke(commands, line.split(), env={"RMQ_STORE": str(root)}, prog_name="rmq")
    assert result.exit_code == 0, result.output


def send(store: Store, topic: str, count: int) -> list[int]:
    return [store.send(Message(topic, b"%d" % number, queue_id=0)).queue_offset for number in range(count)]


def test_a_broker_sees_the_topics_groups_and_offsets_that_we_changed_and_goes_on_with_the_queue_offsets(
    rocketmq: RocketMQ, tmp_path: Path, scratch: Path
) -> None:
    root, config = scratch / "store", StoreConfig(**GEOMETRY)
    with Store.open(root, create=True, config=config) as store:
        for topic in ("Orders", "Gone", "Again", "%RETRY%cg_gone", "%DLQ%cg_gone"):
            store.create_topic(topic, queue_count=2)
            send(store, topic, 5)
        for group in ("cg", "cg_gone"):
            store.commit_offsets(group, {(topic, 0): 4 for topic in ("Orders", "Gone", "Again")})
    rmq(root, "updateTopic -t Orders -r 4 -w 3 -o true -a +message.type=FIFO")
    rmq(root, "updateTopicPerm -t Orders -p 4")
    rmq(root, "updateTopic -t New")
    rmq(root, "updateSubGroup -g cg -r 3 -q 2 -o true")
    rmq(root, "updateSubGroup -g cg_gone -r 3")
    rmq(root, "resetOffsetByTime -g cg -t Orders -s 0 --yes")
    rmq(root, "cloneGroupOffset -s cg -d cg_copy -t Orders --yes")
    rmq(root, "skipAccumulatedMessage -g cg -t Again --yes")
    for topic in ("Gone", "Again"):
        rmq(root, f"deleteTopic -t {topic} --yes")
    rmq(root, "deleteSubGroup -g cg_gone -r true --yes")
    rmq(root, "updateTopic -t Again -r 2 -w 2")
    with Store.open(root) as store:
        assert send(store, "Again", 2) == [5, 6]

    conf = java_conf(tmp_path, config)
    answers = rocketmq.run("broker", copy(root, "java"), conf)
    topics = {answer["topic"]: answer for answer in answers if answer["kind"] == "topic"}
    orders = [topics["Orders"][name] for name in ("readQueueNums", "writeQueueNums", "perm", "order")]
    assert orders == [4, 3, 4, True]
    assert (topics["New"]["readQueueNums"], topics["New"]["perm"]) == (8, 6)
    assert not topics.keys() & {"Gone", "%RETRY%cg_gone", "%DLQ%cg_gone"}
    assert topics["Again"]["maxOffsets"] == {"0": 7, "1": 0}
    groups = {answer["group"]: answer for answer in answers if answer["kind"] == "group"}
    cg = [groups["cg"][name] for name in ("retryMaxTimes", "retryQueueNums", "consumeMessageOrderly")]
    assert cg == [3, 2, True]
    assert "cg_gone" not in groups
    offsets = {answer["topicAtGroup"]: answer["offsets"] for answer in answers if answer["kind"] == "offsets"}
    assert offsets == {
        "Orders@cg": dict.fromkeys(("0", "1", "2", "3"), 0),
        "Orders@cg_copy": dict.fromkeys(("0", "1", "2", "3"), 0),
    }

    # The broker gives out the next offset of a topic that was deleted, and finds the same ones in the log alone.
    puts = [put for put in rocketmq.run("append", root, conf, 4, "Again") if put["status"] == "PUT_OK"]
    assert puts
    rebuilt = copy(root, "rebuilt")
    shutil.rmtree(rebuilt / "consumequeue")
    (rebuilt / "checkpoint").unlink()
    (rebuilt / "abort").touch()
    for store_root in (root, rebuilt):
        dump = rocketmq.run("dump", copy(store_root, f"{store_root.name}-seen"), conf)
        seen = [a["queueOffset"] for a in dump if a["kind"] == "message" and (a["topic"], a["queueId"]) == ("Again", 0)]
        assert seen == list(range(len(seen)))
        assert len(seen) > 7
