"""Batches as clients in Go send them: their messages have no unique keys, so that the server makes them."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterator
from functools import partial
from typing import Final

from bench.case import Case, Pair, Target
from bench.messages import TOPIC
from bench.processor import used_s
from bench.scratch import Scratch
from bench.served import served
from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Store, StoreConfig
from rmq_store.protocol.wire.request_codes import RequestCode

BODY_BYTES: Final = 100
MEMBERS: Final = 1_000
BATCHES: Final = 200
# As long as one that the server makes.
_KEY_BYTES: Final = 32


def batch(number: int, *, has_keys: bool) -> bytes:
    """The body of a batch of MEMBERS messages."""
    body, parts = bytes(BODY_BYTES), []
    for member in range(number * MEMBERS, (number + 1) * MEMBERS):
        properties = b"TAGS\x01paid\x02"
        if has_keys:
            properties += b"UNIQ_KEY\x01%0*X\x02" % (_KEY_BYTES, member)
        size = 22 + len(body) + len(properties)
        parts.append(struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)))
        parts.append(properties)
    return b"".join(parts)


@contextlib.contextmanager
def batches(scratch: Scratch) -> Iterator[Pair]:
    """Processor time of the server for a batch, in ms."""
    count = max(1, scratch.rows(BATCHES))
    numbers = itertools.count()
    with served(scratch.directory, StoreConfig()) as server:
        with Store.open(scratch.directory / "store") as store:
            store.create_topic(TOPIC, queue_count=1)
        with Connection(server.address) as producer:

            def sent(*, has_keys: bool) -> float:
                bodies = [batch(next(numbers), has_keys=has_keys) for _ in range(count)]
                before_s = used_s([server.pid])
                for body in bodies:
                    answer = producer.ask(RequestCode.SEND_BATCH_MESSAGE, requests.send_fields(TOPIC), body)
                    assert answer.code == 0, answer.remark
                return 1000 * (used_s([server.pid]) - before_s) / count

            sent(has_keys=True)
            sent(has_keys=False)
            yield Pair(partial(sent, has_keys=False), partial(sent, has_keys=True))


CASES = (
    Case(
        name="server-batches-without-keys",
        title=f"a batch of {MEMBERS:,} messages without unique keys, the server's processor time",
        group="server",
        body_bytes=BODY_BYTES,
        yardstick="the same batch with keys",
        unit="ms",
        target=Target(2, at_least=False),
        settings=f"{BATCHES} batches (320) over one bare socket, a tag each. Clients in Go send no keys.",
        prepare=batches,
    ),
)
