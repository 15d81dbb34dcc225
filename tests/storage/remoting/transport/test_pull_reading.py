"""What the extension reads by itself for rounds is placed as the bytes say, and left to the decoder where unusual."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from rmq_store.format.bytes import native
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.pull_answers import FrameArea, PulledRound
from rmq_store.remoting.transport.pull_reading import BUFFER_BYTES, End, PullReading

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

NEXT = 64


def answer(opaque: int, body: bytes, next_offset: int = NEXT, code: int = 0) -> bytes:
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset), "minOffset": "3", "maxOffset": "99"}
    return encode_command(RemotingCommand(code, fields, body, opaque, RESPONSE_FLAG, "FOUND"))


def round_of(count: int, first: int = 0, area_bytes: int = 4 << 20) -> PulledRound:
    made = PulledRound([NEXT] * count, FrameArea(area_bytes))
    made.first_opaque = first
    return made


def frames(pulled: PulledRound) -> list[bytes | None]:
    places = pulled.places().tolist()
    return [pulled.area.data[start:end].tobytes() if start >= 0 else None for start, end in places]


class Wire:
    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.others = select.epoll()
        self.others.register(self.here, select.EPOLLIN)
        self.reading = PullReading()

    def receive(self, *rounds: PulledRound, timeout_ms: int = 30_000) -> tuple[End, int, int]:
        return self.reading.receive(self.here, self.others.fileno(), timeout_ms, rounds)

    def send(self, data: bytes) -> None:
        threading.Thread(target=self.there.sendall, args=(data,)).start()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    for each in (made.here, made.there, made.others):
        each.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_round_is_read_whole_in_whatever_pieces_its_bytes_come(wire: Wire, seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice([1, 300, 9_000, 250_000])) for _ in range(20)]
    data = b"".join(answer(opaque, bodies[opaque]) for opaque in chance.sample(range(20), 20))

    def send() -> None:
        at = 0
        while at < len(data):
            size = chance.randrange(1, chance.choice([20, 3_000, 1 << 18]))
            wire.there.sendall(data[at : at + size])
            at += size

    sender = threading.Thread(target=send)
    sender.start()
    pulled = round_of(20)
    end, received, _ = wire.receive(pulled)
    sender.join()
    assert end is End.ROUND_IS_WHOLE and received == len(data)
    assert frames(pulled) == bodies and not wire.reading.has_bytes


def test_it_ends_with_each_round_and_goes_on_with_what_it_has_read(wire: Wire) -> None:
    first, second = round_of(2), round_of(2, first=2)
    wire.there.sendall(b"".join(answer(opaque, b"%d" % opaque) for opaque in (0, 2, 1, 3)))
    assert wire.receive(first, second)[0] is End.ROUND_IS_WHOLE
    assert (frames(first), frames(second)) == ([b"0", b"1"], [b"2", None])
    assert wire.reading.may_have_frames
    assert wire.receive(second, timeout_ms=0)[:2] == (End.ROUND_IS_WHOLE, 0)
    assert frames(second) == [b"2", b"3"] and not wire.reading.may_have_frames


@pytest.mark.parametrize(
    "unusual",
    [
        answer(1, b"of another round" * 9, code=2), answer(1, b"less", NEXT - 1), answer(9, b"nobody's"),
        answer(0, b"a second one"), answer(1, bytes(2_000)), b"\xff" * 30, b"\x00\x00\x20\x00\x02\x00\x00\x09",
        b"\x00\x00\x20\x00\x00\x00\x20\x00", (BUFFER_BYTES + 1).to_bytes(4) + bytes(4),
    ],
)  # fmt: skip
def test_what_is_unusual_ends_it_and_is_left_with_all_behind_it(wire: Wire, unusual: bytes) -> None:
    pulled = round_of(2, area_bytes=1_000)
    wire.there.sendall(answer(0, b"0") + unusual + answer(1, b"1"))
    assert wire.receive(pulled)[0] is End.NOT_USUAL
    assert frames(pulled) == [b"0", None]
    assert bytes(wire.reading.taken()) == unusual + answer(1, b"1") and not wire.reading.has_bytes


def test_a_frame_as_large_as_the_buffer_is_read_and_one_byte_more_is_left(wire: Wire) -> None:
    body = bytes(BUFFER_BYTES - len(answer(0, b"")))
    for size, end in ((len(body), End.ROUND_IS_WHOLE), (len(body) + 1, End.NOT_USUAL)):
        pulled = round_of(1)
        wire.send(answer(0, bytes(size))[: BUFFER_BYTES if end is End.ROUND_IS_WHOLE else 100])
        assert wire.receive(pulled)[0] is end
    assert len(wire.reading.taken()) >= 8


def test_it_waits_no_longer_than_it_may_and_leaves_when_another_descriptor_is_ready(wire: Wire) -> None:
    wire.there.sendall(answer(0, b"0")[:20])
    assert wire.receive(round_of(1), timeout_ms=1)[:2] == (End.NOTHING_TO_READ, 20)
    one, other = socket.socketpair()
    with one, other:
        wire.others.register(one, select.EPOLLIN)
        other.send(b"x")
        too_late = threading.Timer(20, wire.there.sendall, [answer(0, b"0")[20:]])
        too_late.start()
        assert wire.receive(round_of(1))[:2] == (End.NOTHING_TO_READ, 0)
        too_late.cancel()
    assert not wire.reading.may_have_frames and wire.reading.has_bytes


def test_the_end_of_the_connection_and_its_errors_are_told(wire: Wire) -> None:
    wire.there.sendall(answer(0, b"0")[:-1])
    wire.there.close()
    assert wire.receive(round_of(1))[0] is End.CLOSED
    assert bytes(wire.reading.taken()) == answer(0, b"0")[:-1]
    unconnected = socket.socket()
    with unconnected:
        end, _, errno = wire.reading.receive(unconnected, wire.others.fileno(), 0, [round_of(1)])
    assert end is End.BROKEN and errno


def test_a_round_of_which_a_pull_has_left_is_whole_when_the_others_have_their_answers(wire: Wire) -> None:
    pulled = round_of(3)
    assert pulled.leave(1)
    wire.there.sendall(answer(0, b"0") + answer(2, b"2"))
    assert wire.receive(pulled)[0] is End.ROUND_IS_WHOLE
    assert frames(pulled) == [b"0", None, b"2"]


def test_a_server_that_sends_byte_by_byte_does_not_hold_it_beyond_its_time(wire: Wire) -> None:
    """Calls of others have deadlines, which the I/O loop watches between two calls of this."""
    data, has_returned = answer(0, bytes(40_000)), threading.Event()

    def send() -> None:
        for at in range(len(data)):
            if has_returned.wait(0.0005):
                return
            wire.there.sendall(data[at : at + 1])

    sender = threading.Thread(target=send)
    sender.start()
    end, received, _ = wire.receive(round_of(1), timeout_ms=300)
    has_returned.set()
    sender.join()
    assert end is End.NOTHING_TO_READ and received < len(data)


def test_other_threads_run_while_it_waits(wire: Wire) -> None:
    """The answer comes from a thread that needs the GIL after this one has begun to wait."""
    pulled = round_of(1)
    wire.send(answer(0, b"0"))
    assert wire.receive(pulled)[0] is End.ROUND_IS_WHOLE


@pytest.mark.parametrize("there", [-1, 65, 1 << 40])
def test_more_bytes_than_the_buffer_has_are_refused(wire: Wire, there: int) -> None:
    with pytest.raises(IndexError):
        native.functions.receive_pull_answers(wire.here.fileno(), 0, bytearray(64), there, 0, [])
