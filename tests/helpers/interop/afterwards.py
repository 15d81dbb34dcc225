"""What must hold of a store after clients have used it: our own check finds nothing, and real brokers serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import VERSIONS
from rmq_store import Store
from rmq_store.server.scratch_store import SCRATCH_CONFIG
from rmq_store.verify import verify_store

SETTINGS: Final = {
    "mappedFileSizeCommitLog": SCRATCH_CONFIG.mapped_file_size_commit_log,
    "mappedFileSizeConsumeQueue": SCRATCH_CONFIG.mapped_file_size_consume_queue,
    "maxHashSlotNum": SCRATCH_CONFIG.max_hash_slot_num,
    "maxIndexNum": SCRATCH_CONFIG.max_index_num,
}


def verify(path: Path) -> None:
    """Our own check, of a store that may be served meanwhile."""
    problems = verify_store(path).problems
    assert not problems, problems


def check_store(path: Path, versions: tuple[str, ...] = VERSIONS) -> None:
    """Verify a closed store; then let released brokers open it, the oldest first, and tell the ends of all queues."""
    verify(path)
    with Store.open(path, read_only=True) as store:
        ends = {topic: store.queue_ranges(topic) for topic in store.topics() if not topic.startswith("rmq_sys_")}
    settings = SETTINGS | {"storePathRootDir": path, "storePathCommitLog": path / "commitlog"}
    for version in versions:
        with RocketmqCluster(version, master_properties=settings) as cluster, cluster.connect() as broker:
            for topic, queues in ends.items():
                for queue_id, (_, end) in queues.items():
                    told = requests.max_offset(broker, topic, queue_id)
                    assert told >= end, (version, topic, queue_id, told, end)
