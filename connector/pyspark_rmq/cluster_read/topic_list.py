"""Lists the topics of a cluster, in few calls to the name servers.

Name servers that do not answer, or that refuse because they have just begun, change nothing that is known. One that has
just begun may list few topics: of those that a stream reads its position knows (`starting_offsets.subscribed`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from rmq_store.cluster import Cluster, MQBrokerError, RemotingError, ResponseCode, is_away, tells_nothing

_log = logging.getLogger(__name__)

TOPICS_EVERY_MS: Final = 30_000.0
# A topic that was missing: the retry topic of a group appears with its first member.
MISSING_TOPIC_EVERY_MS: Final = 5_000.0
# Of hundreds of topics not all at once: each may cost a request.
LOOKED_AT_ONCE: Final = 1


class TopicList:
    """The topics of a cluster, and which of those that were looked for are there. `changes` grows when one of those
    comes or goes. Times are in ms, of a clock that never goes back.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: Mapping[str, object] = {}
        self._topics_at_ms: float | None = None
        self._refusal: MQBrokerError | None = None
        self._looked_for: dict[str, tuple[bool, float]] = {}
        self.changes = 0

    def all(self, now_ms: float) -> Mapping[str, object]:
        """All topics of the namespace by name, as `look_again` has seen them; the same object as long as nothing
        changed.

        Raises:
            MQBrokerError: no list is given, as by a proxy.
        """
        if self._topics_at_ms is None:
            self._list(now_ms)
        if self._refusal is not None:
            raise self._refusal
        return self._topics

    def look_again(self, now_ms: float) -> None:
        """Notice topics that came or went: every 30 s, and sooner those that were looked for and are not there; later
        while no name server answers.
        """
        if not self._cluster.name_servers.may_answer():
            return
        if self._topics_at_ms is not None and now_ms - self._topics_at_ms >= TOPICS_EVERY_MS:
            self._list(now_ms)
        due = [
            name
            for name, (was_there, at_ms) in self._looked_for.items()
            if now_ms - at_ms >= (TOPICS_EVERY_MS if was_there else MISSING_TOPIC_EVERY_MS)
        ]
        for name in due[:LOOKED_AT_ONCE]:
            was_there, _ = self._looked_for.pop(name)
            try:
                is_there = self._cluster.route(name) is not None
            except (RemotingError, MQBrokerError) as error:
                if not tells_nothing(error):
                    raise
                _log.info("it is not known now whether there is a topic %s: %s", name, error)
                is_there = was_there
            self._looked_for[name] = is_there, now_ms
            self.changes += is_there != was_there

    def has(self, name: str, now_ms: float) -> bool:
        """Whether the topic had a route at the last look; the first call looks."""
        known = self._looked_for.get(name)
        if known is None:
            known = self._looked_for[name] = self._cluster.route(name) is not None, now_ms
        return known[0]

    def _list(self, now_ms: float) -> None:
        is_first, self._topics_at_ms = self._topics_at_ms is None, now_ms
        try:
            names = self._cluster.topics()
        except (RemotingError, MQBrokerError) as error:
            if isinstance(error, MQBrokerError) and error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._refusal = error
                return
            if not tells_nothing(error) or (is_first and is_away(error)):
                self._topics_at_ms = None if is_first else now_ms
                raise
            if is_first:  # they refuse because they have just begun
                self._topics_at_ms = now_ms - TOPICS_EVERY_MS + MISSING_TOPIC_EVERY_MS
            _log.warning("the known topics stay in use: %s", error)
            return
        self._refusal = None
        if list(self._topics) != names:
            self._topics = dict.fromkeys(names)
