"""The thread that feeds the replica of a served slave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rmq_store.replica.follow import Follower

_ROUND_S: Final = 0.1


class Feeding:
    """Runs a follower from `start` until `close`. `make(should_stop)` makes it."""

    def __init__(self, make: Callable[[Callable[[float], bool]], Follower]) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.follower = make(self._stop.wait)
        self._thread = threading.Thread(target=self._run, name="rmq-slave-feed", daemon=True)

    def start(self, should_stop: Callable[[float], bool]) -> bool:
        """Begin, and wait until the replica can be read: a new one waits for its master. False: `should_stop` was True
        before. Raises as `check`.
        """
        self._thread.start()
        while not self.follower.is_there.is_set():
            self.check()
            if should_stop(_ROUND_S):
                return False
        return True

    def check(self) -> None:
        """Raise the error that has ended the feed, as `Follower.run`."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the feed, and wait for that. The replica is closed then."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self.follower.run()
        except BaseException as error:
            self._error = error
