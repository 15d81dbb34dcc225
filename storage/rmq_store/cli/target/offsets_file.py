"""The file of `rmq offsets export`: {topic: {queue: offset}}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from rmq_store.errors import UsageError

_FILE_BYTES_MAX: Final = 64 << 20


def read_offsets(path: Path) -> dict[tuple[str, str], int]:
    """{(topic, queue): offset} of a file that `rmq offsets export` wrote; a queue is `0`, of a cluster `broker-a:0`.
    Raises UsageError.
    """
    from rmq_store.files.durable import read_limited

    try:
        content = json.loads(read_limited(path, _FILE_BYTES_MAX))
        found = {
            (str(topic), str(queue)): offset
            for topic, of_topic in content.items()
            for queue, offset in of_topic.items()
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: no offsets as `rmq offsets export` writes them: {error}") from error
    for key, offset in found.items():
        if type(offset) is not int or offset < 0:
            raise UsageError(f"{path}: {key[0]!r} queue {key[1]}: {offset!r} is no offset")
    if not found:
        raise UsageError(f"{path}: no offsets in it")
    return found
