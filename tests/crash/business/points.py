"""Named points, at which a process kills or stops itself. Production code has no hooks: a process that is armed wraps
functions of the modules that it has imported itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SENDER = (
    "sender before commit",
    "sender after the stub is committed",
    "sender after it has looked",
    "sender after the send",
)
RELAY = (
    "relay after a claim",
    "relay after the send",
    "relay before the mark is committed",
    "relay after the claim of a resend",
    "relay after a resend",
)
CONSUMER = (
    "consumer before the log",
    "consumer after the Redis key",
    "consumer after the log",
    "consumer in the work",
    "consumer after the work",
    "consumer after the commit",
    "consumer before Redis says done",
    "consumer before the acknowledgement",
    "consumer after a failure is noted",
)
ALL = (*SENDER, *RELAY, *CONSUMER)
# Where somebody who is stopped loses his lease and is alive.
STOPS = {
    "sender": ("sender after it has looked",),
    "relay": ("relay after a claim", "relay after the claim of a resend"),
    "consumer": ("consumer after the log", "consumer in the work", "consumer after the work"),
}


@dataclass(slots=True)
class Arm:
    """Do it when the point is reached for the `left`-th time."""

    point: str
    left: int
    signal: signal.Signals = signal.SIGKILL


class Trap:
    """What a process is armed with, one after the other. Safe for threads."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self._arms = list(arms)
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        with self._lock:
            if not self._arms or self._arms[0].point != point:
                return
            self._arms[0].left -= 1
            if self._arms[0].left:
                return
            arm = self._arms.pop(0)
        os.kill(os.getpid(), arm.signal)

    def before(self, owner: Any, name: str, point: str, when: Callable[..., object] = lambda *_, **__: True) -> None:
        """Reach a point before each call of a function, if `when` says so of its arguments."""
        inner = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if when(*arguments, **named):
                self.reach(point)
            return inner(*arguments, **named)

        setattr(owner, name, call)

    def after(self, owner: Any, name: str, point: str, when: Callable[..., object] = lambda *_: True) -> None:
        """Reach a point behind each call, if `when` says so of its result and arguments."""
        inner = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = inner(*arguments, **named)
            if when(result, *arguments):
                self.reach(point)
            return result

        setattr(owner, name, call)


def arm_sender(trap: Trap) -> None:
    from rmq_store.reliable.outbox import outbox
    from rmq_store.reliable.outbox.sending import Sent
    from rmq_store.reliable.outbox.sent_marks import SentMarks

    trap.before(outbox.Outbox, "flush_after_commit", SENDER[1], lambda self, *stubs: stubs)
    trap.after(outbox, "look", SENDER[2], lambda found, *_: found.ready)
    trap.before(SentMarks, "add", SENDER[3], lambda self, outcomes: any(isinstance(each, Sent) for each in outcomes))


def arm_relay(trap: Trap) -> None:
    from rmq_store.reliable.relay.claim_sender import ClaimSender
    from rmq_store.reliable.relay.resending import Resending

    is_resend = False
    inner = Resending._send_again

    def send_again(self: Resending, *arguments: Any) -> None:
        nonlocal is_resend
        is_resend = True
        try:
            inner(self, *arguments)
        finally:
            is_resend = False

    Resending._send_again = send_again  # type: ignore[method-assign]
    trap.before(ClaimSender, "send", RELAY[0], lambda self, claimed, report: claimed and not is_resend)
    trap.before(ClaimSender, "send", RELAY[3], lambda self, claimed, report: claimed and is_resend)
    trap.before(ClaimSender, "_mark", RELAY[1], lambda self, connection, sent, _: sent and not is_resend)
    trap.before(ClaimSender, "_mark", RELAY[4], lambda self, connection, sent, _: sent and is_resend)
    trap.after(ClaimSender, "_mark", RELAY[2])


def arm_consumer(trap: Trap) -> None:
    from rmq_store.reliable.inbox import delivery_log
    from rmq_store.reliable.inbox.effect import Effect
    from rmq_store.reliable.inbox.exactly_once import ExactlyOnce
    from rmq_store.reliable.inbox.redis_filter import Known, RedisFilter

    trap.before(delivery_log, "receive", CONSUMER[0])
    trap.after(RedisFilter, "claim", CONSUMER[1], lambda known, *_: Known.OURS in known.values())
    trap.after(ExactlyOnce, "_receive", CONSUMER[2], lambda _, self, attempt: attempt.received.ours)
    # CONSUMER[3] is reached by the handlers.
    trap.after(Effect, "confirm", CONSUMER[4])
    trap.before(ExactlyOnce, "_confirm_elsewhere", CONSUMER[5], lambda self, attempt: attempt.recorded())
    trap.before(RedisFilter, "done", CONSUMER[6], lambda self, message_ids: message_ids)
    trap.after(
        ExactlyOnce, "_run", CONSUMER[7], lambda verdicts, *_: any(o.is_success for o in verdicts.outcomes.values())
    )
    trap.after(ExactlyOnce, "_fail", CONSUMER[8])
