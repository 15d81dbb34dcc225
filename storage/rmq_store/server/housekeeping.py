"""The work of a served store that no request asks for: due messages, offsets that wait, members that have gone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmq_store import real_time
from rmq_store.errors import StoreError

_log: Final = logging.getLogger(__name__)

_ROUND_S: Final = 0.1
# As `rmq broker run`, and ScheduleMessageService.java after an exception.
_AFTER_ERROR_S: Final = 10.0


class Step(NamedTuple):
    """`run` is called every `every_s` seconds."""

    name: str
    every_s: float
    run: Callable[[], object]


class Housekeeping:
    """Runs steps in a thread of its own from `start` on. A step that fails has a pause; the others go on."""

    def __init__(self, where: str, steps: Sequence[Step], *, after_error_s: float = _AFTER_ERROR_S) -> None:
        self._where = where
        self._steps = tuple(steps)
        self._after_error_s = after_error_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_house, name="rmq-broker-housekeeping", daemon=True)

    def start(self) -> None:
        """Begin with the first round."""
        self._thread.start()

    def close(self) -> None:
        """End the thread behind the step that it is in."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _keep_house(self) -> None:
        due_s = [0.0] * len(self._steps)
        while not self._stop.wait(_ROUND_S):
            for number, step in enumerate(self._steps):
                now_s = real_time.monotonic()
                if now_s < due_s[number]:
                    continue
                due_s[number] = now_s + step.every_s
                try:
                    step.run()
                except (StoreError, OSError) as error:
                    due_s[number] = now_s + self._after_error_s
                    text = "%s: %s: %s; trying again in %.0f s"
                    _log.warning(text, self._where, step.name, error, self._after_error_s)
                except Exception:
                    due_s[number] = now_s + self._after_error_s
                    _log.exception("%s: %s", self._where, step.name)
