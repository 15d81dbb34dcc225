"""How groups read topics whose queues the server divides: `config/messageRequestMode.json`, as brokers of 5.x write it.

    messageRequestModeMap{topic: {group: {consumerGroup, mode, popShareQueueNum, topic}}}

The file has no dataVersion. Sources: MessageRequestModeManager.java, SetMessageRequestModeRequestBody.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rmq_store.broker.metadata.json_table import CachedView, ConfigFile, Table
from rmq_store.broker.metadata.odd_entries import OddEntry, shown, usable_entries, with_errors
from rmq_store.clock import system_clock
from rmq_store.format.tables.config_json import Shadowed
from rmq_store.lazy.dataclasses import dataclass

PULL: Final = "PULL"
POP: Final = "POP"

_PART = "messageRequestModeMap"
_INT32 = 1 << 31


@dataclass(frozen=True, slots=True)
class RequestMode:
    """PULL or POP. With POP, `pop_share_queue_num` members behind a member read its queues too; all members read all
    queues if it is 0 or less.
    """

    mode: str = PULL
    pop_share_queue_num: int = 0


class RequestModeTable:
    """The modes of the store at `root`, by topic and group. Safe for threads; other processes' changes are seen at
    once.
    """

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        self._file = ConfigFile(root, "messageRequestMode.json", clock=clock, has_version=False)
        self._view = CachedView(self._file, self._decode)

    def get(self, topic: str, group: str) -> RequestMode:
        """The mode that was set, else PULL. CorruptConfigError: the table is unreadable, or this entry."""
        return self._view.get().get((topic, group), RequestMode())

    def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set a mode durably. Raises as `ConfigFile.update`."""

        def mutate(table: Table) -> None:
            of_topic = self._file.part(self._file.part(table, _PART), topic)
            of_topic[group] = {
                "consumerGroup": group,
                "mode": mode.mode,
                "popShareQueueNum": mode.pop_share_queue_num,
                "topic": topic,
            }

        self._file.update(mutate)

    def _decode(self, table: Table) -> Mapping[tuple[Any, Any], RequestMode]:
        found: dict[tuple[Any, Any], RequestMode] = {}
        odd: dict[tuple[Any, Any], OddEntry] = {}
        for topic, of_topic in self._topics(table):
            usable, unusable = usable_entries(str(self._file.path), of_topic, self._decode_entry)
            found.update(((topic, group), mode) for group, mode in usable.items())
            odd.update(((topic, group), entry) for group, entry in unusable.items())
        return with_errors(found, odd)

    def _topics(self, table: Table) -> Iterator[tuple[str, Table]]:
        for topic, of_topic in self._file.part(table, _PART).items():
            if isinstance(topic, Shadowed):  # the last one counts, as for a broker
                continue
            if not isinstance(of_topic, dict):
                raise self._file.corrupt(f"modes of topic {shown(topic)}: not an object")
            yield topic, of_topic

    def _decode_entry(self, group: Any, entry: Any) -> RequestMode:
        mode = entry.get("mode") if isinstance(entry, dict) else None
        share = entry.get("popShareQueueNum", 0) if isinstance(entry, dict) else None
        if mode not in (PULL, POP) or type(share) is not int or not -_INT32 <= share < _INT32:
            raise self._file.corrupt(f"mode of group {shown(group)}: {shown(entry)}")
        return RequestMode(mode, share)
