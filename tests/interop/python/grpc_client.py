"""RocketMQ's official Python client as a program of the matrix: tests/helpers/interop/program.py has the instructions.

Arguments: the address [access key, secret key].
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from typing import Any

import rocketmq
from rocketmq.v5.model.filter_expression import FilterType

TIMEOUT_S = int(os.environ.get("CLIENT_TIMEOUT_MS", "30000")) // 1000
IS_TLS = "CLIENT_TLS" in os.environ
INVISIBLE_S = 30
ENDS = {
    "commit": rocketmq.TransactionResolution.COMMIT,
    "rollback": rocketmq.TransactionResolution.ROLLBACK,
    "unknown": rocketmq.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Listener(rocketmq.MessageListener):
    def __init__(self, received: list[dict[str, Any]], *, fails: bool) -> None:
        self._received, self._fails = received, fails

    def consume(self, message: Any) -> Any:
        self._received.append(seen(message))
        return rocketmq.ConsumeResult.FAILURE if self._fails else rocketmq.ConsumeResult.SUCCESS


class Checker(rocketmq.TransactionChecker):
    def __init__(self, client: Client, answer: str) -> None:
        self._client, self._answer = client, answer

    def check(self, message: Any) -> Any:
        self._client.checked += 1
        return ENDS[self._answer]


class Client:
    def __init__(self, address: str, *keys: str) -> None:
        self._configuration = rocketmq.ClientConfiguration(
            address, rocketmq.Credentials(*keys), request_timeout=TIMEOUT_S
        )
        self._received: list[dict[str, Any]] = []
        self._consumer: Any = None
        self._polling: threading.Thread | None = None
        self._is_over = threading.Event()
        self.checked = 0

    def follow(self, what: dict[str, Any]) -> Any:
        return getattr(self, "do_" + what.pop("do"))(**what)

    def do_send(self, topic: str, messages: list[dict[str, Any]], mode: str = "sync") -> list[dict[str, Any]]:
        producer = self._producer(topic)
        try:
            made = [message(topic, one) for one in messages]
            if mode == "async":
                return [place(producer.send_async(one).result(TIMEOUT_S)) for one in made]
            return [place(producer.send(one)) for one in made]
        finally:
            producer.shutdown()

    def do_recall(self, topic: str, handle: str) -> Any:
        producer = self._producer(topic)
        try:
            return str(producer.recall_message(topic, handle))
        finally:
            producer.shutdown()

    def do_transaction(
        self, group: str, topic: str, messages: list[dict[str, Any]], end: str, check: str
    ) -> list[dict[str, Any]]:
        producer = rocketmq.Producer(self._configuration, (topic,), checker=Checker(self, check), tls_enable=IS_TLS)
        producer.startup()  # it stays: the server asks it
        transaction = producer.begin_transaction()
        sent = producer.send(message(topic, messages[0]), transaction)
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
        return [place(sent)]

    def do_checked(self) -> int:
        return self.checked

    def do_consume(
        self, group: str, topic: str, mode: str, tags: str = "*", sql: str = "", fails: bool = False
    ) -> None:
        self._received = []
        wanted = rocketmq.FilterExpression(sql, FilterType.SQL) if sql else rocketmq.FilterExpression(tags)
        if mode == "simple":
            self._consumer = rocketmq.SimpleConsumer(self._configuration, group, {topic: wanted}, 5, tls_enable=IS_TLS)
            self._consumer.startup()
            self._is_over.clear()
            self._polling = threading.Thread(target=self._poll, daemon=True)
            self._polling.start()
        else:
            listener = Listener(self._received, fails=fails)
            self._consumer = rocketmq.PushConsumer(
                self._configuration, group, listener, {topic: wanted}, tls_enable=IS_TLS
            )
            self._consumer.startup()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            for one in self._consumer.receive(16, INVISIBLE_S):
                self._received.append(seen(one))
                self._consumer.ack(one)

    def do_received(self, count: int, timeoutMs: int) -> list[dict[str, Any]]:
        end_s = time.monotonic() + timeoutMs / 1000
        while len(self._received) < count and time.monotonic() < end_s:
            time.sleep(0.02)
        return list(self._received)

    def do_leave(self) -> None:
        self._is_over.set()
        if self._polling is not None:
            self._polling.join(TIMEOUT_S)
            self._polling = None
        if self._consumer is not None:
            self._consumer.shutdown()
            self._consumer = None

    def _producer(self, topic: str) -> Any:
        producer = rocketmq.Producer(self._configuration, (topic,), tls_enable=IS_TLS)
        producer.startup()
        return producer


def message(topic: str, one: dict[str, Any]) -> Any:
    made = rocketmq.Message()
    made.topic = topic
    made.body = random.Random(0).randbytes(one["bytes"]) if "bytes" in one else one["body"].encode()
    if "tags" in one:
        made.tag = one["tags"]
    if "keys" in one:
        made.keys = one["keys"]
    if "deliverAtMs" in one:
        made.delivery_timestamp = one["deliverAtMs"] // 1000
    if "order" in one:
        made.message_group = one["order"]
    for name, value in one.get("properties", {}).items():
        made.add_property(name, value)
    return made


def place(sent: Any) -> dict[str, Any]:
    return {"status": "OK", "msgId": sent.message_id, "recallHandle": getattr(sent, "recall_handle", None) or None}


def seen(got: Any) -> dict[str, Any]:
    return {
        "body": got.body.decode(),
        "tags": got.tag,
        "keys": " ".join(got.keys or ()),
        "msgId": got.message_id,
        "attempt": got.delivery_attempt,
        "properties": dict(got.properties or {}),
    }


def main() -> None:
    client = Client(*sys.argv[1:])
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = {"value": client.follow(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}", "code": getattr(error, "code", None)}
        print(json.dumps(answer), file=answers, flush=True)


main()
