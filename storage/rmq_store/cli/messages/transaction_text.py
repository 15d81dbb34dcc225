"""The sentences of `rmq transactions explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.cli.shared.formatting import duration_text
from rmq_store.cli.shared.output import time_text
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.transactions.half_queue import PendingHalf
    from rmq_store.format.frames.stored_message import StoredMessage


def explain_pending(half: PendingHalf, now_ms: int) -> list[str]:
    """An open transaction: the questions so far, and the next one."""
    from rmq_store.broker.rules.transaction import CHECK_MAX

    lines = [
        f"Group {half.group} sent the half message at {_time(half.born_ms)}, for queue {half.queue_id} of {half.topic}."
    ]
    if not half.is_ours:
        lines.append(f"A RocketMQ broker left it; CHECKS there: {half.check_times}.")
        lines.append(f"Nobody asks for it here before `rmq transactions resume {half.transaction_id}`.")
        return lines
    if half.check_times:
        lines.append(f"Producers were asked {half.check_times} times, last at {_time(half.stored_ms)}; none decided.")
    else:
        lines.append("No producer was asked yet.")
    when = "now" if half.is_due(now_ms) else f"in {duration_text(half.due_ms - now_ms)}"
    if half.check_times >= CHECK_MAX:
        lines.append(f"The last question was sent. The half message is given up {when}.")
    else:
        lines.append(f"The next question is due {when}, as soon as a producer of group {half.group} is connected.")
        lines.append("While none is connected, the half message waits, and no question is counted.")
    return lines


def explain_given_up(message: StoredMessage) -> list[str]:
    """A transaction whose producers have not decided."""
    properties = message.properties
    return [
        f"Group {properties.get('PGROUP')} sent the half message at {_time(message.born_timestamp_ms)}, for queue "
        f"{properties.get('REAL_QID')} of {properties.get('REAL_TOPIC')}.",
        f"It was given up at {_time(message.store_timestamp_ms)}, after {properties.get('TRANSACTION_CHECK_TIMES', 0)} "
        "questions without an outcome. No consumer gets it.",
        f"`rmq transactions resume {message.msg_id}` asks its producers again.",
    ]


def explain_ended(store: Store, transaction_id: str) -> list[str]:
    """A transaction that is neither open nor given up. UsageError: the store has no half message of this id."""
    from rmq_store.format.frames.frame_check import TRANSACTION_MASK, SysFlag
    from rmq_store.format.text.names import HALF_TOPIC

    halves = store.query.by_unique_key(HALF_TOPIC, transaction_id, begin_ms=0)
    if not halves:
        raise UsageError(f"{store.path} has no half message of transaction {transaction_id!r}, or not any more")
    properties = halves[-1].properties
    topic = properties.get("REAL_TOPIC", "")
    lines = [f"Group {properties.get('PGROUP')} sent the half message at {_time(halves[-1].born_timestamp_ms)}."]
    for found in store.query.by_unique_key(topic, transaction_id, begin_ms=0):
        if found.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
            when = _time(found.store_timestamp_ms)
            place = f"queue {found.queue_id} of {topic}, offset {found.queue_offset}"
            return [*lines, f"It was committed at {when}: {place}."]
    return [*lines, f"It was rolled back; or it was committed, and the message in {topic} is deleted by now."]


def _time(time_ms: int) -> str:
    return time_text(time_ms * 1000)
