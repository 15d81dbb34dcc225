"""Java's groups, of push, ordered and POP members, go on at the slave that was made a master: what was acknowledged
comes to each of them, and what comes twice is counted, in a file below build/groups-go-on.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.cluster.asking import Connection
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.kills.done import DoneKills
from helpers.cluster.replicated.pairs import Pair, pair_of
from helpers.cluster.replicated.plan import PAIRS
from helpers.cluster.replicated.senders import Senders
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from rmq_store.protocol.wire.request_codes import RequestCode

TOPIC = "Orders"
MESSAGES = 150
PATIENCE_S = 600.0
TESTED = ("storage/rmq_store/replica", "storage/rmq_store/server")
GROUPS = {"pushers": {}, "ordered": {"ordered": True}, "poppers": {"pop": True}}
"""Name of a group, and what its member asks for."""



@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("version", VERSIONS)
def test_javas_groups_go_on_at_the_slave_that_became_the_master(
    version: str, pair: str, tmp_path: Path
) -> None:
    require_released(version)
    figures = DoneKills("groups-go-on", f"{pair} {version}", TESTED)
    wanted = {name: given for name, given in GROUPS.items() if not (version.startswith("4.") and "pop" in given)}
    with pair_of(pair, version, tmp_path / "pair", TOPIC) as brokers, ExitStack() as members:
        if "poppers" in wanted:
            let_pop(brokers.master.address, "poppers")
        groups = {name: members.enter_context(Witness(brokers.cluster)) for name in wanted}
        with Senders(brokers.master.address, TOPIC, "before") as before:
            before.await_acknowledged(MESSAGES, "no send is answered with 0")
            for name, member in groups.items():
                member.ask("push", group=name, topic=TOPIC, **wanted[name])
            for name, member in groups.items():
                await_bodies(member, set(before.acknowledged), f"{name} before")
            await_tables(brokers, list(groups))
            before.await_acknowledged(MESSAGES, "no send is answered with 0")
            brokers.master.kill()
        new = brokers.take_over()
        with Senders(new.address, TOPIC, "after") as after:
            after.await_acknowledged(MESSAGES, "the new master takes no sends")
        acknowledged = before.acknowledged | after.acknowledged
        for name, member in groups.items():
            await_bodies(member, acknowledged, f"{name} after")
        for name, member in groups.items():
            got = deliveries(member)
            repeats = len(got) - len({body for _, body in got})
            figures.note(name, acknowledged=len(acknowledged), deliveries=len(got), repeats=repeats)
            assert not {body for body, count in Counter(got).items() if count > 1 and body[1].startswith(b"after")}
        in_order(deliveries(groups["ordered"]))


def let_pop(address: str, group: str) -> None:
    """Its members consume by POP from now on."""
    mode = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with Connection(address) as master:
        answer = master.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(mode).encode())
        assert answer.code == 0, answer


def await_tables(brokers: Pair, groups: list[str]) -> None:
    """Until the slave knows the topic, and how far each group is: a released one asks every 10 s, or every minute."""
    config = brokers.slave_store / "config"

    def has_all() -> bool:
        if not (config / "consumerOffset.json").exists() or not (config / "topics.json").exists():
            return False
        offsets = (config / "consumerOffset.json").read_text()
        return TOPIC in (config / "topics.json").read_text() and all(f"{TOPIC}@{group}" in offsets for group in groups)

    until(has_all, f"the slave has not the offsets of {groups}", PATIENCE_S)


def deliveries(member: Witness) -> list[tuple[int, bytes]]:
    """(queue, identity of the message) of all that a member has got."""
    got = member.ask("received", count=0, timeoutMs=0)
    return [(one["queueId"], one["body"].partition(";")[0].encode()) for one in got]


def await_bodies(member: Witness, wanted: set[bytes], what: str) -> None:
    """Until a member has got all of these."""
    deadline_s = time.monotonic() + PATIENCE_S
    while left := wanted - {body for _, body in deliveries(member)}:
        assert time.monotonic() < deadline_s, f"{what}: {len(left)} of {len(wanted)} do not come: {sorted(left)[:5]}"
        time.sleep(0.5)


def in_order(got: list[tuple[int, bytes]]) -> None:
    """Each queue's messages of one sender come in the order in which they were sent, but for repetitions."""
    seen: set[bytes] = set()
    last: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
    for queue_id, body in got:
        sender, _, number = body.rpartition(b"/")
        if body not in seen:
            assert int(number) > last[queue_id, sender], f"{body!r} after {last[queue_id, sender]} of queue {queue_id}"
            last[queue_id, sender] = int(number)
            seen.add(body)
