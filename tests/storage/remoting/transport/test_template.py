"""Requests of a template: the same on the wire as their commands, signed or not."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.pull_answers import FrameArea
from rmq_store.protocol.wire.signature import is_signed_with
from rmq_store.remoting.transport.calls import Call
from rmq_store.remoting.transport.client import _frame, _frames
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.secrets import Credentials
from rmq_store.remoting.transport.template import RequestTemplate, TemplateRequest

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

VARYING = ("queueOffset", "maxMsgNums")
TEXTS = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(["%d", "%s%", "\0", '"\\', "100 %", "\ud800"])


def call_of(request: TemplateRequest | RemotingCommand) -> Call:
    call = Call("broker:1", request, 1000, time.monotonic(), lambda _: None)
    call.opaque = 77
    return call


def sent(credentials: Credentials | None, request: TemplateRequest) -> RemotingCommand:
    (command,) = FrameDecoder().feed(b"".join(_frame(credentials, call_of(request))))
    return command


@given(st.dictionaries(TEXTS, TEXTS, max_size=6), st.integers(0, (1 << 63) - 1), st.integers(0, 1024))
def test_a_request_of_a_template_has_the_bytes_of_its_command(fields: dict[str, str], offset: int, count: int) -> None:
    kept = {name: value for name, value in fields.items() if name not in VARYING}
    request = RequestTemplate(RemotingCommand(11, kept), VARYING).request(offset, count)
    command = request.command()
    assert command.ext_fields == kept | {"queueOffset": str(offset), "maxMsgNums": str(count)}
    command.opaque = 77
    assert request.frame(77) == encode_command(command)
    assert (request.code, request.is_oneway) == (11, False)


def test_a_request_of_a_template_is_signed_with_its_own_numbers() -> None:
    template = RequestTemplate(RemotingCommand(11, {"topic": "Orders"}), VARYING)
    for offset in (5, 6):
        command = sent(Credentials("ak", "sk", "token"), template.request(offset, 32))
        assert command.ext_fields["queueOffset"] == str(offset) and command.opaque == 77
        assert command.ext_fields["SecurityToken"] == "token"
        assert is_signed_with(command.ext_fields, b"", "sk")
    assert "Signature" not in sent(None, template.request(7, 32)).ext_fields


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([1 << 63, -(1 << 70), 10**30])


@needs_native
@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_frames_of_a_round_are_those_of_python_one_behind_another(
    fields: dict[str, str], rows: list[tuple[int, ...]]
) -> None:
    template = RequestTemplate(RemotingCommand(11, fields), VARYING)
    made = template.frames(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        assert made == template.frames(rows) == b"".join(template.frames([row]) for row in rows)


@needs_native
@pytest.mark.parametrize("rows", [[(1,)], [(1, 2, 3, 4)], [1], [("1", "2", "3")], [(None, 1, 2)]])
def test_what_are_no_rows_is_left_to_python(rows: list[Any]) -> None:
    assert native.functions.request_frames((b"a", b"b", b"c", b"d"), rows) is None
    assert native.functions.request_frames((), []) is None
    assert native.functions.request_frames(("a",), []) is None  # type: ignore[arg-type]
    assert native.functions.request_frames((bytes(16 << 20), b""), [(1,)]) is None


def test_the_pulls_of_a_round_leave_as_one_piece_signed_or_not() -> None:
    template = RequestTemplate(RemotingCommand(11, {"topic": "Orders"}), VARYING)
    pulls = [(offset, 32) for offset in range(3)]
    sent_together = PullRound("broker:1", template, pulls, FrameArea(0), 1000, time.monotonic(), lambda _: None)
    sent_together.start_at(77)
    ((together, data),) = _frames(None, [sent_together])
    frames = b"".join(template.request(*pull).frame(77 + number) for number, pull in enumerate(pulls))
    assert together == [sent_together] and data == (frames,)
    ((_, signed),) = _frames(Credentials("ak", "sk", ""), [sent_together])
    assert not isinstance(signed, RemotingCommandError)
    commands = FrameDecoder().feed(b"".join(signed))
    assert [(command.opaque, command.ext_fields["queueOffset"]) for command in commands] == [
        (77, "0"), (78, "1"), (79, "2")
    ]  # fmt: skip
    assert all(is_signed_with(command.ext_fields, b"", "sk") for command in commands)


def test_a_template_that_is_too_large_makes_no_frame() -> None:
    template = RequestTemplate(RemotingCommand(11, {"subscription": "x" * (17 << 20)}), VARYING)
    with pytest.raises(RemotingCommandError, match="for code 11; at most"):
        template.request(0, 1).frame(1)


@pytest.mark.parametrize("size", [0, 100, 32 << 10, 512 << 10])
def test_a_long_body_leaves_as_it_is_behind_its_header(size: int) -> None:
    command = RemotingCommand(320, {"topic": "Orders"}, bytes(size), 77)
    pieces = _frame(None, call_of(command))
    assert b"".join(pieces) == encode_command(command)
    assert [piece is command.body for piece in pieces] == ([False, True] if size >= 32 << 10 else [False])
