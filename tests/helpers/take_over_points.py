"""Where `rmq broker promote` and `rmq broker rejoin` can be killed: points of `crash.operations`, one for each step."""

from __future__ import annotations

from typing import Final

PROMOTE_POINTS: Final = (
    "promote: open config/topics.json.tmp",
    "promote: rename config/topics.json",
    "promote: rename pyrmq/units.json",
    "promote: unlink abort",
    "promote: rename pyrmq/promoted.json",
    "promote: rename pyrmq/store.json",
    "promote: unlink pyrmq/feeder.json",
    "promote: unlink pyrmq/feeder.lock",
)
"""The first two come only if records name a topic that the table lacks."""

REJOIN_POINTS: Final = (
    "rejoin: rename tail.jsonl",
    "rejoin: rename pyrmq/store.json",
    "rejoin: half of a write of removed bytes",
    "rejoin: rename pyrmq/queue_ends.json",
    "rejoin: write pyrmq/progress",
    "rejoin: store intent_end",
    "rejoin: store appended_end",
    "rejoin: write queue file",
    "rejoin: write segment",
    "rejoin: syncfs .",
    "rejoin: unlink abort",
)
"""The process opens the store once before it rejoins: a recovery is no part of it."""


def rejoin_aim(point: str) -> tuple[str, int]:
    """What `Points.aim` takes, if the tail goes to `tail.jsonl` beside the store. The last steps come twice: the store
    is closed as one of its own, and again as a replica.
    """
    return point.replace("tail.jsonl", "../tail.jsonl"), 1 if "unlink" in point or "syncfs" in point else 0
