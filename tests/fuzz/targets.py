"""One fuzz target for each decoder of bytes that come from a disk, a checkpoint or a user's option.

A target gets bytes and may raise what its decoder documents: an error of ours (`TYPED`). Everything else that comes out
of it is a bug, and so is a decoder that answers what another decoder of the same bytes contradicts (AssertionError).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import struct
import tempfile
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import rmq_store
from fuzz.report_target import ReportFuzz, report_seeds
from fuzz.sent_target import run_sent, sent_seeds
from fuzz.server_target import run_server, server_seeds
from fuzz.transfer_target import TransferFuzz, transfer_seeds
from helpers.cluster.taken_pulls import TakenPulls, is_taken
from pyspark_rmq.position.position import StreamPosition, parse_assign, parse_offsets, parse_timestamps
from rmq_store.broker.filter.sql92 import compile_selector
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.pop.pop_journal import PopJournal
from rmq_store.broker.pop.pop_state import Acknowledged, InFlight
from rmq_store.broker.pop.receipt_handle import ReceiptHandle
from rmq_store.broker.write.staged_files import StagedFile, content_sum_of, open_staged
from rmq_store.errors import StoreError
from rmq_store.files.locks.state_page import STATE_BYTES, StatePage
from rmq_store.files.progress import Progress, ProgressRecord
from rmq_store.format.batches.frame_decoder import decode_frames, dispatch_columns
from rmq_store.format.bytes import native
from rmq_store.format.frames import frame_check
from rmq_store.format.frames.compression import DecompressionError, compress, decompress, inflate
from rmq_store.format.frames.frame_check import check_frame
from rmq_store.format.frames.frame_walk import sound_frames
from rmq_store.format.frames.stored_message import decode_frame, encode_frame
from rmq_store.format.properties.property_columns import parse_property_column
from rmq_store.format.properties.property_string import parse_properties
from rmq_store.format.tables import config_json
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.format.tables.config_json import ConfigJsonError
from rmq_store.format.tables.schema import ENCODED_SCHEMA, MESSAGE_SCHEMA
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import parse_offset_message_id, parse_unique_id
from rmq_store.format.views import consume_queue
from rmq_store.format.views.index import IndexHeader
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.views.hash_index import HashIndex
from rmq_store.protocol.bodies import java_json
from rmq_store.protocol.bodies.groups import ConsumeStats
from rmq_store.protocol.bodies.routes import KVTable, TopicRouteData
from rmq_store.protocol.bodies.topics import TopicStatsTable
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.signature import signature_of
from rmq_store.server.requests.request_table import REQUESTS

# DecompressionError and ConfigJsonError are what the format layer says; the layers above it make CorruptionErrors.
TYPED = (StoreError, ConfigJsonError, DecompressionError)

BODY_LIMIT_BYTES = 1 << 20
CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """`seeds`: good inputs to start from; `directory`: a scratch place for decoders that read files."""

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], None]

    def corpus(self) -> list[bytes]:
        """The seeds, and the inputs that once found something."""
        folder = CORPUS / self.name
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return self.seeds() + [path.read_bytes() for path in found]


@functools.cache
def scratch() -> Path:
    """A directory of this process, in memory where there is such a file system."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    holder = tempfile.TemporaryDirectory(prefix="rmq-fuzz-", dir=base)
    scratch.holder = holder  # type: ignore[attr-defined]  # removed with the process
    return Path(holder.name)


def scratch_file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def with_and_without_extension(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The target twice, in Python alone and, where it was built, with the C extension: both accept, or both refuse."""

    def run_both(data: bytes) -> None:
        if not native.LOADED:
            run(data)
            return
        refusal: StoreError | None = None
        native.LOADED = False
        try:
            run(data)
        except StoreError as error:
            refusal = error
        finally:
            native.LOADED = True
        try:
            run(data)
        except StoreError as error:
            assert str(error) == str(refusal)
            raise
        assert refusal is None, refusal

    return run_both


# -- frames -----------------------------------------------------------------------------------------------------------

HOSTS = {4: Host.parse("127.0.0.1:10911"), 6: Host.parse("[fe80::1]:10911")}
PROPERTIES = b"UNIQ_KEY\x017F000001000100000000000000000000\x02KEYS\x01k1 k2\x02TAGS\x01TagA\x02DELAY\x013\x02"


def frame(**fields: object) -> bytes:
    """One good frame; `fields` as of `encode_frame`."""
    given = {
        "topic": "Topic", "body": b"a body", "properties": PROPERTIES, "queue_id": 1, "queue_offset": 7,
        "commit_log_offset": 0, "born_timestamp_ms": 1_700_000_000_000, "born_host": HOSTS[4],
        "store_timestamp_ms": 1_700_000_000_001, "store_host": HOSTS[4], "crc_property": True,
    }  # fmt: skip
    return encode_frame(**{**given, **fields})  # type: ignore[arg-type]


def frame_seeds() -> list[bytes]:
    body, compressed = compress(b"text " * 40, "zlib")
    return [
        frame(),
        frame(body=b"", properties=b""),
        frame(topic="x" * 200, born_host=HOSTS[6], store_host=HOSTS[6], crc_property=False),
        frame(topic="SCHEDULE_TOPIC_XXXX", sys_flag=frame_check.SysFlag.TRANSACTION_PREPARED),
        frame(body=body, sys_flag=compressed),
        frame(topic="rmq_sys_pyrmq_timer", properties=b"TIMER_OUT_MS\x011700000000000\x02"),
    ]


def run_frame(data: bytes) -> None:
    view = memoryview(data)
    for force in (False, True):
        check_frame(view, 0, len(view), expect_offset=None, check_crc=True, force_prop_crc=force)
    check = check_frame(view, 0, len(view), expect_offset=None, check_crc=False)
    message = decode_frame(view, 0, len(view))
    assert check.kind == "message" and message.total_size == check.size <= len(data)


def run_frames(data: bytes) -> None:
    """The bulk decoder accepts exactly what `check_frame` calls a message, and agrees with `decode_frame`; a walk goes
    over exactly that, too.
    """
    check = check_frame(memoryview(data), 0, len(data), expect_offset=None, check_crc=False)
    size = check.size if check.kind == "message" else int.from_bytes(data[:4], "big", signed=True)
    positions, sizes = np.zeros(2, np.int64), np.full(2, size, np.int32)
    place = int.from_bytes(data[28:36], "big", signed=True) if len(data) >= 36 else 0
    if not -(1 << 62) < place < 1 << 62:
        place = 0
    for crc_from in (None, place):
        walked = sound_frames(memoryview(data), 0, 1, place, crc_from)[1].tolist()
        sound = check_frame(
            memoryview(data), 0, len(data), expect_offset=place, check_crc=True, force_prop_crc=crc_from is not None
        )
        assert walked == ([sound.size] if sound.kind == "message" else []), (walked, sound)
    try:
        batch = decode_frames(
            pa.py_buffer(data), positions, sizes, base_offset=place, columns=MESSAGE_SCHEMA.names, broker_name="b",
            raw_body=False, body_limit_bytes=BODY_LIMIT_BYTES,
        )  # fmt: skip
    except StoreError as error:
        compressed = len(data) > 40 and data[39] & frame_check.SysFlag.COMPRESSED
        with_crc = check_frame(memoryview(data), 0, len(data), expect_offset=None, check_crc=True)
        assert check.kind != "message" or place == 0 or (compressed and with_crc.kind != "message"), error
        raise
    assert check.kind == "message", check
    batch.validate(full=True)
    message, row = decode_frame(memoryview(data), 0, len(data)), batch.slice(0, 1).to_pylist()[0]
    assert dict(row["properties"]) == message.properties
    assert (row["topic"], row["tags"], row["keys"], row["queueId"], row["queueOffset"], row["msgId"]) == (
        message.topic, message.tags, message.keys, message.queue_id, message.queue_offset, message.msg_id
    )  # fmt: skip
    dispatch_columns(pa.py_buffer(data), positions, sizes, place, (1000, 5000))


# -- pieces of frames -------------------------------------------------------------------------------------------------


def run_properties(data: bytes) -> None:
    """Rows separated by 0xFF: the bulk parser answers what the other one does."""
    rows = data.split(b"\xff")
    one_by_one = [parse_properties(row) for row in rows]
    columns = parse_property_column(pa.array(rows, pa.binary()))
    assert [dict(row) for row in columns.properties.to_pylist()] == one_by_one
    assert columns.tags.to_pylist() == [row.get("TAGS") for row in one_by_one]
    assert columns.uniq_key.to_pylist() == [row.get("UNIQ_KEY") for row in one_by_one]


def property_seeds() -> list[bytes]:
    return [PROPERTIES, PROPERTIES + b"\xff" + PROPERTIES[:-1], b"a\x01\x01b\x02\xed\xa0\x80"]


def run_compression(data: bytes) -> None:
    flags = (0x001, 0x101, 0x201, 0x301, 0x401, 0x000)
    body, flag = data[1:], flags[data[0] % len(flags)] if data else 1
    plain = decompress(body, flag, BODY_LIMIT_BYTES)
    assert len(plain) <= max(BODY_LIMIT_BYTES, len(data))
    assert inflate(body, flag, BODY_LIMIT_BYTES) == plain


def compression_seeds() -> list[bytes]:
    kinds = enumerate(("zlib", "lz4", "zstd", "zlib"))
    return [bytes([n]) + compress(b"a text, a text, a text" * 9, kind)[0] for n, kind in kinds]  # type: ignore[arg-type]


def run_ids(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_unique_id(text)
    host, offset = parse_offset_message_id(text)
    assert text.upper() == (host.pack() + offset.to_bytes(8, "big")).hex().upper()


# -- views ------------------------------------------------------------------------------------------------------------


@functools.cache
def _segment() -> tuple[pa.Buffer, int]:
    pieces, offset = [], 0
    for number in range(4):
        pieces.append(frame(commit_log_offset=offset, queue_offset=number))
        offset += len(pieces[-1])
    return pa.py_buffer(b"".join(pieces) + bytes(64)), offset


def run_consume_queue(data: bytes) -> None:
    """What a reader does with entries that may be anything, over a segment of four good records."""
    entries = consume_queue.entries(data)
    consume_queue.is_extension_address(entries["tags_code"].astype(np.int64))
    segment, end = _segment()
    offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["frame_size"].astype(np.int32)
    batch = decode_frames(
        segment, offsets, sizes, base_offset=0, columns=["topic", "queueId", "queueOffset", "commitLogOffset"],
        broker_name="", raw_body=True, body_limit_bytes=BODY_LIMIT_BYTES,
    )  # fmt: skip
    assert batch.column("commitLogOffset").to_pylist() == offsets.tolist()
    assert all(0 <= offset < end for offset in offsets.tolist())


def queue_seeds() -> list[bytes]:
    size = len(frame())
    offsets = np.arange(4, dtype=np.int64) * size
    good = consume_queue.encode_entries(offsets, np.full(4, size, np.int32), np.zeros(4, np.int64)).tobytes()
    return [good, good[:20], consume_queue.PRE_BLANK + good[20:40]]


SLOTS, INDEX_MAX = 8, 8
INDEX_BYTES = 40 + 4 * SLOTS + 20 * INDEX_MAX


def run_index(data: bytes) -> None:
    """A file of 8 slots and 7 entries: what a restart does with it, and what a writer adds to it."""
    IndexHeader.unpack(data)
    name = "20240101000000000"
    folder = scratch() / "index"
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()
    scratch_file(f"index/{name}", data[:INDEX_BYTES].ljust(INDEX_BYTES, b"\0"))
    index = HashIndex(folder, SLOTS, INDEX_MAX)
    file = index.look_at_newest()
    assert file is not None
    file.read_entries(1, min(file.header.index_count, file.entry_max))
    hashes = np.array([1, 9, 5], np.int32)
    index.put(hashes, np.array([1, 1, 2], np.int64), np.full(3, 1_700_000_000_000, np.int64))
    index.put_one([7], 3, 1_700_000_000_000)
    index.newest_full_timestamp()
    index.restore(index.state())


def index_seeds() -> list[bytes]:
    header = IndexHeader(1_700_000_000_000, 1_700_000_001_000, 10, 20, 2, 4).pack()
    entries = [(3, 10, 0, 0), (4, 10, 0, 0), (11, 20, 1, 1)]
    slots = struct.pack(">8i", 0, 0, 0, 3, 2, 0, 0, 0)
    content = header + slots + bytes(20) + b"".join(struct.pack(">iqii", *entry) for entry in entries)
    return [content.ljust(INDEX_BYTES, b"\0")]


def run_checkpoint(data: bytes) -> None:
    checkpoint = Checkpoint.unpack(data)
    assert checkpoint.min_timestamp >= 0
    assert Checkpoint.unpack(checkpoint.pack()) == checkpoint


# -- tables and our own files -----------------------------------------------------------------------------------------


def run_config_json(data: bytes) -> None:
    value = config_json.loads(data)
    for style in ("5.x", "4.x", "compact"):
        assert _same(config_json.loads(config_json.dumps(value, style)), value)  # type: ignore[arg-type]


def _same(one: object, other: object) -> bool:
    """Equal, keys of different types apart, and the sign of zero."""
    if isinstance(one, dict) and isinstance(other, dict):
        # By their places: a shadowed key equals no other one.
        return [repr(key) for key in one] == [repr(key) for key in other] and all(
            map(_same, one.values(), other.values())
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


TABLES = {
    "topics.json": lambda root: TopicTable(root).all(),
    "subscriptionGroup.json": lambda root: GroupTable(root).all(),
    "consumerOffset.json": lambda root: OffsetTable(root).all(),
    "delayOffset.json": lambda root: DelayOffsetTable(root).all(),
}


def run_tables(data: bytes) -> None:
    """The first byte says which table the rest is."""
    name = list(TABLES)[(data[0] if data else 0) % len(TABLES)]
    root = scratch() / "tables"
    scratch_file(f"tables/config/{name}", data[1:])
    TABLES[name](root)


def table_seeds() -> list[bytes]:
    texts = (
        '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"topicConfigTable":{"T":{"attributes":{"+a":"b"},'
        '"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
        '"writeQueueNums":4}}}',
        '{"forbiddenTable":{},"subscriptionGroupTable":{"G":{"brokerId":0,"consumeEnable":true,"groupName":"G",'
        '"groupRetryPolicy":{"type":"CUSTOMIZED"},"retryMaxTimes":16,"retryQueueNums":1}}}',
        '{"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:33,1:32},"%RETRY%G@G":{0:1}}}',
        '{"offsetTable":{1:5,2:7}}',
    )
    return [bytes([number]) + text.encode() for number, text in enumerate(texts)]


def config_seeds() -> list[bytes]:
    return [*(seed[1:] for seed in table_seeds()), b'{"a":[1.5,-0.0,1e3,"\\ud800",null]}']


def run_store_file(data: bytes) -> None:
    scratch_file("described/pyrmq/store.json", data)
    StoreFile.load(scratch() / "described")


def store_file_seeds() -> list[bytes]:
    StoreFile(str(uuid.UUID(int=1)), rmq_store.StoreConfig()).save(scratch_file("made/pyrmq/x", b"").parents[1])
    return [(scratch() / "made" / "pyrmq" / "store.json").read_bytes()]


def run_progress(data: bytes) -> None:
    """The first byte says which of the two, and whether its checksum is put right."""
    kind, data = data[0] % 3 if data else 0, data[1:]
    if kind < 2:
        if kind == 1 and len(data) >= 124:
            data = data[:120] + struct.pack("<I", zlib.crc32(data[:120])) + data[124:]
        found = Progress(scratch_file("progress", data)).load_for_repair()
        assert found is None or min(found[0].end, found[0].flushed_end, found[0].crc_from or 0) >= 0
    elif len(data) < STATE_BYTES:
        page = StatePage(scratch_file("state", data.ljust(STATE_BYTES, b"\0")), writable=False)
        assert not page.counts() or page.belongs_here()
        assert page.intent is None or page.intent[1] > page.appended_end


def progress_seeds() -> list[bytes]:
    path = scratch_file("written", b"")
    Progress(path).write(ProgressRecord(100, 50, 100, 0, bytes(40), True, 5, 20))
    record = path.read_bytes()
    state = StatePage(scratch() / "page", writable=True)
    state.publish(100, 100, 50, 5)
    development = b"pyrmqpr1" + record[8:]
    return [b"\0" + record, b"\1" + record, b"\1" + development, b"\2" + (scratch() / "page").read_bytes()[:160]]


def run_unit(data: bytes) -> None:
    unit = UnitRecord.parse(data)
    if unit is not None:
        assert UnitRecord.parse(unit.bodies(1, 2)[1]) == unit


def unit_seeds() -> list[bytes]:
    units = UnitRecord("sink", "q", 3, 5, 7), UnitRecord("x", None, None, 1, 2, {"a": 1})
    return [unit.bodies(0, 100)[1] for unit in units]


def run_staged(data: bytes) -> None:
    """A file with the right size and checksum: whoever can write it can do that too."""
    scratch_file("staging/pyrmq/staging/w/f.arrow", data)
    rows = int.from_bytes(data[-1:], "big")
    staged = StagedFile("w/f.arrow", len(data), zlib.crc32(data), rows % 4, 0, ())
    content_sum_of(open_staged(scratch() / "staging", staged))


def staged_seeds() -> list[bytes]:
    seeds = []
    for count in (1, 2):
        columns = [_column(field.type, count) for field in ENCODED_SCHEMA]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ENCODED_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=ENCODED_SCHEMA))
        seeds.append(sink.getvalue().to_pybytes() + bytes([count]))
    return seeds


def _column(kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.array([[1]] * count, kind)
    if pa.types.is_integer(kind):
        return pa.array([1] * count, kind)
    if pa.types.is_boolean(kind):
        return pa.array([True] * count, kind)
    if pa.types.is_dictionary(kind):
        return pa.array(["Topic"] * count, kind.value_type).dictionary_encode().cast(kind)
    return pa.array([frame() if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) else "Topic"] * count, kind)


def run_pop_journal(data: bytes) -> None:
    """The first byte says whether the checksums of all records are put right."""
    fix, data = bool(data) and data[0] & 1, data[1:]
    if fix:
        records = [data[at : at + 64] for at in range(0, len(data) - 63, 64)]
        data = b"".join(record[:60] + struct.pack("<I", zlib.crc32(record[:60])) for record in records)
    scratch_file("journal/journal", data)
    journal = PopJournal(scratch() / "journal", sync=False)
    try:
        with journal.exclusive() as state:
            list(state.snapshot())
    finally:
        journal.close()


def journal_seeds() -> list[bytes]:
    folder = scratch() / "made-journal"
    folder.mkdir(exist_ok=True)
    journal = PopJournal(folder, sync=False)
    with journal.exclusive():
        journal.append([InFlight(0, 5, 1, 1, 100, 1000, 60_000), InFlight(0, 6, 1, 2, 200, 1000, 60_000)])
        journal.append([Acknowledged(0, 5)])
    journal.close()
    content = (folder / "journal").read_bytes()
    return [b"\0" + content, b"\1" + content]


# -- bytes from the network -------------------------------------------------------------------------------------------

BODIES = tuple(sorted({row.response_body or row.request_body or KVTable for row in REQUESTS.values()}, key=str))


def _into_room(data: bytes) -> list[RemotingCommand]:
    """The commands, with every second piece of 10 bytes written where the decoder wants it."""
    decoder, commands, at = FrameDecoder(1 << 16), [], 0
    with contextlib.suppress(RemotingCommandError):
        while at < len(data) and decoder.failure is None:
            room = decoder.room()
            piece = data[at : at + (10 if room is None else min(10, len(room)))]
            if room is not None:
                room[: len(piece)] = piece
            commands += decoder.feed(piece) if room is None else decoder.fill(len(piece))
            at += len(piece)
    return commands


def run_remoting(data: bytes) -> None:
    """Frames, whole, byte by byte, and into the decoder's own memory; then each command's typed header, and a body, as
    that of a request.
    """
    whole, pieces = FrameDecoder(1 << 16), FrameDecoder(1 << 16)
    commands, slowly = whole.feed(data), []
    for at in range(len(data)):
        if pieces.failure is None:
            slowly += pieces.feed(data[at : at + 1])
    assert slowly == commands and str(pieces.failure) == str(whole.failure)
    assert _into_room(data) == commands
    for command in commands:
        (again,) = FrameDecoder().feed(encode_command(command))
        assert again.ext_fields == command.ext_fields or "\\u" in ascii(command.ext_fields)
        signature_of(command.ext_fields, command.body, "key")
        row = REQUESTS.get(command.code)
        if row is not None:
            header = row.request_header.from_ext(command.ext_fields)
            assert row.request_header.from_ext(header.to_ext()) == header
    whole.finish()


def remoting_seeds() -> list[bytes]:
    seeds = []
    for kind in SerializeType:
        first = RemotingCommand(34, {}, b'{"clientID":"c"}', 1, remark="ok", serialize_type=kind)
        pull = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "5", "maxMsgNums": "32"}
        rest = {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
        seeds.append(encode_command(first) + encode_command(RemotingCommand(11, pull | rest, serialize_type=kind)))
    return seeds


def run_pull_answers(data: bytes) -> None:
    """Answers that the extension takes from a buffer are those of the decoder, in its order; it leaves all others."""
    plain, taking = FrameDecoder(), TakenPulls(range(8))
    expected, commands = _fed(plain, data), _fed(taking.decoder, data)
    assert str(taking.decoder.failure) == str(plain.failure)
    taken = taking.answers()
    for command in expected:
        if is_taken(command, taken.get(command.opaque)):
            del taken[command.opaque]
        else:
            assert commands.pop(0) == command
    assert not taken and not commands
    plain.finish()


def _fed(decoder: FrameDecoder, data: bytes) -> list[RemotingCommand]:
    """The commands before a bad frame, if there is one."""
    with contextlib.suppress(RemotingCommandError):
        return decoder.feed(data)
    return []


def pull_answer_seeds() -> list[bytes]:
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "64", "minOffset": "3", "maxOffset": "900719925474099"}
    later = {"topicSysFlag": "0", "groupSysFlag": "0", "offsetDelta": "0", "forbiddenType": "0"}
    return [
        b"".join(
            encode_command(RemotingCommand(
                0, {**fields, **more}, b"frames", opaque, RESPONSE_FLAG, "FOUND", serialize_type=kind
            ))
            for opaque, more in enumerate((later, {}, {"traffic": "a b"}))
        )
        for kind in SerializeType
    ]  # fmt: skip


def run_java_json(data: bytes) -> None:
    """The first byte says which body the rest is."""
    kind, data = BODIES[(data[0] if data else 0) % len(BODIES)], data[1:]
    value = java_json.loads(data)
    try:
        # Both refuse the same; a number beyond long is read, and only not written.
        assert java_json.loads(java_json.dumps(value)) == value
    finally:
        body = kind.decode(data)
    assert kind.decode(body.encode()) == body


def java_json_seeds() -> list[bytes]:
    texts = {
        TopicRouteData: '{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"}],"queueDatas":[{'
        '"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":4,"topicSysFlag":0}],"filterServerTable":{}}',
        TopicStatsTable: '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":1,"minOffset":0}}}',
        ConsumeStats: '{"consumeTps":1.0E-5,"offsetTable":{{"brokerName":"\\u0041","queueId":0,"topic":"T"}:{'
        '"brokerOffset":1,"consumerOffset":0}}}',
    }
    return [bytes([BODIES.index(kind)]) + text.encode() for kind, text in texts.items()]


# -- texts of users ---------------------------------------------------------------------------------------------------


def run_receipt_handle(data: bytes) -> None:
    handle = ReceiptHandle.parse(data.decode("utf-8", "surrogateescape"))
    assert ReceiptHandle.parse(str(handle)) == handle


def run_sql92(data: bytes) -> None:
    selector = compile_selector(data.decode("utf-8", "replace"))
    for properties in ({}, {"a": "3", "b": "x", "TAGS": "t"}, {"a": "9" * 5000, "b": "1e400", "c": "NaN"}):
        selector.matches(properties)


def run_spark_offsets(data: bytes) -> None:
    """The first byte says which of the texts it is."""
    kind, text = data[0] % 4 if data else 0, data[1:].decode("utf-8", "surrogateescape")
    if kind == 0:
        parse_offsets(text, "startingOffsets", ("earliest", "latest"))
    elif kind == 1:
        parse_timestamps(text, "startingOffsetsByTimestamp")
    elif kind == 2:
        parse_assign(text)
    else:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return  # Spark parses its checkpoint itself
        position = StreamPosition.from_json(value)
        assert StreamPosition.from_json(position.to_json()) == position


def spark_seeds() -> list[bytes]:
    position = b'{"version":1,"store":"","topics":{"T":{"0":5,"1":7}},"after":{"T":{"0":100}},"began":{"T":{"1":7}}}'
    return [b'\0{"T":{"0":23,"1":-2}}', b"\0latest", b'\1{"T":{"0":1700000000000}}', b'\2{"T":[0,1]}', b"\3" + position]


@functools.lru_cache(maxsize=2)
def _transfer_fuzz(process: int) -> TransferFuzz:
    """A forked child has no right to its parent's replica."""
    return TransferFuzz(scratch() / "transfers")


def run_transfers(data: bytes) -> None:
    if data:
        _transfer_fuzz(os.getpid()).execute(data)


@functools.lru_cache(maxsize=2)
def _report_fuzz(process: int) -> ReportFuzz:
    """As `_transfer_fuzz`: a store that is open for writing has threads."""
    return ReportFuzz(scratch() / f"reports-{process}")


def run_reports(data: bytes) -> None:
    if data:
        _report_fuzz(os.getpid()).execute(data)


TARGETS = tuple(
    Target(*fields)
    for fields in (
        ("frame", frame_seeds, run_frame),
        ("frames", frame_seeds, with_and_without_extension(run_frames)),
        ("properties", property_seeds, with_and_without_extension(run_properties)),
        ("compression", compression_seeds, run_compression),
        ("ids", lambda: [b"7F00000100002A9F" + b"0" * 16, b"A" * 56], run_ids),
        ("consume_queue", queue_seeds, run_consume_queue),
        ("index", index_seeds, run_index),
        ("checkpoint", lambda: [Checkpoint(1, 2, 3, 4, 5, 6).pack()[:64]], run_checkpoint),
        ("config_json", config_seeds, run_config_json),
        ("tables", table_seeds, run_tables),
        ("store_file", store_file_seeds, run_store_file),
        ("progress", progress_seeds, run_progress),
        ("unit", unit_seeds, run_unit),
        ("staged", staged_seeds, run_staged),
        ("pop_journal", journal_seeds, run_pop_journal),
        ("remoting", remoting_seeds, run_remoting),
        ("pull_answers", pull_answer_seeds, run_pull_answers),
        ("java_json", java_json_seeds, run_java_json),
        ("sent_requests", sent_seeds, run_sent),
        ("server", server_seeds, run_server),
        ("transfers", lambda: transfer_seeds(scratch() / "transfers"), run_transfers),
        ("reports", report_seeds, run_reports),
        ("receipt_handle", lambda: [b"5 1700000000000 60000 1 0 broker-a 3 5 1234"], run_receipt_handle),
        ("sql92", lambda: [b"a BETWEEN 1 AND 9 OR b IN ('x', 'y') AND NOT (c IS NULL)", b"-(+3.5e2) < a"], run_sql92),
        ("spark_offsets", spark_seeds, run_spark_offsets),
    )
)  # fmt: skip
