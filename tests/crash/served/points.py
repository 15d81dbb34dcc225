"""The points of a request at which a server is killed, in the order in which a request comes by them.

The points are put into a forked server by patches: nothing in the server knows of them. The request that is hit is
told from the others by its opaque.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, Final, NoReturn
from unittest import mock

from crash.operations import die, kind_of, watched

UNREAD: Final = "before the request is read"
READ: Final = "read, not queued"
QUEUED: Final = "queued"
TAKEN: Final = "in the processor, before the store's call"
STORING: Final = "in the store's call"
VISIBLE: Final = "in the store's call, behind its first append"
STORED: Final = "stored, not answered"
HALF: Final = "half of the answer written"
ANSWERED: Final = "answered"

POINTS: Final = (UNREAD, READ, QUEUED, TAKEN, STORING, VISIBLE, STORED, HALF, ANSWERED)
NOT_STORED: Final = frozenset((UNREAD, READ, QUEUED, TAKEN))


class Armed:
    """Kills its process when the request `opaque` comes by `point`.

    STORING: before the operation number `operation` on a file or a mapped word. VISIBLE: before the first one behind an
    append that others see already. Both at the end of the store's call if it has no such operation; `notes` says which
    one it was. `in_pool`: no request is carried out in the thread that has read it.
    """

    def __init__(self, point: str, opaque: int, operation: int, root: Path, notes: Path, *, in_pool: bool) -> None:
        self._point = point
        self._opaque = opaque
        self._left = operation
        self._root = root
        self._notes = notes
        self._in_pool = in_pool or point == QUEUED
        self._answer = b""
        self._is_visible = False
        # Of the thread that has the request.
        self._own = threading.local()

    def installed(self) -> AbstractContextManager[object]:
        """Patch this process, before the server is made."""
        from rmq_store.broker.pop.pop import Pop
        from rmq_store.broker.retry.retry import Retry
        from rmq_store.broker.store.store import Store
        from rmq_store.broker.transactions.transactions import Transactions
        from rmq_store.broker.write.sent_requests import SentRequests
        from rmq_store.server.requests.at_once import AtOnce
        from rmq_store.server.requests.dispatcher import Dispatcher
        from rmq_store.server.requests.worker_pool import WorkerPool
        from rmq_store.server.transport.connection import Connection

        wraps_by_method: dict[tuple[type, str], Callable[..., Any]] = {
            (Dispatcher, "serve"): self._serving,
            (SentRequests, "serve"): self._storing_served,
            (Connection, "data_received"): self._reading,
            (Dispatcher, "receive"): self._receiving,
            (WorkerPool, "submit"): self._queueing,
            (Dispatcher, "run"): self._running,
            (Dispatcher, "_is_answered"): self._running_together,
            (Connection, "send"): self._answering,
            (Connection, "_write"): self._writing,
        }
        calls = (
            (Store, "send"), (Store, "send_all"), (Store, "send_batch"), (Store, "commit_offsets"),
            (Store, "recall_message"),
            (Transactions, "prepare"), (Transactions, "end"), (Retry, "send_back"), (Pop, "ack"),
        )  # fmt: skip
        with ExitStack() as patches:
            patches.enter_context(watched(self._operation))
            if self._in_pool:
                patches.enter_context(mock.patch.object(AtOnce, "answer", lambda *_: False))
                patches.enter_context(mock.patch.object(AtOnce, "first", lambda *_: None))
            for (owner, name), wrap in {**wraps_by_method, **dict.fromkeys(calls, self._storing)}.items():
                patches.enter_context(mock.patch.object(owner, name, _around(getattr(owner, name), wrap)))
            return patches.pop_all()

    def _die_at(self, point: str) -> None:
        if point == self._point:
            die()

    def _is_hit(self, request: Any) -> bool:
        return bool(request.command.opaque == self._opaque)

    def _frame_in(self, data: Any) -> bytes:
        """The frame with the opaque, whose form is JSON; empty: there is none."""
        from rmq_store.protocol.wire.frames import FrameDecoder

        rest = bytes(data)
        while len(rest) >= 4:
            size = 4 + int.from_bytes(rest[:4], "big")
            if any(command.opaque == self._opaque for command in FrameDecoder().feed(rest[:size])):
                return rest[:size]
            rest = rest[size:]
        return b""

    def _serving(self, serve: Callable[..., Any], dispatcher: Any, data: Any, address: str) -> Any:
        """A request that may be answered from its bytes."""
        self._own.hit = bool(self._frame_in(data))
        if self._own.hit:
            self._die_at(UNREAD)
            self._die_at(READ)
        end, answers = serve(dispatcher, data, address)
        if self._own.hit:
            self._answer = self._frame_in(answers)
        self._own.hit = False
        return end, answers

    def _storing_served(self, serve: Callable[..., Any], *given: Any) -> Any:
        if not getattr(self._own, "hit", False):
            return serve(*given)
        self._die_at(TAKEN)
        self._own.storing = self._point in (STORING, VISIBLE)
        served = serve(*given)
        self._own.storing = False
        if served is not None and self._frame_in(served.answers):
            for point in (STORING, VISIBLE, STORED):
                self._die_at(point)
        return served

    def _reading(self, read: Callable[..., None], connection: Any, data: bytes) -> None:
        if self._frame_in(data):
            self._die_at(UNREAD)
        read(connection, data)

    def _receiving(self, receive: Callable[..., None], dispatcher: Any, requests: Any) -> None:
        if any(map(self._is_hit, requests)):
            self._die_at(READ)
        receive(dispatcher, requests)

    def _queueing(self, submit: Callable[..., bool], pool: Any, work: Any, **options: Any) -> bool:
        if self._point == QUEUED and work.subject is not None and self._is_hit(work.subject):
            # No thread begins with it meanwhile.
            submit(pool, work._replace(run=_wait_for_ever, together=None), **options)
            die()
        return submit(pool, work, **options)

    def _running(self, run: Callable[..., None], dispatcher: Any, processor: Any, request: Any) -> None:
        self._own.hit = self._is_hit(request)
        run(dispatcher, processor, request)
        self._own.hit = False

    def _running_together(self, run: Callable[..., bool], dispatcher: Any, processor: Any, requests: Any) -> bool:
        self._own.hit = any(map(self._is_hit, requests))
        done = run(dispatcher, processor, requests)
        self._own.hit = False
        return done

    def _storing(self, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if not getattr(self._own, "hit", False):
            return call(*given, **options)
        self._die_at(TAKEN)
        self._own.storing = self._point in (STORING, VISIBLE)
        result = call(*given, **options)
        self._own.storing = False
        for point in (STORING, VISIBLE, STORED):
            self._die_at(point)
        return result

    def _operation(self, operation: str, path: str) -> None:
        if not getattr(self._own, "storing", False):
            return
        if self._is_visible or (self._point == STORING and not self._left):
            self._notes.write_text(f"{operation} {kind_of(path, self._root)}", encoding="utf-8")
            die()
        self._left -= 1
        # The word is stored behind this call.
        self._is_visible = self._point == VISIBLE and path == "appended_end"

    def _answering(self, send: Callable[..., None], connection: Any, command: Any) -> None:
        from rmq_store.protocol.wire.frames import encode_command

        if command.is_response and command.opaque == self._opaque:
            self._answer = encode_command(command)
        send(connection, command)

    def _writing(self, write: Callable[..., int], connection: Any, data: bytes) -> int:
        at = data.find(self._answer) if self._answer else -1
        if at >= 0 and self._point == HALF:
            write(connection, data[: at + len(self._answer) // 2])
            die()
        taken = write(connection, data)
        if at >= 0:  # also if it has come by none of the points before: then it was answered too early
            die()
        return taken


def _around(call: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def called(*given: Any, **options: Any) -> Any:
        return wrap(call, *given, **options)

    return called


def _wait_for_ever() -> NoReturn:
    while True:
        threading.Event().wait()
