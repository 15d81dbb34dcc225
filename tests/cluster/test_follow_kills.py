"""Kills of a feeder and of its released master while clients of both kinds write: what readers of the replica see.

    python -m pytest -m cluster tests/cluster/test_follow_kills.py

The long form makes 200 kills of each version (`helpers.cluster.followed.plan`). Each leaves a line below
build/follow-kills, and none of these is repeated in the same state of the sources: a run goes on where it stopped.
RMQ_FOLLOW_KILLS says how many of each version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.followed.plan import COUNTS, SHORT, Event, events
from helpers.cluster.followed.scene import SMALL, Scene
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.kills.done import DoneKills
from rmq_store import StoreConfig

NewName = Callable[[str], str]
KILLS = int(os.environ.get("RMQ_FOLLOW_KILLS", "200"))
TESTED = ("storage/rmq_store/replica", "storage/rmq_store/log", "tests/helpers/cluster/followed", "tests/crash")


def test_readers_of_a_replica_see_the_masters_bytes_whatever_dies(
    cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic = cluster.create_topic(new_name("Killed"), 4)
    with Scene(cluster, tmp_path, topic, sizes=StoreConfig(), java=False) as scene:
        scene.begin()
        for point in SHORT:
            scene.run(Event(cluster.version, point, 0))
        end, entries = scene.finish()
    assert end > 0
    assert entries > 100


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", VERSIONS)
def test_two_hundred_kills_show_no_hole_no_half_unit_and_no_other_byte(
    version: str, new_name: NewName, tmp_path: Path
) -> None:
    require_released(version)
    done = DoneKills("follow-kills", version, TESTED)
    sizes = {
        "mappedFileSizeCommitLog": SMALL.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": SMALL.mapped_file_size_consume_queue,
    }
    with RocketmqCluster(version, properties=sizes) as cluster:
        topic = cluster.create_topic(new_name("Killed"), 4)
        with Scene(cluster, tmp_path, topic, sizes=SMALL, java=True) as scene:
            scene.units_at_start()
            for generation in events(version):
                left = [event for event in generation if event.name not in done.names]
                if not left or len(done.names) >= KILLS:
                    continue
                scene.begin()
                for event in left[: KILLS - len(done.names)]:
                    begun = time.monotonic()
                    scene.run(event)
                    done.add(event.name, time.monotonic() - begun)
                done.note("finished", end_and_entries=scene.finish())
            done.note(
                "figures", compared_bytes=scene.compared_bytes, passes=scene.passes, rounds=scene.writers.sent,
                failed=scene.writers.failed, by_java=scene.writers.by_java,
            )  # fmt: skip
    assert len(done.names) >= KILLS
    if KILLS == sum(COUNTS.values()):
        assert done.by_point() == COUNTS
