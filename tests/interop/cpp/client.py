"""RocketMQ's C++ client as a program of the matrix: tests/helpers/interop/program.py has the instructions.

The package `rocketmq` has the library, librocketmq, and calls its C functions. Arguments: the address [access key,
secret key].
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
import zlib
from typing import Any

from rocketmq.client import Message, MessageModel, Producer, PushConsumer, RecvMessage
from rocketmq.ffi import _CConsumeStatus as ConsumeStatus
from rocketmq.ffi import dll

TIMEOUT_S = int(os.environ.get("CLIENT_TIMEOUT_MS", "20000")) / 1000
LARGEST_BODY_BYTES = 64 << 20


class Client:
    def __init__(self, address: str, *keys: str) -> None:
        self._address, self._keys = address, keys
        self._producer: Any = None
        self._consumer: Any = None
        self._received: list[dict[str, Any]] = []

    def follow(self, what: dict[str, Any]) -> Any:
        return getattr(self, "do_" + what.pop("do"))(**what)

    def do_send(self, topic: str, messages: list[dict[str, Any]], mode: str = "sync") -> list[dict[str, Any]]:
        send = {"sync": self._send, "async": self._send_async, "one-way": self._send_one_way}[mode]
        return [place(sent) for one in messages if (sent := send(message(topic, one), one)) is not None]

    def _send(self, made: Any, one: dict[str, Any]) -> Any:
        if "order" in one:
            return self._ready().send_orderly(made, zlib.crc32(one["order"].encode()) & 0xFFFF)
        return self._ready().send_sync(made)

    def _send_async(self, made: Any, one: dict[str, Any]) -> Any:
        answered = threading.Event()
        results: list[Any] = []

        def answer(result: Any) -> None:
            results.append(result)
            answered.set()

        self._ready().send_async(made, answer, answer)
        if not answered.wait(TIMEOUT_S):
            raise TimeoutError("no callback")
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    def _send_one_way(self, made: Any, one: dict[str, Any]) -> None:
        self._ready().send_oneway(made)

    def do_batch(self, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [place(self._ready().send_batch([message(topic, one) for one in messages]))]

    def do_consume(self, group: str, topic: str, mode: str, tags: str = "*", fails: bool = False) -> None:
        self._received = []
        model = MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING
        self._consumer = self._for_server(PushConsumer(group, mode == "ordered", model))
        self._consumer.set_instance_name(group)  # else all members of this process are one client

        def consume(consumer: Any, handle: Any) -> int:
            self._received.append(seen(RecvMessage(handle)))
            return ConsumeStatus.RECONSUME_LATER.value if fails else ConsumeStatus.CONSUME_SUCCESS.value

        dll.Subscribe(self._consumer._handle, topic.encode(), tags.encode())
        # PushConsumer.subscribe tells the library that a message succeeded whose callback raised an exception.
        self._consumer._register_callback(consume)
        self._consumer.start()

    def do_received(self, count: int, timeoutMs: int) -> list[dict[str, Any]]:
        end_s = time.monotonic() + timeoutMs / 1000
        while len(self._received) < count and time.monotonic() < end_s:
            time.sleep(0.02)
        return list(self._received)

    def do_leave(self) -> None:
        if self._consumer is not None:
            self._consumer.shutdown()
            self._consumer = None

    def _ready(self) -> Any:
        if self._producer is None:
            made = Producer("pg_interop", timeout=int(TIMEOUT_S * 1000), max_message_size=LARGEST_BODY_BYTES)
            producer = self._for_server(made)
            producer.start()
            self._producer = producer
        return self._producer

    def _for_server(self, made: Any) -> Any:
        made.set_namesrv_addr(self._address)
        if self._keys:
            made.set_session_credentials(*self._keys, "")
        return made


def message(topic: str, one: dict[str, Any]) -> Any:
    made = Message(topic)
    body = random.Random(0).randbytes(one["bytes"]) if "bytes" in one else one["body"].encode()
    dll.SetByteMessageBody(made, body, len(body))
    if "tags" in one:
        made.set_tags(one["tags"])
    if "keys" in one:
        made.set_keys(one["keys"])
    if "delayLevel" in one:
        made.set_delay_time_level(one["delayLevel"])
    if "deliverAtMs" in one:  # the library has no function for it
        made.set_property("TIMER_DELIVER_MS", str(one["deliverAtMs"]))
    for name, value in one.get("properties", {}).items():
        made.set_property(name, value)
    return made


def place(sent: Any) -> dict[str, Any]:
    return {"status": sent.status.name, "msgId": sent.msg_id, "queueOffset": sent.offset}


def seen(got: Any) -> dict[str, Any]:
    return {
        "body": got.body.decode(),
        "tags": got.tags.decode(),
        "keys": got.keys.decode(),
        "msgId": got.id,
        "queueId": got.queue_id,
        "queueOffset": got.queue_offset,
        "attempt": got.reconsume_times + 1,
    }


def main() -> None:
    client = Client(*sys.argv[1:])
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = {"value": client.follow(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}", "code": None}
        print(json.dumps(answer), file=answers, flush=True)


main()
