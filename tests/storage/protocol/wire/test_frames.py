"""Frames and both header forms: what Java's peers write is read, and bad bytes are refused with an error of ours."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.client import RemotingCommandError, RemotingError
from rmq_store.protocol.wire import binary_header
from rmq_store.protocol.wire.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    LanguageCode,
    RemotingCommand,
    SerializeType,
    response_to,
)
from rmq_store.protocol.wire.frames import (
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    ROOM_BYTES,
    SERVED_HEADER_BYTES_MAX,
    FrameDecoder,
    encode_command,
)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(0, 32767),
    ext_fields=st.dictionaries(TEXT, TEXT, max_size=4),
    body=st.binary(max_size=50),
    opaque=INT32,
    flag=st.integers(0, 3),
    remark=st.none() | TEXT.filter(bool),
    language=st.sampled_from(LanguageCode),
    version=st.integers(0, 32767),
    serialize_type=st.sampled_from(SerializeType),
)


def json_frame(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">iI", 4 + len(text) + len(body), len(text)) + text + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def decode(data: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().feed(data)
    return command


@given(st.lists(COMMANDS, max_size=4), st.data())
def test_what_is_encoded_is_decoded_in_whatever_pieces_it_arrives(
    commands: list[RemotingCommand], data: st.DataObject
) -> None:
    rest = b"".join(map(encode_command, commands))
    decoder, found = FrameDecoder(), []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += decoder.feed(rest[:size])
        rest = rest[size:]
    decoder.finish()
    assert found == commands


def test_a_frame_arrives_byte_by_byte() -> None:
    command = RemotingCommand(310, {"b": "Orders"}, b"tea", 7)
    decoder, frame = FrameDecoder(), encode_command(command)
    assert [one for byte in frame for one in decoder.feed(bytes([byte]))] == [command]


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.data())
def test_what_comes_into_the_room_of_an_incomplete_frame_is_decoded_as_what_is_fed(
    commands: list[RemotingCommand], data: st.DataObject
) -> None:
    rest = b"".join(map(encode_command, commands))
    decoder, found = FrameDecoder(), []
    while rest:
        room = decoder.room()
        size = data.draw(st.integers(1, len(rest) if room is None else min(len(room), len(rest))))
        if room is None:
            found += decoder.feed(rest[:size])
        else:
            room[:size] = rest[:size]
            found += decoder.fill(size)
        rest = rest[size:]
    decoder.finish()
    assert found == commands


def test_memory_grows_with_the_bytes_that_came_and_not_with_the_length_that_was_announced() -> None:
    command = RemotingCommand(0, body=bytes(8 << 20))
    frame = memoryview(encode_command(command))
    decoder, found, at = FrameDecoder(), [], 9
    tracemalloc.start()
    try:
        assert decoder.feed(frame[:at]) == []
        while at < len(frame):
            kept_bytes = tracemalloc.get_traced_memory()[0]
            assert kept_bytes < ROOM_BYTES + 2 * at + 10_000
            room = decoder.room()
            assert room is not None and len(room) > 0
            size = min(len(room), 100_000)
            room[:size] = frame[at : at + size]
            del room
            found += decoder.fill(size)
            at += size
        assert found == [command]
        found.clear()
        assert tracemalloc.get_traced_memory()[0] < ROOM_BYTES + 10_000  # a large frame's memory is given back
    finally:
        tracemalloc.stop()


def test_a_bad_header_that_came_into_the_room_ends_the_decoder() -> None:
    decoder, frame = FrameDecoder(), json_frame(b"{" * 20)
    decoder.feed(frame[:10])
    room = decoder.room()
    assert room is not None
    room[:] = frame[10:]
    with pytest.raises(RemotingCommandError, match="JSON header"):
        decoder.fill(len(room))
    assert decoder.room() is None and decoder.failure is not None


def test_the_frame_of_a_java_4_9_client_is_read_field_by_field() -> None:
    header = (
        b'{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"JAVA","opaque":3,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )
    found = decode(json_frame(header))
    assert found == RemotingCommand(105, {"topic": "TBW102"}, b"", 3, 0, None, LanguageCode.JAVA, 409)
    assert encode_command(found) == json_frame(header)


def test_the_binary_header_has_the_layout_of_rocketmq_serializable() -> None:
    header = bytes.fromhex("000b 03 0199 00000007 00000000 00000000 0000000c 0005") + b"topic" + b"\0\0\0\x01T"
    command = RemotingCommand(11, {"topic": "T"}, b"x", 7, serialize_type=SerializeType.ROCKETMQ)
    assert encode_command(command) == binary_frame(header, b"x")
    assert decode(binary_frame(header, b"x")) == command


@pytest.mark.parametrize("code", [binary_header.CODE_MAX, binary_header.CODE_MAX + 1, 200050])
def test_a_code_beyond_int16_goes_as_json(code: int) -> None:
    found = decode(encode_command(RemotingCommand(code, {"a": "b"}, serialize_type=SerializeType.ROCKETMQ)))
    assert (found.code, found.ext_fields) == (code, {"a": "b"})
    assert (found.serialize_type == SerializeType.JSON) == (code > 32767)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"code": 11, "extFields": {"queueId": 0, "x": 1.50, "isForce": True, "no": None}},
         {"queueId": "0", "x": "1.5", "isForce": "true"}),
        ({"code": 11, "language": 3, "version": 1, "opaque": 0}, {}),
        ({"code": 11, "extFields": None, "remark": None, "language": None, "unknown": [{}]}, {}),
        ({"code": "11", "language": "KLINGON"}, {}),
    ],
)  # fmt: skip
def test_what_real_peers_write_differently_is_accepted(header: dict[str, object], expected: dict[str, str]) -> None:
    found = decode(json_frame(header))
    assert (found.code, found.ext_fields, found.remark) == (11, expected, None)
    assert all(type(value) is str for value in found.ext_fields.values())


def test_a_long_number_keeps_its_spelling() -> None:
    header = b'{"code":11,"extFields":{"offset":9223372036854775807,"y":1.0e5}}'
    assert decode(json_frame(header)).ext_fields == {"offset": "9223372036854775807", "y": "1.0e5"}


def test_a_lone_surrogate_is_sent_as_a_question_mark() -> None:
    for kind in SerializeType:
        command = RemotingCommand(11, {"a\ud800": "\ud800"}, remark="\ud800", serialize_type=kind)
        found = decode(encode_command(command))
        assert (found.ext_fields, found.remark) == ({"a?": "?"}, "?")


BAD_JSON = {
    "no JSON": (b"{", "JSON header"),
    "no object": (b"[]", "an object is expected"),
    "no UTF-8": (b'{"code":11,"remark":"\xff"}', "not UTF-8 at byte 21"),
    "no code": (b'{"opaque":1}', "no member 'code'"),
    "code is an object": (b'{"code":{}}', "'code' is no 32-bit integer"),
    "code is a boolean": (b'{"code":true}', "'code' is no 32-bit integer"),
    "code is a fraction": (b'{"code":1.5}', "'code' is no 32-bit integer"),
    "code is too large": (b'{"code":2147483648}', "'code' is no 32-bit integer"),
    "opaque is other digits": ('{"code":1,"opaque":"١"}'.encode(), "'opaque' is no 32-bit integer"),
    "flag is a list": (b'{"code":1,"flag":[]}', "'flag' is no 32-bit integer"),
    "remark is a list": (b'{"code":1,"remark":[]}', "'remark' is no text"),
    "language is a list": (b'{"code":1,"language":[]}', "'language' is neither"),
    "fields are a list": (b'{"code":1,"extFields":[]}', "'extFields' is no object"),
    "a field is an object": (b'{"code":1,"extFields":{"a":{}}}', "'extFields' has no text as 'a'"),
    "NaN": (b'{"code":NaN}', "NaN is no number"),
    "a number without end": (b'{"code":1,"x":' + b"9" * 5000 + b"}", "Exceeds the limit"),
    "a field with a number that is too long": (b'{"code":1,"extFields":{"a":1' + b"0" * 64 + b"}}", "no text as 'a'"),
    "code is true": (b'{"code":true}', "'code' is no 32-bit integer"),
    "language is true": (b'{"code":1,"language":true}', "'language' is neither"),
    "more behind it": (b'{"code":1} {}', "Extra data"),
    "nothing": (b"  ", "Expecting value"),
    "deep": (b'{"code":1,"x":' + b"[" * 100_000, "nested too deeply"),
}


def test_white_space_around_a_header_is_no_part_of_it() -> None:
    (command,) = FrameDecoder().feed(json_frame(b' \r\n{"code": 7} \t'))
    assert command.code == 7


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_bad_json_header_is_refused(name: str) -> None:
    header, message = BAD_JSON[name]
    with pytest.raises(RemotingCommandError, match=message):
        FrameDecoder().feed(json_frame(header))


GOOD_BINARY = bytes.fromhex("000b 03 0199 00000007 00000000 00000002") + b"ok" + bytes.fromhex("0000000c 0005") + (
    b"topic\0\0\0\x01T"
)  # fmt: skip


@pytest.mark.parametrize("size", range(len(GOOD_BINARY)))
def test_a_binary_header_that_is_cut_is_refused(size: int) -> None:
    assert decode(binary_frame(GOOD_BINARY)).remark == "ok"
    with pytest.raises(RemotingCommandError, match="binary header"):
        FrameDecoder().feed(binary_frame(GOOD_BINARY[:size]))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (13, b"\x80\0\0\0", "-2147483648 bytes for the remark"),
        (13, b"\0\0\x01\0", "256 bytes for the remark"),
        (17, b"\xff\xfe", "the remark is not UTF-8 at byte 17"),
        (19, b"\xff\xff\xff\xff", "-1 bytes for the fields"),
        (19, b"\0\0\0\x0b", "the fields end at byte 35 of 35, not at byte 34"),
        (23, b"\xff\xff", "-1 bytes for a key"),
    ],
)
def test_a_bad_length_in_a_binary_header_is_refused(at: int, value: bytes, message: str) -> None:
    header = GOOD_BINARY[:at] + value + GOOD_BINARY[at + len(value) :]
    with pytest.raises(RemotingCommandError, match=message):
        FrameDecoder().feed(binary_frame(header))


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (struct.pack(">iI", FRAME_BYTES_MAX + 1, 100), "oversized frame: 16777217 bytes, at most 16777216"),
        (struct.pack(">iI", 0x7FFFFFFF, 100), "oversized frame"),
        (struct.pack(">iI", -1, 0), "bad lengths: a header of 0 bytes in a frame of -1"),
        (struct.pack(">iI", 3, 0), "bad lengths"),
        (struct.pack(">iI", 10, 7), "bad lengths: a header of 7 bytes in a frame of 10"),
        (struct.pack(">iI", 10, 2 << 24 | 2), "unknown serialize type 2"),
        (b"GET / HTTP/1.1\r\n", "oversized frame"),
    ],
)
def test_lengths_and_type_are_checked_before_the_frame_is_there(prefix: bytes, message: str) -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemotingCommandError, match=message):
        decoder.feed(prefix)
    assert decoder.room() is None
    with pytest.raises(RemotingCommandError, match=message):
        decoder.feed(encode_command(RemotingCommand(0)))
    assert decoder.room() is None


def test_a_header_that_is_too_long_for_a_server_is_refused_unread() -> None:
    decoder = FrameDecoder(max_header_bytes=SERVED_HEADER_BYTES_MAX)
    with pytest.raises(RemotingCommandError, match="oversized header: 262145 bytes, at most 262144"):
        decoder.feed(struct.pack(">iI", 1 << 20, SERVED_HEADER_BYTES_MAX + 1))
    assert FrameDecoder().feed(struct.pack(">iI", 1 << 20, SERVED_HEADER_BYTES_MAX + 1)) == []


def test_the_longest_properties_fit_a_server_however_json_spells_them() -> None:
    header = json.dumps({"code": 310, "extFields": {"i": "\x01" * 32767, "b": "T" * 255}}).encode()
    (command,) = FrameDecoder(max_header_bytes=SERVED_HEADER_BYTES_MAX).feed(json_frame(header))
    assert len(header) > 6 * 32767 and len(command.ext_fields["i"]) == 32767


@pytest.mark.parametrize("kind", SerializeType)
def test_a_header_has_a_number_of_fields(kind: SerializeType) -> None:
    fields = {str(number): "" for number in range(FIELDS_MAX)}
    assert decode(encode_command(RemotingCommand(7, fields, serialize_type=kind))).ext_fields == fields
    with pytest.raises(RemotingCommandError, match="a header of 1025 fields, at most 1024"):
        decode(encode_command(RemotingCommand(7, fields | {"x": ""}, serialize_type=kind)))


def test_commands_before_a_bad_frame_are_not_lost() -> None:
    good = RemotingCommand(0, opaque=5)
    decoder = FrameDecoder()
    assert decoder.feed(encode_command(good) + json_frame(b"{")) == [good]
    assert isinstance(decoder.failure, RemotingError) and not decoder.failure.retryable
    with pytest.raises(RemotingCommandError, match="JSON header"):
        decoder.feed(b"")


@pytest.mark.parametrize("size", [1, 7, 8, 20])
def test_a_connection_that_ends_within_a_frame_is_an_error(size: int) -> None:
    decoder = FrameDecoder()
    frame = encode_command(RemotingCommand(0, {"a": "b"}))
    decoder.feed(frame[:size])
    with pytest.raises(RemotingCommandError, match=f"torn frame: the connection ended after {size} bytes"):
        decoder.finish()


def test_a_frame_that_no_peer_accepts_is_not_made() -> None:
    encode_command(RemotingCommand(310, body=bytes(1000)), 2000)
    with pytest.raises(RemotingCommandError, match="for code 310; at most 1000 are allowed"):
        encode_command(RemotingCommand(310, body=bytes(1000)), 1000)
    for wrong in (RemotingCommand(1, {"k" * 32768: ""}), RemotingCommand(1, version=40000)):
        wrong.serialize_type = SerializeType.ROCKETMQ
        with pytest.raises(RemotingCommandError, match="binary header"):
            encode_command(wrong)


def test_a_command_shows_neither_signatures_nor_its_body() -> None:
    command = RemotingCommand(310, {"Signature": "s3", "AccessKey": "ak", "SecurityToken": "st", "b": "T"}, b"secret")
    assert repr(command).count("'***'") == 3
    assert not any(secret in f"{command} {command!r}" for secret in ("s3", "'ak'", "'st'", "secret"))
    assert "'b': 'T'" in repr(command) and "6 bytes" in repr(command)


def test_flags_and_answers() -> None:
    request = RemotingCommand(11, flag=ONEWAY_FLAG, opaque=9, serialize_type=SerializeType.ROCKETMQ)
    answer = response_to(request, 17, "no route", {"a": "b"}, b"body")
    assert (request.is_oneway, request.is_response, answer.is_oneway, answer.is_response) == (True, False, False, True)
    assert (answer.opaque, answer.flag, answer.remark, answer.body) == (9, RESPONSE_FLAG, "no route", b"body")
    assert answer.serialize_type == SerializeType.ROCKETMQ
