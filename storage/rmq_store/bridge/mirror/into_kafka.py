"""The mirror from a store, or a broker, into Kafka: it copies a window of each topic in turn, until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.pace import Pace, Window, closed_s
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.mirror.topic_into_kafka import TopicIntoKafka
from rmq_store.bridge.positions.topics import TopicChoice
from rmq_store.bridge.source.message_source import MessageSource
from rmq_store.errors import (
    KafkaUnavailableError,
    MirrorConflictError,
    MirrorLettersError,
    MirrorSourceError,
    StoreError,
)
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import SlaveBehindError

REFRESH_S: Final = 5.0
"""Between two refreshes of the topics, in seconds."""

_IDLE_S: Final = 0.2
_PAUSES: Final = Backoff(first_ms=1_000, max_ms=60_000)


@dataclass(slots=True)
class _Topic:
    copy: TopicIntoKafka
    failure: StoreError | None = None
    failures: int = 0
    again_s: float = 0.0
    waits_since_s: float = 0.0
    waits_for: str = ""


class IntoKafka:
    """Mirrors the chosen topics of `store`, a store or a `BrokerSource`. Topics and queues that appear later are
    mirrored from their beginning. A topic that fails stops alone; the others go on, and the report has the reason. A
    topic whose partitions, or whose broker, do not answer waits.

    `wait(seconds)` returns True at once if the mirror is to stop; it is called between windows. `rate`: records per
    second. `windows`: times of the day at which it copies; none: always. `letters_max`: dead letters of one run; more
    end it. `is_writable`: the store was opened for writing; then its log is flushed before Kafka commits copies of it.
    `patience_s`: how long Kafka, or a broker, may be unavailable; None: for ever. The caller closes the store and
    Kafka's side.
    """

    def __init__(
        self, store: MessageSource, side: KafkaSide, choice: TopicChoice, rules: CopyRules, targets: TargetRules, *,
        wait: Callable[[float], bool], on_report: Callable[[MirrorReport], None] = lambda report: None,
        rate: float | None = None, windows: tuple[Window, ...] = (), letters_max: int | None = None,
        is_writable: bool = True, patience_s: float | None = None,
    ) -> None:  # fmt: skip
        self._store, self._side, self._choice = store, side, choice
        self._rules, self._targets = rules, targets
        self._wait, self._on_report = wait, on_report
        self._pace, self._windows, self._letters_max = Pace(rate), windows, letters_max
        self._is_writable, self._patience_s = is_writable, patience_s
        self._topics: dict[str, _Topic] = {}
        self._refreshed_s: float | None = None
        self.report = MirrorReport(side.mirror, "rmq-to-kafka")

    def run(self, *, until_caught_up: bool = False) -> MirrorReport:
        """Copy until somebody stops it; with `until_caught_up`, until a pass over all topics finds nothing more to
        copy. All records that the report counts as copied are committed in Kafka.

        Raises:
            MirrorConflictError: another mirror of this name has begun. An open transaction was aborted.
            MirrorSourceError: every topic has stopped.
            MirrorLettersError: more dead letters than allowed.
            KafkaUnavailableError: Kafka was unavailable longer than `patience_s`. ClientError: a broker was.
            UsageError: a named topic does not exist, or two topics would become one.
        """
        try:
            while not self._wait(closed_s(self._windows)):
                self._refresh_topics()
                moved = [self._copy(topic) for topic in list(self._topics.values()) if not self._wait(0)]
                self._update_report("copying" if any(moved) else "waiting")
                if self._is_done(until_caught_up, any(moved)) or self._wait(0 if any(moved) else _IDLE_S):
                    break
                if self._wait(self._pace.wait_s()):
                    break
        finally:
            for topic in self._topics.values():
                topic.copy.close()
        self._update_report("stopped")
        return self.report

    def _is_done(self, until_caught_up: bool, has_moved: bool) -> bool:
        failures = [topic.failure for topic in self._topics.values() if topic.failure is not None]
        if failures and len(failures) == len(self._topics):
            raise MirrorSourceError(f"every topic has stopped; {failures[0]}") from failures[0]
        at_work = [topic for topic in self._topics.values() if topic.failure is None]
        has_more = any(topic.again_s or topic.copy.is_unsettled for topic in at_work)
        return until_caught_up and not has_moved and not has_more

    def _refresh_topics(self) -> None:
        self._store.refresh()
        now_s = real_time.monotonic()
        if self._refreshed_s is not None and now_s - self._refreshed_s < REFRESH_S:
            return
        is_new = self._refreshed_s is not None
        self._refreshed_s = now_s
        # Whether a topic that is mirrored is gone, its own questions tell: name servers may not show it for a while.
        for name, target in self._choice.chosen({*self._store.topics(), *self._topics}).items():
            if name not in self._topics:
                copy = TopicIntoKafka(
                    self._store, self._side, name, target, self._rules, self._targets, self.report,
                    is_new=is_new, is_writable=self._is_writable, most_rows=self._pace.unit_rows,
                )  # fmt: skip
                self._topics[name] = _Topic(copy)

    def _copy(self, topic: _Topic) -> int:
        """Copy one window, unless the topic has ended or waits. Returns the number of its messages."""
        if topic.failure is not None or real_time.monotonic() < topic.again_s:
            return 0
        self.report.last_poll_ms = time.time_ns() // 1_000_000
        try:
            moved = topic.copy.copy()
        except MirrorConflictError:
            raise
        except StoreError as error:
            if isinstance(error, KafkaUnavailableError | SlaveBehindError) or is_away(error):
                topic.waits_for = "Kafka" if isinstance(error, KafkaUnavailableError) else "the broker"
                self._put_off(topic, error)
                return 0
            topic.failure, topic.again_s = error, 0.0
            topic.copy.close()
            return 0
        topic.again_s, topic.waits_since_s, topic.failures = 0.0, 0.0, 0
        self._pace.took(moved)
        if self._letters_max is not None and self.report.letters > self._letters_max:
            raise MirrorLettersError(
                f"Mirror {self._side.mirror!r} has written {self.report.letters} dead letters, and {self._letters_max} "
                "are allowed. Copied records stay. The header MIRROR_REASON of each dead letter has its reason."
            )
        return moved

    def _put_off(self, topic: _Topic, error: StoreError) -> None:
        now_s = real_time.monotonic()
        topic.waits_since_s = topic.waits_since_s or now_s
        if self._patience_s is not None and now_s - topic.waits_since_s > self._patience_s:
            raise error
        topic.failures += 1
        topic.again_s = now_s + _PAUSES.wait_s(topic.failures)

    def _update_report(self, state: str) -> None:
        for topic in self._topics.values():
            topic.copy.tell("" if topic.failure is None else f"topic {topic.copy.topic!r} has stopped: {topic.failure}")
        waiting = [topic for topic in self._topics.values() if topic.again_s]
        if waiting and state != "stopped":
            state = f"waiting for {waiting[0].waits_for} with {len(waiting)} topics"
        self.report.state = state
        self._on_report(self.report)
