"""How long to wait before the next try: exponential back-off, as a rule without a state.

    wait before try n + 1, after n failures in a row  =  min(first * factor^(n - 1), max), up to `jitter` more or less

The modules that wait name their own settings, count the failures, and forget them after a success. Not of this rule are
the waits of lock waiters, which poll more often as well (files/locks/pace.py), and RocketMQ's delay levels
(format/text/delay_levels.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rmq_store.lazy.dataclasses import dataclass

Uniform = Callable[[float, float], float]
"""A number at random between two, as `random.uniform`."""

# Beyond every maximum, and a float still holds it.
_STEPS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """The settings. `jitter`: the part of a wait, 0..1, by which it may be longer or shorter at random; with it, two
    that failed together do not meet again. A wait may exceed `max_ms` by its jitter.
    """

    first_ms: float
    max_ms: float
    factor: float = 2.0
    jitter: float = 0.0

    def wait_ms(self, failures: int, uniform: Uniform = random.uniform) -> float:
        """The wait in ms after so many failures in a row; after none it is the first one, too."""
        steps = min(max(failures, 1) - 1, _STEPS_MAX)
        wait_ms = min(self.first_ms * self.factor**steps, self.max_ms)
        spread_ms = self.jitter * wait_ms
        return wait_ms + uniform(-spread_ms, spread_ms) if spread_ms else wait_ms

    def wait_s(self, failures: int) -> float:
        """As `wait_ms`, in seconds."""
        return self.wait_ms(failures) / 1000
