"""Topics that the table lost, found again by their queues (`rmq repair`).

A queue has neither the permissions nor other settings of its topic. So the repair gives the topic the settings of a new
one, and as many queues as exist.
"""

from __future__ import annotations

from pathlib import Path

from rmq_store.broker.metadata.deleted_topics import (
    DELETED_TOPICS_FILE,
    deleted_topics,
    record_deletion,
    was_used_since,
)
from rmq_store.broker.metadata.topics import DEFAULT_TOPICS, QUEUE_COUNT_MAX, TopicConfig, TopicTable
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.store.unlisted_topics import listed
from rmq_store.errors import CorruptConfigError, StoreFailedError, UsageError
from rmq_store.files.progress import Progress
from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic, validate_topic

TOPICS_FILE = "config/topics.json"


def topics_of_queues(root: Path) -> list[TopicConfig]:
    """The topics that have queues, except those that were deleted and not created again."""
    try:
        deleted = deleted_topics(root)
    except (CorruptConfigError, StoreFailedError):
        deleted = {}
    found = []
    for topic in sorted((root / "consumequeue").iterdir()) if (root / "consumequeue").is_dir() else ():
        if not topic.is_dir() or not is_topic_name(topic.name) or topic.name.startswith(LMQ_PREFIX):
            continue
        ids = [int(queue.name) for queue in topic.iterdir() if queue.name.isascii() and queue.name.isdigit()]
        ids = [number for number in ids if number < QUEUE_COUNT_MAX]
        if ids and was_used_since(topic, deleted.get(topic.name, 0)):
            found.append(TopicConfig(topic.name, max(ids) + 1, max(ids) + 1, 6))
    return found


def is_topic_name(name: str) -> bool:
    """Whether a topic, or one of a broker's light message queues, can have this name."""
    try:
        validate_topic(name.removeprefix(LMQ_PREFIX))
    except UsageError:
        return False
    return True


def lost_topics(root: Path) -> list[TopicConfig]:
    """Topics with queues that are not in the table, which must be readable, and that this engine did not delete. A
    broker that deletes a topic deletes its queues, too.
    """
    table = TopicTable(root)
    unknown = [topic for topic in topics_of_queues(root) if not table.has(topic.topic_name)]
    return [topic for topic in unknown if not is_system_topic(topic.topic_name)]  # who needs one makes it


def find_lost_topics(root: Path) -> Finding | None:
    """The repair of topics that are missing in a readable table."""
    lost = lost_topics(root)
    if not lost:
        return None
    return Finding(
        "config", TOPICS_FILE, f"topics with queues are not in it: {listed([topic.topic_name for topic in lost])}",
        "they are put into it, with the queues that they have; `rmq deleteTopic` for what is not wanted",
        lambda: put_into_table(root, lost),
    )  # fmt: skip


def start_table_anew(root: Path, trash: Trash) -> None:
    """Replace an unreadable table by one with all topics that have queues. The table exists at every moment: otherwise
    an opener would create its own.
    """
    table = TopicTable(root)
    for path in table.paths:
        trash.keep(path)
    found = {topic.topic_name: topic for topic in (*topics_of_queues(root), *DEFAULT_TOPICS)}
    table.start_anew([*found.values()])


def put_into_table(root: Path, topics: list[TopicConfig]) -> None:
    """Add topics to a readable table."""
    TopicTable(root).create_all(topics, exist_ok=True)


def find_again(root: Path, *, table_was_lost: bool) -> int:
    """Add the topics of the queues to the table, after the queues are whole again; returns their number. If
    `table_was_lost`, it adds the system topics, too.
    """
    lost = lost_topics(root)
    if table_was_lost:
        table = TopicTable(root)
        lost = [topic for topic in topics_of_queues(root) if not table.has(topic.topic_name)]
    if lost:
        put_into_table(root, lost)
    return len(lost)


def make_deleted_topics_again(root: Path, trash: Trash) -> None:
    """Replace a damaged list of deleted topics. A topic that has queues and is not in the table counts as deleted;
    system topics never do.
    """
    trash.keep(root / DELETED_TOPICS_FILE)
    table, progress = TopicTable(root), Progress(root / "pyrmq" / "progress").load_for_repair()
    unknown = [topic.topic_name for topic in topics_of_queues(root) if not table.has(topic.topic_name)]
    gone = [name for name in unknown if not is_system_topic(name)]
    record_deletion(root, gone, progress[0].end if progress is not None else 0)
