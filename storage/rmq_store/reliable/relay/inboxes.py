"""The database of the inbox of each group: that of the stubs, unless another one is given."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from rmq_store.reliable.database.drivers import require_engine


class Inboxes:
    """`stubs`: the senders' database. `by_group` {group: engine}: groups whose inbox is in another database. `other`:
    the database of all other groups, if it is not `stubs`. Raises UsageError for a driver that is not supported.
    """

    def __init__(
        self, stubs: sa.Engine, by_group: Mapping[str, sa.Engine] | None = None, other: sa.Engine | None = None
    ) -> None:
        self.stubs = stubs
        self.by_group = dict(by_group or {})
        self.other = stubs if other is None else other
        for engine in self.engines():
            require_engine(engine)

    def of(self, group: str) -> sa.Engine:
        """The database of the group's inbox."""
        return self.by_group.get(group, self.other)

    def engines(self) -> list[sa.Engine]:
        """Every database, each once, the database of the stubs first."""
        return list(dict.fromkeys([self.stubs, self.other, *self.by_group.values()]))
