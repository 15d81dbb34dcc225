"""A cluster of one store whose brokers lose answers, take messages twice, lose messages that they have acknowledged (as
one under ASYNC_FLUSH does in a power cut), and crash whoever sends a certain message.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crash.business.setting import Setting
from rmq_store import Message, SendResult, Store
from rmq_store.client import LocalBackend, MessageQueue, RemotingTimeoutError
from rmq_store.reliable import OUTBOX_ID

KILLS, POISON, FAILS = "KILLS", "POISON", "FAILS"

# How often, in percent.
FAULTS = {"request": 4, "answer": 6, "twice": 6, "lost": 12, "none": 72}


class UnreliableBroker:
    """Each send draws what goes wrong."""

    def __init__(self, inner: Any, setting: Setting, chance: random.Random) -> None:
        self._inner = inner
        self._setting = setting
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        def send() -> SendResult:
            return self._inner.send(message, queue_id, timeout_ms, producer_group, sys_flag=sys_flag)  # type: ignore[no-any-return]

        return self._draw([message], queue_id, send)

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        def send() -> SendResult:
            return self._inner.send_batch(messages, queue_id, timeout_ms, producer_group)  # type: ignore[no-any-return]

        return self._draw(messages, queue_id, send)

    def _draw(self, messages: Sequence[Message], queue_id: int, send: Callable[[], SendResult]) -> SendResult:
        if any(KILLS in message.properties for message in messages):
            self._setting.note("kills by a message", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        (what,) = self._chance.choices(tuple(FAULTS), tuple(FAULTS.values()))
        if what == "none":
            return send()
        self._setting.note("network", what)
        if what == "request":
            raise RemotingTimeoutError("the request was lost")
        if what == "lost" and not any("DELAY" in message.properties for message in messages):
            return self._acknowledge_only(messages, queue_id)
        result = send()
        if what == "answer":
            raise RemotingTimeoutError("the answer was lost")
        return send() if what == "twice" else result

    def _acknowledge_only(self, messages: Sequence[Message], queue_id: int) -> SendResult:
        topic = messages[0].topic
        ids = [message.properties[OUTBOX_ID] for message in messages]
        # Before the answer: who dies in between has lost nothing that this knows of.
        for message_id in ids:
            self._setting.note("vanished", message_id)
        offset = self._inner.max_offset(MessageQueue(topic, self._inner.name, queue_id))
        return SendResult(topic, queue_id, offset, 0, ",".join(ids), "", broker_name=self._inner.name)


class UnreliableCluster:
    """The cluster of one open store."""

    def __init__(self, store: Store, setting: Setting, chance: random.Random) -> None:
        self._inner = LocalBackend(store)
        (name,) = self._inner.brokers()
        self._broker = UnreliableBroker(self._inner.brokers()[name], setting, chance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def brokers(self) -> Mapping[str, Any]:
        return {self._broker.name: self._broker}
