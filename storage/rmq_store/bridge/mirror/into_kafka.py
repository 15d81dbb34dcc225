"""A store into Kafka: topics one after the other, a window of each, as long as somebody wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from rmq_store.bridge.mirror.kafka_side import CopyRules, Counts, KafkaSide
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.topic_into_kafka import TopicIntoKafka
from rmq_store.bridge.mirror.topics import TopicChoice
from rmq_store.broker.store import Store
from rmq_store.errors import KafkaUnavailableError, MirrorConflictError, StoreError

_LOOK_S: Final = 5.0
_IDLE_S: Final = 0.2
_LEAST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class Watcher(Protocol):
    """Who is told what happens. `trouble`: a topic waits, and is tried again; `ended`: it is not any more."""

    def moved(self, topic: str, messages: int) -> None:
        """A window of a topic was copied."""

    def trouble(self, topic: str, error: StoreError) -> None:
        """A topic waits."""

    def ended(self, topic: str, error: StoreError) -> None:
        """A topic's mirror has ended; those of others go on."""


@dataclass(slots=True)
class _Topic:
    copy: TopicIntoKafka
    error: StoreError | None = None
    pause_s: float = _LEAST_PAUSE_S
    again_s: float = 0.0


class IntoKafka:
    """Mirrors the chosen topics of `store`. Topics and queues that come later are mirrored from their beginning.

    `rows_per_s`: of all topics, at most; 0 for no limit. `is_writable`: whether the store was opened for writing; its
    log is flushed before what lies in it is committed in Kafka then.
    """

    def __init__(
        self, store: Store, side: KafkaSide, choice: TopicChoice, rules: CopyRules, targets: TargetRules,
        watcher: Watcher, *, rows_per_s: float = 0, is_writable: bool = True,
    ) -> None:  # fmt: skip
        self._store, self._side, self._choice = store, side, choice
        self._rules, self._targets, self._watcher = rules, targets, watcher
        self._rows_per_s, self._is_writable = rows_per_s, is_writable
        self._topics: dict[str, _Topic] = {}
        self._looked_s: float | None = None
        self.counts = Counts()

    def run(self, wait: Callable[[float], bool], *, until_caught_up: bool = False) -> dict[str, StoreError]:
        """Copy until `wait` (up to some seconds) says that somebody has asked to stop; it is asked between windows.
        With `until_caught_up` it ends, too, when everything is copied that was there at a last look. The errors of
        topics that have ended.

        Raises:
            MirrorConflictError: another mirror of the name has begun.
            UsageError: a topic that was named is not there, or two would become one.
        """
        while not wait(0):
            began_s = time.monotonic()
            self._look()
            moved = sum(self._copy(topic) for topic in list(self._topics.values()) if not wait(0))
            if self._topics and all(topic.error is not None for topic in self._topics.values()):
                break
            if moved:
                pause_s = moved / self._rows_per_s - (time.monotonic() - began_s) if self._rows_per_s else 0.0
            elif until_caught_up and all(not topic.again_s or topic.error for topic in self._topics.values()):
                break
            else:
                pause_s = _IDLE_S
            if pause_s > 0 and wait(pause_s):
                break
        return {name: topic.error for name, topic in self._topics.items() if topic.error is not None}

    def lag(self) -> int:
        """Messages that are there and not copied, of topics that have not ended."""
        return sum(topic.copy.lag() for topic in self._topics.values() if topic.error is None)

    def close(self) -> None:
        """Abort what is open."""
        for topic in self._topics.values():
            topic.copy.close()

    def _look(self) -> None:
        self._store.refresh()
        now_s = time.monotonic()
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_S:
            return
        is_new = self._looked_s is not None
        self._looked_s = now_s
        for name, target in self._choice.chosen(self._store.topics()).items():
            if name not in self._topics:
                copy = TopicIntoKafka(
                    self._store, self._side, name, target, self._rules, self._targets,
                    is_new=is_new, counts=self.counts, is_writable=self._is_writable,
                )  # fmt: skip
                self._topics[name] = _Topic(copy)

    def _copy(self, topic: _Topic) -> int:
        if topic.error is not None or time.monotonic() < topic.again_s:
            return 0
        try:
            moved = topic.copy.copy()
        except MirrorConflictError:
            raise
        except KafkaUnavailableError as error:
            topic.again_s = time.monotonic() + topic.pause_s
            topic.pause_s = min(2 * topic.pause_s, _LONGEST_PAUSE_S)
            self._watcher.trouble(topic.copy.topic, error)
            return 0
        except StoreError as error:
            topic.error = error
            topic.copy.close()
            self._watcher.ended(topic.copy.topic, error)
            return 0
        topic.again_s, topic.pause_s = 0.0, _LEAST_PAUSE_S
        if moved:
            self._watcher.moved(topic.copy.topic, moved)
        return moved
