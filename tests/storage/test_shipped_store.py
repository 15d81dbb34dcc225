"""The broker's store in examples/data, against what RocketMQ's Java client saw in it.

These run where the large golden stores are not at hand: in a clone on somebody's machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rmq_store import Store
from rmq_store.verify import verify_store


def tree(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file() and path.stat().st_size < 1 << 24)
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_queue_has_the_offsets_that_the_java_client_saw(broker_store: Any) -> None:
    with Store.open(broker_store.path, read_only=True) as store:
        seen = {
            topic: {queue: (ends.min_offset, ends.max_offset) for queue, ends in store.queue_ranges(topic).items()}
            for topic in store.topics()
        }
    used = {topic: {queue: ends for queue, ends in queues.items() if ends != (0, 0)} for topic, queues in seen.items()}
    assert {topic: queues for topic, queues in used.items() if queues} == {
        topic: {queue: ends for queue, ends in queues.items() if ends != (0, 0)}
        for topic, queues in broker_store.topics.items()
    }


def test_every_group_has_committed_what_the_java_client_saw(broker_store: Any) -> None:
    with Store.open(broker_store.path, read_only=True) as store:
        for group, topics in broker_store.groups.items():
            committed = store.committed_offsets(group)
            for topic, queues in topics.items():
                assert {queue: committed.get((topic, queue), 0) for queue in queues} == queues


def test_every_message_can_be_read_and_nothing_on_disk_changes(broker_store: Any) -> None:
    before = tree(broker_store.path)
    with Store.open(broker_store.path, read_only=True) as store:
        assert store.broker_name == broker_store.broker_name
        count = 0
        for topic, queues in broker_store.topics.items():
            for queue, (first, last) in queues.items():
                rows = sum(batch.num_rows for batch in store.read(topic, queue, first, last))
                assert rows == last - first
                count += rows
    report = verify_store(broker_store.path)
    assert (report.status, report.problem_count) == ("clean", 0)
    assert count == report.messages == broker_store.message_count
    assert tree(broker_store.path) == before
