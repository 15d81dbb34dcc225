"""How long to wait between tries when a broker asks for fewer requests: exponential back-off with jitter.

    ConnectWithBackoff()
        current_backoff = INITIAL_BACKOFF
        current_deadline = now() + INITIAL_BACKOFF
        while TryConnect(Max(current_deadline, now() + MIN_CONNECT_TIMEOUT)) fails
            SleepUntil(current_deadline)
            current_backoff = Min(current_backoff * MULTIPLIER, MAX_BACKOFF)
            current_deadline = now() + current_backoff +
                               UniformRandom(-JITTER * current_backoff, JITTER * current_backoff)

So the first wait has no jitter, a try that takes longer than its deadline costs no further wait, and jitter may exceed
MAX_BACKOFF. Source: gRPC's connection-backoff.md. Times are in ms.
"""

from __future__ import annotations

import random
from typing import Final

from rmq_store.backoff import Backoff, Uniform
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

INITIAL_BACKOFF: Final = 1_000
MULTIPLIER: Final = 1.6
JITTER: Final = 0.2
MAX_BACKOFF: Final = 120_000
MIN_CONNECT_TIMEOUT: Final = 20_000


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The parameters, in ms. The defaults are the documents'."""

    initial_backoff_ms: float = INITIAL_BACKOFF
    multiplier: float = MULTIPLIER
    jitter: float = JITTER
    max_backoff_ms: float = MAX_BACKOFF
    min_connect_timeout_ms: float = MIN_CONNECT_TIMEOUT

    def __post_init__(self) -> None:
        if self.initial_backoff_ms < 0 or self.max_backoff_ms < 0 or self.min_connect_timeout_ms < 0:
            raise UsageError(f"a back-off time is negative: {self}")
        if self.multiplier < 1 or not 0 <= self.jitter <= 1:
            raise UsageError(f"the multiplier must be at least 1, the jitter within 0..1: {self}")


# A send has its own timeout, so the try itself gets no longer than that.
FLOW_CONTROL_POLICY: Final = BackoffPolicy(min_connect_timeout_ms=0)
# The policy that 5.x proxies publish to their clients (ProxyConfig.java).
SERVER_POLICY: Final = BackoffPolicy(10, 2, 0, 1_000, 0)


class FlowControlWait:
    """The state of one series of tries; `deadline_ms` is the time at which the next try may begin."""

    def __init__(self, policy: BackoffPolicy, now_ms: float, uniform: Uniform = random.uniform) -> None:
        self._policy = policy
        self._uniform = uniform
        self._waits = Backoff(policy.initial_backoff_ms, policy.max_backoff_ms, policy.multiplier, policy.jitter)
        self._failures = 1
        self.deadline_ms = now_ms + policy.initial_backoff_ms

    def try_until_ms(self, now_ms: float) -> float:
        """The time by which a try that begins now must have succeeded."""
        return max(self.deadline_ms, now_ms + self._policy.min_connect_timeout_ms)

    def wait_ms(self, now_ms: float) -> float:
        """How long to sleep after a try that failed now; call `advance` after the sleep."""
        return max(0.0, self.deadline_ms - now_ms)

    def advance(self, now_ms: float) -> None:
        """Set the next deadline; `now_ms` is the time after the sleep."""
        self._failures += 1
        self.deadline_ms = now_ms + self._waits.wait_ms(self._failures, self._uniform)
