"""`rmq follow` in a process that dies at a point:

    python -m helpers.cluster.followed.feeder AIM [arguments of rmq follow]

The file AIM names the point, and which occurrence from then on: it is read, and removed, at the start and at SIGUSR1.
See `plan`.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from crash.operations import Points, watched
from rmq_store.cli import main
from rmq_store.replica import follow
from rmq_store.replica.feed import Feed

from .plan import HALF_FRAME, HALF_UNIT


def run(aim: Path, arguments: list[str]) -> None:
    """Follow, and die at the point."""
    points = Points(Path(arguments[-1]))
    points.stage = "open"  # up to the end of the recovery

    def take_aim(*_: Any) -> None:
        if aim.exists():
            points.aim(*json.loads(aim.read_text(encoding="utf-8")))
            aim.unlink()

    signal.signal(signal.SIGUSR1, take_aim)
    take_aim()
    open_replica, publish = follow.open_replica, Feed.publish

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

    with (
        watched(points),
        mock.patch.object(follow, "open_replica", opened),
        mock.patch.object(Feed, "publish", published),
        mock.patch.object(sys, "argv", ["rmq", "follow", *arguments]),
    ):
        main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
