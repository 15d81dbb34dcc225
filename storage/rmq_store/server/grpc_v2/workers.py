"""Calls of the store from coroutines: in bounded pools of threads, because the store waits for locks and disks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from rmq_store import real_time
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.statuses import Refusal
from rmq_store.server.requests.worker_pool import Work, WorkerPool

T = TypeVar("T")

# Waiting calls, and how long one may wait: clients give up after 3 s (grpcProducerThreadQueueCapacity and others).
_WAITING_MAX: Final = 10_000
_WAIT_MS: Final = 3_000


class Workers:
    """`threads` threads for one kind of calls. `run` belongs to the event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = WorkerPool(name, threads, _WAITING_MAX, _WAIT_MS)

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """The result of `call`, which may raise. `undo` gets a result that nobody waits for any more.

        Raises:
            Refusal: TOO_MANY_REQUESTS, too many calls wait, or this one waited for too long; it was not made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T) -> None:
            if not future.done():
                future.set_result(result)
            elif undo is not None:
                self.submit(partial(undo, result))

        def fail(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        def tell(function: Callable[..., None], value: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all that wait
                loop.call_soon_threadsafe(function, value)

        def work() -> None:
            try:
                result = call()
            except Exception as error:
                tell(fail, error)
            else:
                tell(settle, result)

        def give_up() -> None:
            tell(fail, _busy(f"waited too long for a {self._pool.name} thread"))

        if not self._pool.submit(Work(real_time.monotonic(), work, give_up)):
            raise _busy(f"too many requests wait for a {self._pool.name} thread")
        return await future

    def submit(self, call: Callable[[], object]) -> None:
        """Make a call some time; an error is logged."""

        def work() -> None:
            call()

        self._pool.submit(Work(float("inf"), work, work), force=True)

    def close(self) -> None:
        """Make the calls that wait, then end the threads."""
        self._pool.close()


def _busy(reason: str) -> Refusal:
    return Refusal(Code.TOO_MANY_REQUESTS, f"the broker is busy: {reason}")
