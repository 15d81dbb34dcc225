"""`rmq mirror offsets` against the real Kafka: what it shows, commits and refuses, once and in rounds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from helpers.kafka_groups import SHARE, group_member, new_protocols
from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce
from rmq_store import Store
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.connect import open_administration
from rmq_store.bridge.kafka.connection import KafkaConnection
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, copy_all, options

from .changing import command, make_store

MIRROR = ("--name", "m", "--cluster-id", CLUSTER_ID)


def commit(kafka: KafkaServer, group: str, topic: str, offset: int) -> None:
    """A group of Kafka that has consumed partition 0 up to an offset."""
    administration = open_administration(KafkaConnection((kafka.address,)))
    try:
        administration.commit_group_offsets(group, {Partition(topic, 0): offset})
    finally:
        administration.close()


def offsets_in_kafka(kafka: KafkaServer, group: str) -> dict[Partition, int]:
    administration = open_administration(KafkaConnection((kafka.address,)))
    try:
        return dict(administration.group_offsets(group))
    finally:
        administration.close()


@contextmanager
def deleted_at_the_end(kafka: KafkaServer, groups: Collection[str]) -> Iterator[None]:
    """`--all-groups` of another test must not find them."""
    try:
        yield
    finally:
        with kafka.admin() as admin:
            admin.delete_groups(list(groups))


class Scene:
    """A topic with ten records, mirrored as far as `copied`, and a group at 4."""

    def __init__(self, kafka: KafkaServer, root: Path, *, group: str) -> None:
        self.kafka = kafka
        self.root = root
        self.group = group
        self.topic = kafka.new_topic("moving")
        produce(kafka, self.topic, numbered(10))
        commit(kafka, group, self.topic, 4)
        with Store.open(root, create=True) as store:
            copy_all(kafka, store, options(self.topic))

    def run(self, *arguments: str, to: str = "rmq", answer: str | None = None) -> Result:
        own = ("--bootstrap-servers", self.kafka.address, *MIRROR, "--to", to)
        return command(self.root, "mirror", "offsets", *own, *arguments, answer=answer)

    def committed(self, group: str | None = None) -> dict[tuple[str, int], int]:
        with Store.open(self.root, read_only=True) as store:
            return store.committed_offsets(group or self.group)


@pytest.fixture
def scene(kafka: KafkaServer, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    return Scene(kafka, tmp_path / "store", group=request.node.name[:60])


def test_it_shows_asks_and_commits_and_the_way_back_does_too(scene: Scene) -> None:
    dry = scene.run("-g", scene.group, "--dry-run")
    assert (dry.exit_code, scene.committed()) == (0, {})
    header, row = dry.stdout.splitlines()
    assert header.split()[:4] == ["GROUP", "TOPIC", "QUEUE", "POSITION"]
    assert row.split() == [scene.group, scene.topic, "0", "4", scene.topic, "-", "4", "0", "0", "0", "move"]
    assert "terminal" in scene.run("-g", scene.group).stderr
    assert scene.run("-g", scene.group, answer="n").exit_code == 1
    assert scene.committed() == {}
    assert scene.run("-g", scene.group, answer="y").exit_code == 0
    assert scene.committed() == {(scene.topic, 0): 4}
    with Store.open(scene.root) as store:
        store.commit_offsets(scene.group, {(scene.topic, 0): 9})
    back = scene.run("-g", scene.group, "--yes", "--json", to="kafka")
    (group,) = json.loads(back.stdout)["groups"]
    assert (back.exit_code, group["committed"]) == (0, 1)
    assert group["queues"] == [
        {"topic": scene.topic, "queueId": 0, "position": 9, "targetTopic": scene.topic, "oldOffset": 4, "newOffset": 9,
         "redelivered": 0, "missing": 0, "ahead": 0, "lettersPassed": 0, "status": "move", "heldUpBy": "other"}
    ]  # fmt: skip
    assert offsets_in_kafka(scene.kafka, scene.group) == {Partition(scene.topic, 0): 9}


def test_what_is_not_committed_is_said_and_makes_exit_status_1(scene: Scene) -> None:
    produce(scene.kafka, scene.topic, numbered(3, 10))
    commit(scene.kafka, scene.group, scene.topic, 12)
    behind = scene.run("-g", scene.group, "--yes", "--json")
    assert (behind.exit_code, scene.committed()) == (1, {})
    (group,) = json.loads(behind.stdout)["groups"]
    assert [queue["status"] for queue in group["queues"]] == ["behind"]
    unknown = scene.run("-g", "nobody", "--yes")
    assert unknown.exit_code == 1
    assert "group nobody: it has no position in Kafka" in unknown.stderr


def test_a_group_gets_another_name_and_all_groups_go_that_can(scene: Scene) -> None:
    commit(scene.kafka, "with.dots", scene.topic, 7)
    assert scene.run("-g", "with.dots=with_dots", "--yes").exit_code == 0
    assert scene.committed("with_dots") == {(scene.topic, 0): 7}
    everybody = scene.run("--all-groups", "--yes", "--json")
    assert everybody.exit_code == 1
    outcomes = {group["group"]: group["error"] for group in json.loads(everybody.stdout)["groups"]}
    assert outcomes.keys() == {"with.dots", scene.group}
    assert outcomes[scene.group] is None
    assert "with.dots" in outcomes["with.dots"]
    assert scene.committed() == {(scene.topic, 0): 4}


@pytest.mark.slow
def test_groups_of_all_protocols_of_this_kafka_go_over_and_a_share_group_is_named(scene: Scene) -> None:
    """Also those at work. The way back is refused while somebody is in them."""
    kafka, topic = scene.kafka, scene.topic
    groups = {protocol: f"{topic}-{protocol}" for protocol in new_protocols(kafka)}
    moving = {group for protocol, group in groups.items() if protocol != SHARE}
    with deleted_at_the_end(kafka, groups.values()):
        with ExitStack() as members:
            for protocol, group in groups.items():
                with group_member(kafka, group, protocol, topic):
                    pass
                if group in moving:
                    commit(kafka, group, topic, 7)
                members.enter_context(group_member(kafka, group, protocol, topic))
            everybody = scene.run("--all-groups", "--yes", "--json")
            outcomes = {told["group"]: told["error"] for told in json.loads(everybody.stdout)["groups"]}
            assert outcomes.keys() == {scene.group, *groups.values()}
            assert {group for group, error in outcomes.items() if error is None} == {scene.group, *moving}
            assert all("share group" in outcomes[group] for group in groups.values() if group not in moving)
            assert everybody.exit_code == (SHARE in groups)
            for group in moving:
                assert scene.committed(group) == {(topic, 0): 7}
                with Store.open(scene.root) as store:
                    store.commit_offsets(group, {(topic, 0): 9})
                refused = scene.run("-g", group, "--yes", to="kafka")
                assert refused.exit_code == 1 and "has running members" in refused.stderr
        for group in moving:
            assert scene.run("-g", group, "--yes", to="kafka").exit_code == 0
            assert offsets_in_kafka(kafka, group) == {Partition(topic, 0): 9}


def test_messages_that_wait_for_their_retry_are_not_left_behind_unasked(scene: Scene) -> None:
    scene.run("-g", scene.group, "--yes")
    with Store.open(scene.root) as store:
        message = next(store.read(scene.topic, 0, 4, 5)).to_pylist()[0]
        store.retry.send_back(scene.group, message["commitLogOffset"])
        store.commit_offsets(scene.group, {(scene.topic, 0): 5})
    refused = scene.run("-g", scene.group, "--yes", to="kafka")
    assert refused.exit_code == 1
    assert "has 1 retries pending" in refused.stderr
    assert offsets_in_kafka(scene.kafka, scene.group) == {Partition(scene.topic, 0): 4}
    assert scene.run("-g", scene.group, "--yes", "--ignore-waiting", to="kafka").exit_code == 0
    assert offsets_in_kafka(scene.kafka, scene.group) == {Partition(scene.topic, 0): 5}


@pytest.mark.slow
def test_in_rounds_it_follows_a_group_until_somebody_stops_it(scene: Scene) -> None:
    with in_rounds(scene) as running:
        for offset in (4, 8):
            commit(scene.kafka, scene.group, scene.topic, offset)
            wait_until(lambda wanted=offset: scene.committed() == {(scene.topic, 0): wanted})
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate()
    assert (running.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[0])["groups"][0]["queues"][0]["newOffset"] == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name groups with -g"),
        (("-g", "a", "--all-groups"), "name groups with -g"),
        (("-g", "a="), "NAME or NAME=NAME"),
        (("-g", "a=c", "-g", "b=c"), "cannot both become"),
        (("-g", "a", "--every", "5"), "--every cannot ask"),
        (("-g", "a", "--every", "5", "--yes", "--force-back"), "again and again"),
    ],
)
def test_what_contradicts_itself_is_a_mistake(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    root = make_store(tmp_path / "store")
    own = ("--bootstrap-servers", "127.0.0.1:1", *MIRROR, "--to", "rmq")
    result = command(root, "mirror", "offsets", *own, *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.slow
def test_in_rounds_it_bears_that_kafka_is_away_for_a_while(scene: Scene) -> None:
    with in_rounds(scene) as running:
        wait_until(lambda: scene.committed() == {(scene.topic, 0): 4})
        scene.kafka.restart()
        commit(scene.kafka, scene.group, scene.topic, 9)
        wait_until(lambda: scene.committed() == {(scene.topic, 0): 9})
        running.send_signal(signal.SIGTERM)
        running.communicate()
    assert running.returncode == 0


@contextmanager
def in_rounds(scene: Scene) -> Iterator[subprocess.Popen[str]]:
    """The command, once a second, in a process of its own."""
    arguments = ("-g", scene.group, "--to", "rmq", "--yes", "--json", "--every", "1")
    own = ("--bootstrap-servers", scene.kafka.address, *MIRROR)
    program = "import sys; from rmq_store.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", program, "mirror", "offsets", str(scene.root), *own, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def wait_until(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
