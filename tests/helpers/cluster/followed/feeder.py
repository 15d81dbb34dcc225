"""`rmq follow` in a process that dies at a point:

    python -m helpers.cluster.followed.feeder AIM [arguments of rmq follow]

The file AIM names the point, and which occurrence from then on: it is read, and removed, at the start and at SIGUSR1.
See `plan`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from crash.operations import Points, watched
from rmq_store.replica import follow
from rmq_store.replica.feed import Feed
from rmq_store.replica.ha_connection import HAConnection

from .plan import HALF_FRAME, HALF_UNIT


def run(aim: Path, arguments: list[str]) -> None:
    """Follow, and die at the point."""
    from rmq_store.cli import main

    with feeding(aim, Path(arguments[-1])), mock.patch.object(sys, "argv", ["rmq", "follow", *arguments]):
        main()


@contextlib.contextmanager
def aimed(aim: Path, root: Path, stage: str) -> Iterator[Points]:
    """In this block the process dies at the point that the file AIM names, of its work on the store at `root`. The
    steps for a lone message have the names of the others: one append goes the one way, and the next one the other way.
    """
    points = Points(root)
    points.stage = stage

    def take_aim(*_: Any) -> None:
        if aim.exists():
            points.aim(*json.loads(aim.read_text(encoding="utf-8")))
            aim.unlink()

    signal.signal(signal.SIGUSR1, take_aim)
    take_aim()
    with watched(lambda operation, path: points(operation.removeprefix("lone "), path)):
        yield points


@contextlib.contextmanager
def feeding(aim: Path, root: Path) -> Iterator[None]:
    """`aimed`, of a process that follows a master in this block: its stages are `open` and `follow`."""
    with aimed(aim, root, "open") as points, _of_feeder(points):  # `open`: up to the end of the recovery
        yield


@contextlib.contextmanager
def _of_feeder(points: Points) -> Iterator[None]:
    """The points that are no operations on files."""
    open_replica, publish, send = follow.open_replica, Feed.publish, HAConnection._send

    def opened(*given: Any) -> Any:
        store = open_replica(*given)
        points.stage = "follow"
        return store

    def published(feed: Feed) -> None:
        publish(feed)
        if feed.holds_back and feed._units.torn() is not None:
            points(*HALF_UNIT.removeprefix("follow: ").split(" ", 1))
        elif feed.waits:
            points(*HALF_FRAME.removeprefix("follow: ").split(" ", 1))

    def reported(connection: HAConnection) -> None:
        is_due = bool(connection._unsent)
        if is_due:
            points("send", "report")
        send(connection)
        if is_due:
            points("have sent", "report")

    with (
        mock.patch.object(follow, "open_replica", opened),
        mock.patch.object(Feed, "publish", published),
        mock.patch.object(HAConnection, "_send", reported),
    ):
        yield


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
