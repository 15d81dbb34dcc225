"""A stream or a consumer that joins a group at a given moment: `<store> <kind> <topic>...`; kind: stream, push, lite,
simple.

It says "ready", waits for a line, joins, and says "held" or "refused: <text>". It stays until its input ends.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from rmq_store import LeaseHeldError, Store
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    MessageListenerConcurrently,
    PushConsumer,
    SimpleConsumer,
)

GROUP = "g"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def join(store: Store, kind: str, topics: list[str]) -> Any:
    if kind == "stream":
        return [store.lease(GROUP, topic, "the stream") for topic in topics]
    if kind == "simple":
        return SimpleConsumer(GROUP, store, dict.fromkeys(topics, "*"), await_duration=timedelta(0))
    consumer: Any = PushConsumer(GROUP, store) if kind == "push" else LitePullConsumer(GROUP, store)
    for topic in topics:
        consumer.subscribe(topic)
    if kind == "push":
        done = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: done))
    consumer.start(threads=False)
    return consumer


def main(path: str, kind: str, *topics: str) -> None:
    with Store.open(path) as store:
        say("ready")
        sys.stdin.readline()
        try:
            held = join(store, kind, list(topics))
            say("held")
        except LeaseHeldError as error:
            held = None
            say(f"refused: {error}")
        sys.stdin.read()
        del held


if __name__ == "__main__":
    main(*sys.argv[1:])
