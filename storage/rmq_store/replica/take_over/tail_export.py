"""The messages at the end of a log, written to a file of JSON lines before they are cut off: one line a record.

The keys are those of `rmq read --json`, so `rmq send TOPIC --jsonl` takes the lines. A body is text; one that is not
UTF-8 is in `bodyHex`. Records of every kind are there: half messages, delayed ones under the topic that holds them,
markers of units. Properties say where such a message belongs (REAL_TOPIC).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmq_store.broker.store.store import Store
from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.format.frames.compression import inflate
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.log.core import scan

_GATHERED_BYTES = 1 << 20


def export_tail(store: Store, start: int, file: Path) -> int:
    """Write the records from `start` on, where one begins, to `file`, which appears when it is complete, and is durable
    on return. Only its owner may read it. Returns how many there are.

    Raises:
        StoreFullError, StoreFailedError, UsageError: as `durable.translate`.
    """
    part, count, waits, size = file.with_name(f".{file.name}.{os.getpid()}.part"), 0, [], 0
    with durable.typed(file.parent):
        fd = durable.open_nofollow(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for line in map(_line, messages_from(store, start)):
                waits.append(line)
                count += 1
                if sum(map(len, waits)) >= _GATHERED_BYTES:
                    size += _write(fd, waits, size, part)
            _write(fd, waits, size, part)
            durable.fsync_file(fd, part)
        finally:
            os.close(fd)
        durable.before("rename", file)
        part.replace(file)
        durable.fsync_directory(file.parent)
    return count


def messages_from(store: Store, start: int) -> Iterator[StoredMessage]:
    """All records of the log from `start` on, where one begins."""
    end = store.log_range()[1]
    for stretch in scan.walk(store._log, start, end, ahead=False) if start < end else ():
        for position in stretch.positions.tolist():
            yield store.message_at(stretch.base + position)


def _write(fd: int, waits: list[bytes], offset: int, path: Path) -> int:
    data = b"".join(waits)
    durable.write_fully(fd, data, offset, path)
    waits.clear()
    return len(data)


def _line(message: StoredMessage) -> bytes:
    try:
        body = inflate(message.body, message.sys_flag)
    except StoreError:
        body = message.body  # as every reader: it leaves such a body as it lies
    row: dict[str, Any] = {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset, "msgId": message.msg_id, "tags": message.tags,
        "keys": message.keys, "flag": message.flag, "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times, "bornTimestamp": message.born_timestamp_ms,
        "bornHost": str(message.born_host), "storeTimestamp": message.store_timestamp_ms,
        "storeHost": str(message.store_host), "properties": message.properties,
    }  # fmt: skip
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["bodyHex"] = body.hex()
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"
