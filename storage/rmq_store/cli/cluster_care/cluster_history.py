"""The lives of a message of a cluster: its copies, by the key indexes of its brokers.

A retry stays at the broker of its message, and offsets of two commit logs say nothing about each other. So each broker
that has copies has a life of its own: mostly one, two if the producer repeated a send at another broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mqadmin_targets.cluster_messages import ClusterTracker, messages_of
from rmq_store.cli.mqadmin_targets.cluster_scope import require_route
from rmq_store.cli.shared.output import printable
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.protocol.errors import MQBrokerError, RemotingError

if TYPE_CHECKING:
    from rmq_store import StoredMessage
    from rmq_store.broker.monitoring.message_track import TrackType
    from rmq_store.broker.monitoring.trace import Life
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.cluster import Cluster

Located = tuple[str, "StoredMessage"]


class ClusterHistory:
    """Follows messages of a cluster. `asked` remembers the brokers that do not answer."""

    def __init__(self, cluster: Cluster, asked: Answers) -> None:
        self._cluster = cluster
        self._asked = asked
        self._brokers: dict[str, str] = {}
        self._tracker = ClusterTracker(cluster, self._brokers)

    def lives(self, unique_key: str | None, msg_id: str | None, topic: str | None, key: str | None) -> list[Life]:
        """The lives of the messages with one of the ids, or of those of a topic with a key; one for each broker that
        has copies.

        Raises:
            UsageError: a unique key without a topic. UnknownTopicError: no broker has the topic.
        """
        if msg_id is not None:
            return self.by_offset_id(msg_id.strip())
        if topic is None:
            raise UsageError("--uniq-key needs -t TOPIC over a cluster: brokers index messages by topic")
        require_route(self._cluster, topic)
        found = [str(unique_key).strip()] if unique_key is not None else self.keys_of(topic, str(key).strip())
        return [life for one in found for life in self.by_unique_key(one, topic)]

    def by_offset_id(self, msg_id: str) -> list[Life]:
        """The lives of the message of which a copy has this id."""
        from rmq_store.remoting.cluster.queries import view_message

        answer = view_message(self._cluster, msg_id)
        if answer is None:
            return []
        ((broker_name, message),) = messages_of(self._cluster, [answer])
        unique_key, own = message.properties.get(keys.UNIQUE_KEY), message.properties
        named = next((own[one] for one in (keys.RETRY_TOPIC, keys.DLQ_ORIGIN_TOPIC, keys.REAL_TOPIC) if one in own), "")
        topic = self._cluster.plain_name(named) if named else message.topic
        lives = self.by_unique_key(unique_key, topic) if unique_key is not None else []
        return lives or [self._life(msg_id, broker_name, [message], is_complete=unique_key is not None)]

    def keys_of(self, topic: str, key: str) -> list[str]:
        """The unique keys of the messages of a topic with a key, and of those of which a copy waits, is retried or is
        dead; the newest first.
        """
        from rmq_store.broker.monitoring.trace_records import original_topics

        holders = self._holders(topic)
        found = self._copies(self._topics_of_copies(topic, holders), holders, key, is_unique_key=False)[0]
        mine = [
            one.properties[keys.UNIQUE_KEY]
            for _, one in sorted(found, key=lambda located: located[1].store_timestamp_ms, reverse=True)
            if keys.UNIQUE_KEY in one.properties
            and key in (one.keys or "").split(" ")
            and topic in (one.topic, *map(self._cluster.plain_name, original_topics(one.properties)))
        ]
        return list(dict.fromkeys(mine))

    def by_unique_key(self, unique_key: str, topic: str) -> list[Life]:
        """The lives of the message, one for each broker that has copies."""
        holders = self._holders(topic)
        found, is_complete = self._copies(self._topics_of_copies(topic, holders), holders, unique_key)
        by_broker: dict[str, list[StoredMessage]] = {}
        for name, one in found:
            if one.properties.get(keys.UNIQUE_KEY) == unique_key:
                by_broker.setdefault(name, []).append(one)
        lives = []
        for name, records in sorted(by_broker.items()):
            try:
                lives.append(self._life(unique_key, name, records, is_complete))
            except (MQBrokerError, RemotingError) as error:
                self._asked.failed(name, error)
        return lives

    def _topics_of_copies(self, topic: str, holders: Sequence[str]) -> list[str]:
        groups: set[str] = set()
        for name in holders:
            try:
                groups.update(self._tracker.groups(topic, name))
            except (MQBrokerError, RemotingError) as error:
                self._asked.failed(name, error)
        copies = [make(group) for group in sorted(groups) for make in (names.retry_topic, names.dlq_topic)]
        return [topic, *_waiting_topics(), *copies]

    def _holders(self, topic: str) -> list[str]:
        return sorted(self._cluster.known_route(topic).queues)

    def _copies(
        self, topics: Iterable[str], broker_names: Sequence[str], key: str, *, is_unique_key: bool = True
    ) -> tuple[list[Located], bool]:
        """The messages by broker, each once; and whether no broker may have more."""
        from rmq_store.remoting.cluster.queries import copies_by_key

        answers = copies_by_key(
            self._cluster, dict.fromkeys(topics), broker_names, key,
            on_missing=self._asked.failed, is_unique_key=is_unique_key,
        )  # fmt: skip
        found = {(name, one.commit_log_offset): one for name, one in messages_of(self._cluster, answers)}
        return [(name, one) for (name, _), one in found.items()], not any(answer.is_full for answer in answers)

    def _life(self, msg_id: str, broker_name: str, records: Sequence[StoredMessage], is_complete: bool) -> Life:
        from rmq_store.broker.monitoring.trace import Life, standings_of, with_gone
        from rmq_store.broker.monitoring.trace_life import steps_of

        self._brokers.update((record.offset_msg_id, broker_name) for record in records)
        due_ms = {one.commit_log_offset: due for one in records if (due := self._due_ms(one, broker_name)) is not None}
        steps = with_gone(steps_of(records, due_ms))
        standings = standings_of(steps, _AtBroker(self._tracker, broker_name))
        return Life(msg_id, tuple(steps), tuple(standings), is_complete)

    def _due_ms(self, record: StoredMessage, broker_name: str) -> int | None:
        if record.topic == names.SCHEDULE_TOPIC:
            return self._entry_ms(record, broker_name)
        text = record.properties.get(keys.TIMER_OUT_MS, "")
        is_timer = record.topic in (names.TIMER_TOPIC, names.PYRMQ_TIMER_TOPIC)
        return int(text) if is_timer and text.isascii() and text.isdigit() else None

    def _entry_ms(self, record: StoredMessage, broker_name: str) -> int | None:
        """The due time in the queue entry of a delayed message; None if the broker does not show it."""
        from rmq_store.remoting.admin.scope import ask, masters
        from rmq_store.remoting.questions.brokers import ask_queue_entries, read_queue_entries

        try:
            (process,) = (one for one in masters(self._cluster) if one.broker_name == broker_name)
            place = record.topic, record.queue_id, record.queue_offset
            command = ask_queue_entries(self._cluster, *place, 1)
            entries = ask(self._cluster, process, command, read_queue_entries).queue_data
        except (MQBrokerError, RemotingError, ValueError) as error:
            text = f"rmq: broker {broker_name} does not show when delayed messages are due: {without_codes(str(error))}"
            click.echo(printable(text), err=True)
            return None
        return entries[0].tags_code if entries else None


class _AtBroker:
    """The groups that read a topic at one broker (`Readers`)."""

    def __init__(self, tracker: ClusterTracker, broker_name: str) -> None:
        self._tracker = tracker
        self._broker_name = broker_name

    def groups(self, topic: str) -> list[str]:
        return self._tracker.groups(topic, self._broker_name)

    def track_type(self, group: str, message: StoredMessage) -> TrackType:
        return self._tracker.track_of(group, message).track_type


def _waiting_topics() -> tuple[str, ...]:
    from rmq_store.broker.monitoring.trace_records import DELAY_TOPICS

    return DELAY_TOPICS
