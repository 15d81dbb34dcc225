"""Who writes to a master of a pair all the time, whatever happens to it. Each notes what it was told, one line for each
send: `<status> <what>`, where a status is the code of an answer; -1: there was none; -2: a unit that is tried now.

    over the wire         a message at a time; one without an answer is sent again
    in its own process    `Store.send`, which is never repeated, and units of the sink: the last one is repeated at a
                          start
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Message, SendStatus, StagingArea, Store
from rmq_store.errors import StoreError

_LOG: Final = logging.getLogger(__name__)

TOPIC: Final = "Orders"
LATER: Final = "Later"
"""Topics whose names begin so come at the end of a generation."""
GROUP: Final = "readers"
UNIT_ROWS: Final = 12
TRIED: Final = -2
STORED: Final = (0, 10, 11, 12)
"""SEND_OK, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT: the master has the message."""

_FILLER: Final = b" " + b"x" * 300
_PAUSE_S: Final = 0.03
_COMMITS_EVERY: Final = 20
_CODES: Final = {
    SendStatus.SEND_OK: 0, SendStatus.FLUSH_DISK_TIMEOUT: 10, SendStatus.SLAVE_NOT_AVAILABLE: 11,
    SendStatus.FLUSH_SLAVE_TIMEOUT: 12,
}  # fmt: skip


class Notes:
    """A file of notes, which outlives its writer."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, status: int, what: str) -> None:
        os.write(self._fd, f"{status} {what}\n".encode())


def body_of(name: str) -> bytes:
    """The body of a message, whose first word is its name."""
    return name.encode() + _FILLER


def send_over_wire(address: str, notes: Path, name: str) -> None:
    """Send for ever."""
    noted, number = Notes(notes), 0
    while True:
        try:
            with Connection(address, timeout_s=5) as client:
                while True:
                    what = f"{name}-{number}"
                    code = requests.send(client, TOPIC, number % 2, body_of(what)).code
                    noted.add(code, what)
                    if code in STORED:
                        number += 1
                    if number % _COMMITS_EVERY == 0:
                        requests.commit(client, GROUP, TOPIC, requests.max_offset(client, TOPIC))
                    time.sleep(_PAUSE_S)
        except (OSError, ValueError):
            noted.add(-1, f"{name}-{number}")
            time.sleep(_PAUSE_S)


def send_locally(root: Path, notes: Path, name: str, first_unit: int) -> None:
    """Send and commit for ever."""
    noted, number, unit = Notes(notes), 0, first_unit
    with Store.open(root) as store:
        while True:
            number += 1
            try:
                if number % 8 == 0:
                    what = f"unit-{unit}"
                    noted.add(TRIED, what)
                    status = _commit(store, unit)
                    unit += 1
                else:
                    what = f"{name}-{number}"
                    status = _CODES[store.send(Message(TOPIC, body_of(what), queue_id=number % 2)).status]
            except StoreError as error:
                _LOG.info("%s: %r", what, error)
                status = -1
            noted.add(status, what)
            time.sleep(_PAUSE_S)


def _commit(store: Store, unit: int) -> int:
    with StagingArea.for_task(store.path, f"w{unit}-{os.getpid()}", 0, 0, topic=TOPIC) as area:
        rows = [body_of(f"unit-{unit}")] * UNIT_ROWS
        area.write(pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())}))
        staged = area.finish()
    assert staged is not None
    return _CODES[store.commit_staged([staged], key="query", value=unit).status]
