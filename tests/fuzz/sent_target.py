"""The fuzz target of the parser of sent requests: what one call of the extension takes of the bytes of a client.

Without server and pools, so that the parser gets every input. What it takes must be whole requests 310 that the decoder
finds in the same bytes, each a message with its body; what it leaves, it leaves as it lies.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_store.errors import StoreError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.request_codes import RequestCode

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.write.sent_requests import SentRequests

TOPIC: Final = "T"
LIFE: Final = 2_000
"""Executions of one store: its messages must not add up for ever."""
ANSWER: Final = tuple(b"<%d>" % part for part in range(6))
CLIENT: Final = "10.1.2.3:999"


class SentFuzz:
    """Stores of one process, one after the other."""

    def __init__(self, base: Path) -> None:
        self._root = base / "sent"
        self._store: Store | None = None
        self._sends: SentRequests | None = None
        self._executions = 0

    def execute(self, data: bytes) -> None:
        """Serve the bytes, whose first frames may be usual sends."""
        self._executions += 1
        if self._store is None or self._executions % LIFE == 0:
            self._begin_anew()
        assert self._store is not None and self._sends is not None
        self._sends.learn(TOPIC, 0, self._store.topics())
        start = self._store.queue_range(TOPIC, 0).max_offset
        given = bytearray(data)
        served = self._sends.serve(memoryview(given), CLIENT)
        assert given == data, "the bytes of the client have changed"
        end = 0 if served is None else served.end
        requests = FrameDecoder().feed(data[:end]) if end else []
        count = self._store.queue_range(TOPIC, 0).max_offset - start
        assert count == len(requests), (count, len(requests))
        for request, entry in zip(requests, self._store.queue_entries(TOPIC, 0, start, start + count), strict=True):
            message = self._store.message_at(int(entry["commit_log_offset"]))
            assert request.code == RequestCode.SEND_MESSAGE_V2 and not request.is_oneway
            assert (message.topic, message.body) == (request.ext_fields["b"], request.body)
        assert _frames_in(b"" if served is None else served.answers) == count

    def _begin_anew(self) -> None:
        from rmq_store import Message, Store, StoreConfig

        if self._store is not None:
            self._store.close()
        shutil.rmtree(self._root, ignore_errors=True)
        small = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=10_000)
        self._store = Store.open(self._root, create=True, config=small)
        self._store.create_topic(TOPIC, 1)
        for _ in range(2):  # the files of the queue are known then
            self._store.send(Message(TOPIC, b"first", keys="k", queue_id=0))
        self._sends = self._store.sent_requests(ANSWER)


def _frames_in(answers: bytes) -> int:
    """The number of frames, each with its length before it, whatever their headers are."""
    count = 0
    while answers:
        answers = answers[4 + int.from_bytes(answers[:4]) :]
        count += 1
    return count


@functools.cache
def _of_process(pid: int, base: Path) -> SentFuzz:
    return SentFuzz(base)


def run_sent(data: bytes) -> None:
    """An empty input makes no store: see `run_server`."""
    from fuzz.targets import scratch

    base = scratch()
    if data:
        try:
            _of_process(os.getpid(), base).execute(data)
        except StoreError as error:  # what is not taken is left, and never refused
            raise AssertionError(f"{type(error).__name__}: {error}") from error


def sent_seeds() -> list[bytes]:
    """Usual requests, alone and together."""
    requests = []
    for number, body in enumerate((b"body", b"", bytes(5_000))):
        fields = {
            "a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
            "i": f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01K{number} L\x02TAGS\x01t\x02WAIT\x01true\x02", "j": "0",
            "k": "false", "l": "16", "m": "false", "n": "b",
        }  # fmt: skip
        requests.append(encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body, number)))
    return [b"", *requests, b"".join(requests)]
