"""One connection: pieces of frames that wait to be written, calls that wait for answers.

Callers write themselves as long as the socket takes bytes; the thread of the I/O loop writes the rest and reads. The
socket never blocks, so that the lock, under which both happen, is held for moments only: an SSL object must not be used
by two threads at once. A signal handler that comes in such a moment of its own thread is refused with UsageError.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from rmq_store import real_time
from rmq_store.files.locks.guard import Condition
from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingCommandError, RemotingError, RemotingTooMuchRequestError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder
from rmq_store.protocol.wire.pull_answers import PullAnswer, PullTaker
from rmq_store.remoting.transport.calls import Call
from rmq_store.remoting.transport.connector import reason_of
from rmq_store.remoting.transport.pull_reading import End, PullReading
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.secrets import Credentials

WRITE_BUFFER_BYTES_MAX: Final = 8 << 20
"""Bytes that wait in one connection. A larger frame is accepted while nothing waits."""
PENDING_MAX: Final = 65_535
PIECES_PER_WRITE: Final = 64
OPAQUE_MAX: Final = (1 << 31) - 1
_WOULD_BLOCK: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class State(Enum):
    """CONNECTING and OPEN take calls, which wait meanwhile. LEAVING answers those that it has, then ends."""

    CONNECTING = 1
    OPEN = 2
    LEAVING = 3
    CLOSED = 4


class _Piece:
    """Frames that leave together, in the bytes of `views`: the requests of `calls`, or an answer of ours. A request of
    which no byte has left may be marked as started with the others of its piece. `bytes`: so many have not left.
    """

    __slots__ = ("bytes", "calls", "views")

    def __init__(self, data: Sequence[bytes], calls: Sequence[Call]) -> None:
        self.views = [memoryview(each) for each in data if each]
        self.bytes = sum(map(len, self.views))
        self.calls = calls

    def start(self) -> None:
        for call in self.calls:
            call.started = True

    def drop(self, sent: int) -> None:
        """So many of its bytes have left."""
        self.bytes -= sent
        while sent:
            first = self.views[0]
            if sent < len(first):
                self.views[0] = first[sent:]
                return
            sent -= len(first)
            del self.views[0]


Encode = Callable[[Sequence[Call]], Iterable[tuple[Sequence[Call], Sequence[bytes] | RemotingCommandError]]]


class Received(NamedTuple):
    """The commands of one read, and why the connection cannot go on ("": it can). `pulled`: opaques with answers to
    pulls that became no commands. `placed`: so many answers went straight to their rounds.
    """

    commands: list[RemotingCommand]
    failure: str
    broke_protocol: bool = False
    pulled: Sequence[tuple[int, PullAnswer]] = ()
    placed: int = 0

    @property
    def has_answers(self) -> bool:
        """Whether a frame was complete."""
        return bool(self.commands or self.pulled or self.placed)


class Connection:
    """`attention` is called when the I/O loop has something to do for this connection: write, end, an earlier deadline.

    `address` is the registered one, `name` how errors name the server.
    """

    def __init__(
        self, address: str, name: str, credentials: Credentials | None, attention: Callable[[Connection], None]
    ) -> None:
        self.address = address
        self.name = name
        self.credentials = credentials
        self.state = State.CONNECTING
        self.socket: socket.socket | None = None
        self.answered = False
        self.failure = ""
        now = real_time.monotonic()
        self.used_at = now
        self.read_at = now
        self.next_deadline = float("inf")
        self._attention = attention
        self._lock = Condition()
        self._pieces: deque[_Piece] = deque()
        self._waiting_bytes = 0
        self._pending: dict[int, Call] = {}
        self._rounds: list[PullRound] = []
        self._last_opaque = 0
        self._pulls = PullTaker()
        self._decoder = FrameDecoder(take=self._pulls.take)
        self._reading = PullReading()

    # -- callers

    def submit(self, calls: Sequence[Call], encode: Encode, wait: bool) -> list[Call]:
        """Send calls together, or let them wait for the connection; returns those for which it came too late.

        `encode` makes the frames of calls, with their opaques. `wait`: for space in the buffer, until the deadline;
        only the first piece does so. A call ends with RemotingTooMuchRequestError if there is no space, or if too many
        wait for answers, and with RemotingCommandError if its frame cannot be made.

        Raises:
            UsageError: a signal handler came in the middle of this; nothing was sent.
        """
        with self._lock.entered():
            for call in calls:
                call.start_at(self._free_opaque(call.width))
        pieces: list[_Piece] = []
        failed: list[tuple[Sequence[Call], RemotingError]] = []
        for encoded, data in encode(calls):
            if isinstance(data, RemotingCommandError):
                failed.append((encoded, data))
            else:
                pieces.append(_Piece(data, encoded))
        left: list[Call] = []
        with self._lock.entered():
            now = self.used_at = real_time.monotonic()
            earliest = self.next_deadline
            for number, piece in enumerate(pieces):
                try:
                    if not self._has_space(piece, wait and not number):
                        left = [call for each in pieces[number:] for call in each.calls]
                        break
                except RemotingTooMuchRequestError as error:
                    failed.append((piece.calls, error))
                    continue
                self._expect(piece.calls, now)
                self._pieces.append(piece)
                self._waiting_bytes += piece.bytes
            if self.socket is not None:
                self._flush()
            needed = self.next_deadline < earliest or bool(self._pieces) or bool(self.failure)
        if needed:
            self._attention(self)
        for ended, failure in failed:
            for call in ended:
                call.end(failure)
        return left

    def _free_opaque(self, width: int) -> int:
        """The first of so many consecutive opaques that no call has which waits."""
        while True:
            first = self._last_opaque + 1 if self._last_opaque + width <= OPAQUE_MAX else 1
            wanted = range(first, first + width)
            self._last_opaque = wanted[-1]
            is_free = self._pending.keys().isdisjoint(wanted) if self._pending else True
            if is_free and not any(_overlap(wanted, waiting.opaques) for waiting in self._rounds):
                return first

    def _expect(self, calls: Sequence[Call], now: float) -> None:
        """Let calls wait for their answers."""
        for call in calls:
            call.sent_at = now
            if isinstance(call, PullRound):
                self._keep_rounds([*self._rounds, call])
            else:
                self._pending[call.opaque] = call
        # Those of one piece do not differ in their time limit.
        self.next_deadline = min(self.next_deadline, calls[0].deadline)

    def _keep_rounds(self, rounds: list[PullRound]) -> None:
        self._rounds = rounds
        self._pulls.rounds = [waiting.answers for waiting in rounds]

    def _has_space(self, piece: _Piece, wait: bool) -> bool:
        """Whether the piece may be queued; False if the connection ended meanwhile."""
        call, size = piece.calls[0], piece.bytes
        while self.state in (State.CONNECTING, State.OPEN):
            waiting = len(self._pending) + sum(waiting.width for waiting in self._rounds)
            if waiting + sum(call.width for call in piece.calls) > PENDING_MAX:
                raise RemotingTooMuchRequestError(f"{self.name}: {PENDING_MAX} calls wait for an answer")
            if not self._pieces or self._waiting_bytes + size <= WRITE_BUFFER_BYTES_MAX:
                return True
            left = call.deadline - real_time.monotonic()
            if not wait or left <= 0:
                raise RemotingTooMuchRequestError(
                    f"{self.name}: {call.name} was not sent within {call.timeout_ms if wait else 0} ms: "
                    f"{self._waiting_bytes} bytes wait for the server already"
                )
            self._lock.wait(left)
        return False

    def send_answer(self, data: bytes) -> bool:
        """Send an answer to the server's request; False if there is no space, or no connection."""
        with self._lock.entered():
            if self.socket is None or self._waiting_bytes + len(data) > WRITE_BUFFER_BYTES_MAX:
                return False
            self._pieces.append(_Piece([data], ()))
            self._waiting_bytes += len(data)
            self.used_at = real_time.monotonic()
            self._flush()
            needed = bool(self._pieces) or bool(self.failure)
        if needed:
            self._attention(self)
        return True

    def _flush(self) -> None:
        """Write as much as the socket takes, under the lock. After a failure the I/O loop ends the connection."""
        assert self.socket is not None
        is_tls = isinstance(self.socket, ssl.SSLSocket)
        while self._pieces and not self.failure:
            piece = self._pieces[0]
            if is_tls:
                piece.start()  # a failed write may have sent a record
            try:
                if is_tls or len(self._pieces) == len(piece.views) == 1:
                    sent = self.socket.send(piece.views[0])
                else:
                    waiting = islice(self._pieces, PIECES_PER_WRITE)
                    sent = self.socket.sendmsg([view for each in waiting for view in each.views])
            except _WOULD_BLOCK:
                return
            except OSError as error:
                self.failure = reason_of(error)
                return
            self._waiting_bytes -= sent
            self._count(sent)
        self._lock.notify_all()

    def _count(self, sent: int) -> None:
        """Drop the bytes that the socket took from the pieces that wait."""
        while sent:
            piece = self._pieces[0]
            piece.start()
            if sent < piece.bytes:
                piece.drop(sent)
                return
            sent -= piece.bytes
            self._pieces.popleft()
            if piece.calls and piece.calls[0].request.is_oneway:
                for call in piece.calls:
                    self._pending.pop(call.opaque, None)
                    call.sent()

    # -- the I/O loop

    def opened(self, connected: socket.socket) -> bool:
        """Take the socket and send what waits; False if the connection was closed meanwhile."""
        with self._lock:
            if self.state is not State.CONNECTING:
                return False
            self.socket, self.state = connected, State.OPEN
            self.used_at = self.read_at = real_time.monotonic()
            self._flush()
        return True

    def write(self) -> None:
        """Go on writing; the socket takes bytes."""
        with self._lock:
            if self.socket is not None:
                self._flush()

    def read(self, buffer: memoryview, others: int | None = None, timeout_ms: int = 0) -> Received:
        """Read what is there: the rest of a frame whose beginning came before, and then at most one buffer.

        With `others`, the descriptor that becomes ready with this socket or with anything else, answers of rounds are
        read and waited for, for so long at most.
        """
        if others is not None and self._reads_rounds():
            return self._read_rounds(others, timeout_ms)
        if self._reading.has_bytes:
            return self._decoded(self._decoder.feed, self._reading.taken())
        room = self._decoder.room()
        if room is None:
            return self._read_into(buffer, self._decoder.feed)
        received = self._read_into(room, lambda data: self._decoder.fill(len(data)))
        if received.failure or not received.has_answers:
            return received
        more = self._read_into(buffer, self._decoder.feed)
        return Received(
            received.commands + more.commands, more.failure, more.broke_protocol, [*received.pulled, *more.pulled],
            received.placed + more.placed,
        )  # fmt: skip

    def _read_into(self, buffer: memoryview, decode: Callable[[memoryview], list[RemotingCommand]]) -> Received:
        with self._lock:
            if self.socket is None:
                return Received([], "")
            try:
                size = self.socket.recv_into(buffer)
            except _WOULD_BLOCK:
                return Received([], "")
            except OSError as error:
                return Received([], reason_of(error))
            # TLS may have waited for bytes before it could write.
            self._flush()
        if not size:
            return Received([], "the server closed it")
        self.used_at = self.read_at = real_time.monotonic()
        return self._decoded(decode, buffer[:size])

    def _decoded(self, decode: Callable[[memoryview], list[RemotingCommand]], data: memoryview) -> Received:
        try:
            commands = decode(data)
        except RemotingError as error:
            return Received([], str(error), True, *self._pulls.taken())
        failure = self._decoder.failure
        return Received(commands, str(failure or ""), failure is not None, *self._pulls.taken())

    def _reads_rounds(self) -> bool:
        """Whether the extension may read: nothing but answers of rounds is expected, and nothing else began to come."""
        is_plain = self.socket is not None and not isinstance(self.socket, ssl.SSLSocket)
        return bool(self._rounds) and is_plain and native.LOADED and self._decoder.is_between_frames

    def _read_rounds(self, others: int, timeout_ms: int) -> Received:
        assert self.socket is not None
        rounds = self._pulls.rounds
        before = sum([waiting.placed for waiting in rounds])
        end, size, code = self._reading.receive(self.socket, others, timeout_ms, rounds)
        placed = sum([waiting.placed for waiting in rounds]) - before
        if size:
            self.used_at = self.read_at = real_time.monotonic()
        if end in (End.ROUND_IS_WHOLE, End.NOTHING_TO_READ):
            return Received([], "", placed=placed)
        received = self._decoded(self._decoder.feed, self._reading.taken())
        failure = received.failure
        if end is End.CLOSED:
            failure = failure or "the server closed it"
        elif end is End.BROKEN:
            failure = failure or reason_of(OSError(code, os.strerror(code)))
        return received._replace(failure=failure, placed=received.placed + placed)

    def has_unread(self) -> bool:
        """Whether bytes are here that the operating system no longer announces: in TLS, or for rounds."""
        is_tls = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0
        return is_tls or self._reading.may_have_frames

    def wants_to_write(self) -> bool:
        """Whether frames wait for the socket."""
        return bool(self._pieces) and self.socket is not None

    def take(self, opaque: int, *, is_taken: bool = False) -> Call | None:
        """Return the call that an answer belongs to, which no longer waits; None if none does. `is_taken`: see
        `PullRound.alone`.
        """
        call = self._pending.pop(opaque, None)
        if call is None:
            for waiting in self._rounds:
                if opaque in waiting.opaques:
                    return waiting.alone(opaque, is_taken=is_taken)
        return call

    def settle_rounds(self) -> None:
        """Let go of the rounds whose pulls all have their answers, after answers came."""
        left = [waiting for waiting in self._rounds if not waiting.check()]
        if len(left) < len(self._rounds):
            with self._lock:
                self._keep_rounds([waiting for waiting in self._rounds if not waiting.is_whole])

    def leave(self) -> None:
        """Take no more calls: the server wants this connection to end."""
        with self._lock:
            if self.state is State.OPEN:
                self.state = State.LEAVING
            self._lock.notify_all()

    def is_empty(self) -> bool:
        """Whether nothing waits, neither to be written nor for an answer."""
        return not self._pending and not self._rounds and not self._pieces

    def expire(self, now: float) -> tuple[list[Call], bool]:
        """Return the calls whose time is over, which no longer wait, and whether the connection looks dead.

        It looks dead if a call waited all of its time, and not one byte came from the server after it was sent.
        """
        if now < self.next_deadline:
            return [], False
        with self._lock:
            waiting = [*self._pending.values(), *self._rounds]
            late = [call for call in waiting if call.deadline <= now]
            for call in late:
                self._pending.pop(call.opaque, None)
            self._keep_rounds([each for each in self._rounds if each.deadline > now])
            self._drop_unsent(late)
            self.next_deadline = min((call.deadline for call in waiting if call.deadline > now), default=float("inf"))
            silent = self.state is not State.CONNECTING and any(
                call.started and call.sent_at > self.read_at for call in late
            )
        return late, silent

    def _drop_unsent(self, late: list[Call]) -> None:
        unsent = {call for call in late if not call.started}
        if unsent:
            kept = [piece for piece in self._pieces if not piece.calls or not unsent.issuperset(piece.calls)]
            self._pieces = deque(kept)
            self._waiting_bytes = sum(piece.bytes for piece in kept)
            self._lock.notify_all()

    def close(self) -> list[Call]:
        """End the connection and return the calls that have no answer."""
        with self._lock:
            self.state = State.CLOSED
            calls = [*self._pending.values(), *self._rounds]
            self._pending.clear()
            self._keep_rounds([])
            self._pieces.clear()
            self._waiting_bytes = 0
            self._lock.notify_all()
            open_socket, self.socket = self.socket, None
        if open_socket is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)  # a forked child may have a copy of the descriptor
            open_socket.close()
        return calls

    def abandon(self) -> None:
        """In a forked child: close the copy of the descriptor, and leave the parent's connection alone."""
        if self.socket is not None:
            socket.close(self.socket.detach())


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
