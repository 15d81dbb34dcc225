"""`store.admin`: an operator changes and deletes topics and groups.

A deletion removes:

    topic    its settings, every group's offsets on it, POP state; POP retry topics of Java (%RETRY%group_topic)
    group    its settings; with its offsets also POP state and the topics %RETRY%group and %DLQ%group

Messages stay in the log until retention deletes them. The files of their queues stay as long, and the last file of each
queue for ever. A broker unlinks these files (DefaultMessageStore#deleteTopics) and starts again at queue offset 0, so a
rebuild finds two messages for one offset. Here a topic that is made again continues at its old end, and its remaining
old messages can be read again. So no queue offset is used twice while the log has a message with that offset.

Each step is durable before the next, settings first. To finish an interrupted deletion, repeat it;
`clean_unused_topics` also finds its remains. Sources: AdminBrokerProcessor.java (updateAndCreateTopic, deleteTopic,
updateAndCreateSubscriptionGroup, deleteSubscriptionGroup, cleanUnusedTopic), ConsumerOffsetManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.deleted_topics import record_deletion
from rmq_store.broker.metadata.groups import GroupTable, SubscriptionGroup
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.broker.pop.pop_journal import PopJournal
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.store.unlisted_topics import UnlistedTopics
from rmq_store.errors import ReadOnlyError, UnknownTopicError, UsageError
from rmq_store.files.rooted import refuse_if_replaced
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.retention import remove_queue_files


@dataclass(frozen=True, slots=True)
class Deletion:
    """The entries and files that a deletion removes: settings of `topics` and `groups`; committed `offsets`, {group:
    topics}; POP state of `pops`, (group, topic). `message_count`: messages of `topics` that can be read now; they stay
    in the log.
    """

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    offsets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pops: tuple[tuple[str, str], ...] = ()
    message_count: int = 0

    def __bool__(self) -> bool:
        return bool(self.topics or self.groups or self.offsets or self.pops)


@checked_methods()
class Administration:
    """The topics and groups of one store. For a store opened for reading it only plans."""

    def __init__(
        self,
        log: CommitLog,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        queues: Queues,
        unlisted: UnlistedTopics,
    ) -> None:
        self._log = log
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._queues = queues
        self._unlisted = unlisted

    def update_topic(
        self, name: str, change: Callable[[TopicConfig], TopicConfig], *, default: TopicConfig
    ) -> tuple[TopicConfig | None, TopicConfig]:
        """Replace a topic's settings by the result of `change`, which gets `default` for a new topic; durable on
        return. Returns the settings before (None: it is new) and after.

        Raises:
            UsageError: a topic of the broker itself, a bad name or value; nothing was changed.
            ReadOnlyError, StoreLockedError, StoreFullError, StoreFailedError: as `OffsetTable.commit`.
        """
        self._require_writer()
        names.validate_topic(name)
        if names.is_system_topic(name):
            raise UsageError(f"topic {name!r} belongs to the broker and cannot be changed")
        return self._topics.change(name, change, default=default)

    def update_group(
        self, name: str, change: Callable[[SubscriptionGroup], SubscriptionGroup], *, default: SubscriptionGroup
    ) -> SubscriptionGroup:
        """Replace a group's settings by the result of `change`, which gets `default` for a new group, and return them;
        durable on return. Raises as `update_topic`.
        """
        self._require_writer()
        names.validate_group(name)
        return self._groups.change(name, change, default=default)

    def plan_topic_deletion(self, name: str) -> Deletion:
        """The plan of `delete_topic`. UnknownTopicError: there is nothing of the topic to delete. UsageError: a topic
        of the broker itself, or a bad name.
        """
        names.validate_topic(name)
        if names.is_system_topic(name):
            raise UsageError(f"topic {name!r} belongs to the broker and cannot be deleted")
        is_unlisted = self._unlisted.get(name) is not None
        deletion = self._deletion([name, *self._pop_retry_topics(name)], unlisted={name} if is_unlisted else ())
        if not deletion:
            raise UnknownTopicError(f"no topic {name!r} in {self._log.root}")
        return deletion

    def delete_topic(self, name: str) -> Deletion:
        """Delete a topic and all entries of groups about it, and return what was removed; durable on return. See the
        module for what stays. Active consumers are not checked: see `active_consumers.active_groups`.

        Raises:
            UsageError: as `plan_topic_deletion`; nothing was changed.
            ReadOnlyError, StoreLockedError, StoreFullError, StoreFailedError: a part may be deleted already; repeat it.
        """
        self._require_writer()
        deletion = self.plan_topic_deletion(name)
        self._delete(deletion)
        return deletion

    def plan_group_deletion(self, name: str, *, remove_offsets: bool = False) -> Deletion:
        """The plan of `delete_group`. UsageError: there is nothing of the group to delete, or a bad name."""
        names.validate_group(name)
        has_settings = (name,) if self._groups.has(name) else ()
        deletion = Deletion(groups=has_settings)
        if remove_offsets:
            own = self._deletion([names.retry_topic(name), names.dlq_topic(name)])
            topics = tuple(sorted({topic for topic, _ in self._offsets.committed(name)}))
            others = tuple((group, left) for group, left in own.offsets if group != name)
            pops = tuple(sorted({*own.pops, *(pop for pop in self._pops() if pop[0] == name)}))
            offsets = (*others, (name, topics)) if topics else others
            deletion = replace(own, groups=has_settings, offsets=tuple(sorted(offsets)), pops=pops)
        if not deletion and not remove_offsets and self.plan_group_deletion(name, remove_offsets=True):
            raise UsageError(
                f"no group {name!r} with settings in {self._log.root}: it has offsets, topics or pops of its own, "
                "which removeOffset (-r true) deletes"
            )
        if not deletion:
            raise UsageError(f"no group {name!r} in {self._log.root}")
        return deletion

    def delete_group(self, name: str, *, remove_offsets: bool = False) -> Deletion:
        """Delete a group's settings, and with `remove_offsets` also its offsets, POP state, retry topic and dead
        letters. Returns what was removed. Durable on return. Raises as `delete_topic`. Active consumers are not
        checked: see `active_consumers.require_idle`.
        """
        self._require_writer()
        deletion = self.plan_group_deletion(name, remove_offsets=remove_offsets)
        self._delete(deletion)
        return deletion

    def plan_cleaning(self) -> Deletion:
        """Entries of groups about topics that no longer exist; see `clean_unused_topics`."""
        used = {topic for offsets in self._offsets.all().values() for topic, _ in offsets}
        used.update(topic for _, topic in self._pops())
        gone = sorted(topic for topic in used if not self._topics.has(topic))
        gone = [topic for topic in gone if self._unlisted.get(topic) is None]
        while (deletion := self._deletion(gone)).topics:  # made meanwhile: they are in use
            gone = [topic for topic in gone if topic not in deletion.topics]
        return deletion

    def clean_unused_topics(self) -> Deletion:
        """Delete entries of groups about topics that no longer exist; durable on return. Raises as `delete_topic`."""
        self._require_writer()
        deletion = self.plan_cleaning()
        self._delete(deletion)
        return deletion

    def clean_queue_files(self) -> int:
        """Delete queue files whose messages retention has all deleted, never the last file of a queue. Returns how
        many. Durable on return. StoreLockedError, StoreFailedError.
        """
        self._require_writer()
        return remove_queue_files(self._log)

    def leftover_count(self, topic: str) -> int:
        """The number of messages of `topic` that can be read now, also if the table lacks it."""
        names.validate_topic(topic)
        ranges = self._queues.ranges(topic, self._queues.queue_ids(topic)).values()
        return sum(span.max_offset - span.min_offset for span in ranges)

    def _deletion(self, topics: Iterable[str], *, unlisted: Collection[str] = ()) -> Deletion:
        """The deletion of these topics, in their order; `unlisted`: topics with queues but without an entry."""
        wanted = list(topics)
        found = {
            group: tuple(sorted({topic for topic, _ in offsets} & set(wanted)))
            for group, offsets in self._offsets.all().items()
        }
        present = tuple(topic for topic in wanted if self._topics.has(topic) or topic in unlisted)
        return Deletion(
            present,
            offsets=tuple(sorted((group, left) for group, left in found.items() if left)),
            pops=tuple(pop for pop in self._pops() if pop[1] in wanted),
            message_count=sum(self.leftover_count(topic) for topic in present),
        )

    def _delete(self, deletion: Deletion) -> None:
        if deletion.topics:
            record_deletion(self._log.root, deletion.topics, self._log.writing_page.appended_end)
        for topic in deletion.topics:
            self._topics.delete(topic)
        for group in deletion.groups:
            self._groups.delete(group)
        self._offsets.remove_pairs([(topic, group) for group, topics in deletion.offsets for topic in topics])
        for group, topic in deletion.pops:
            journal = PopJournal(self._log.own / "pop" / group / topic, sync=self._log.sync_flush)
            try:
                _remove(journal)
            finally:
                journal.close()

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """KeyBuilder#buildPopRetryTopicV1 and V2 for each group that consumes the topic; not the retry topic of another
        group whose name happens to be `group_topic`.
        """
        groups, offsets = self._groups.all(), self._offsets.all()
        consuming = [group for group in offsets if any(t == topic for t, _ in offsets[group])]
        names_of = {f"{group}{separator}{topic}" for group in consuming for separator in "_+"}
        others = groups.keys() | offsets.keys()
        return sorted(names.retry_topic(name) for name in names_of - others)

    def _pops(self) -> list[tuple[str, str]]:
        """(group, topic) of every POP journal, sorted."""
        directory: Path = self._log.own / "pop"
        return sorted((path.parent.parent.name, path.parent.name) for path in directory.glob("*/*/journal"))

    def _require_writer(self) -> None:
        if not self._log.writable:
            raise ReadOnlyError(f"{self._log.root} was opened with read_only=True: nothing can be changed")
        refuse_if_replaced(self._log.root)


def _remove(journal: PopJournal) -> None:
    """A function of its own, not in the one that closes the journal: an interrupt may leave this block's lock held."""
    with journal.exclusive():
        journal.remove()
