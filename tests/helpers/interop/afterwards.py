"""What must hold of a store after clients have used it: our own check finds nothing, and a real broker serves it."""

from __future__ import annotations

from pathlib import Path

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from rmq_store import Store
from rmq_store.server.scratch_store import SCRATCH_CONFIG
from rmq_store.verify import verify_store

VERSION = "5.5.0"


def check_store(path: Path) -> None:
    """Verify a closed store; then let a released broker open it and tell the ends of all queues."""
    problems = verify_store(path).problems
    assert not problems, problems
    with Store.open(path, read_only=True) as store:
        ends = {topic: store.queue_ranges(topic) for topic in store.topics() if not topic.startswith("rmq_sys_")}
    settings = {
        "storePathRootDir": path,
        "storePathCommitLog": path / "commitlog",
        "mappedFileSizeCommitLog": SCRATCH_CONFIG.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": SCRATCH_CONFIG.mapped_file_size_consume_queue,
        "maxHashSlotNum": SCRATCH_CONFIG.max_hash_slot_num,
        "maxIndexNum": SCRATCH_CONFIG.max_index_num,
    }
    with RocketmqCluster(VERSION, master_properties=settings) as cluster, cluster.connect() as broker:
        for topic, queues in ends.items():
            for queue_id, (_, end) in queues.items():
                assert requests.max_offset(broker, topic, queue_id) >= end, (topic, queue_id, end)
