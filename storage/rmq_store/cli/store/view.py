"""A store answers the questions of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.rows import QueueRow, TopicRow
from rmq_store.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq_store import Store, TopicConfig
    from rmq_store.cli.target.view import Tell


class StoreView:
    """See `View`."""

    def __init__(self, store: Store, tell: Tell) -> None:
        self.failures = FailureReport[str]()
        self._store = store
        self._tell = tell

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """See `View`."""
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        unlisted = self._unlisted_topics()
        return [
            self._topic(name, config, in_table=name not in unlisted)
            for name, config in sorted({**self._store.topics(), **unlisted}.items())
            if show_all or (config.readable and not is_system_topic(name) and not name.startswith(LMQ_PREFIX))
        ]

    def _topic(self, name: str, config: TopicConfig, *, in_table: bool) -> TopicRow:
        ranges = sorted(self._store.queue_ranges(name).items()) if config.is_read_here else []
        return TopicRow(
            name,
            config.read_queue_nums,
            config.write_queue_nums,
            perm_text(config.perm),
            sum(one.max_offset - one.min_offset for _, one in ranges) if config.is_read_here else None,
            tuple(QueueRow(None, queue_id, *one) for queue_id, one in ranges),
            in_table,
            None if config.kind is None else config.kind.name,
        )

    def _unlisted_topics(self) -> Mapping[str, TopicConfig]:
        """Topics that the table does not name. If they cannot be found out, those of the table are shown nevertheless.
        """
        try:
            return self._store.unlisted_topics()
        except CorruptionError as error:
            self._tell(f"topics that are not in the table cannot be told: {error}")
            return {}
