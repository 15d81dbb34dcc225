"""Numbers that lie about lengths, bodies that grow, JSON that does not end: a typed error, in bounded memory."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_store import CorruptionError, Store, StoreError
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.format.frames.compression import CompressionKind, DecompressionError, compress, decompress
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host
from rmq_store.verify import verify_store
from security.conftest import TINY

pytestmark = [pytest.mark.harness, pytest.mark.timeout(60)]

MIB = 1 << 20
TESTS = Path(__file__).parents[1]


@contextmanager
def memory_grows_by_at_most(limit_bytes: int) -> Iterator[None]:
    """The process's peak during the block, over what it has at its beginning."""

    def status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    yield
    grown = status("VmHWM") - before
    assert grown <= limit_bytes, f"{grown / MIB:.0f} MiB"


# -- lengths ----------------------------------------------------------------------------------------------------------

# Where in the frame below a length, a count or an offset lies, and its struct format.
_FRAME = encode_frame(
    topic="Victim", body=b"a body", properties=b"KEYS\x01k\x02", queue_id=0, queue_offset=0, commit_log_offset=0,
    born_timestamp_ms=1, born_host=Host.parse("127.0.0.1:1"), store_timestamp_ms=1_700_000_000_000,
    store_host=Host.parse("127.0.0.1:1"),
)  # fmt: skip
_BODY_END = 88 + 6
NUMBERS = {
    "total size": (0, ">i"), "queue id": (12, ">i"), "queue offset": (20, ">q"), "physical offset": (28, ">q"),
    "sys flag": (36, ">i"), "born timestamp": (40, ">q"), "store timestamp": (56, ">q"), "body length": (84, ">i"),
    "topic length": (_BODY_END, ">b"), "properties length": (_BODY_END + 1 + 6, ">h"),
}  # fmt: skip


def _values(form: str) -> list[int]:
    bits = 8 * struct.calcsize(form)
    top = (1 << bits - 1) - 1
    return [top, -1, 0, -top - 1, 1, top - 1, top // 2]


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_in_a_record_that_lies_costs_no_memory(copy: Callable[[], Path], field: str) -> None:
    root = copy()
    for place in ("config", "consumequeue", "index", "pyrmq"):
        shutil.rmtree(root / place)
    (root / "lock").write_bytes(b"lock")
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    position, form = NUMBERS[field]
    assert len(_FRAME) > FRAME_BYTES_MIN
    for value in _values(form):
        frame = bytearray(_FRAME)
        struct.pack_into(form, frame, position, value)
        (root / "commitlog" / f"{0:020d}").write_bytes(bytes(frame).ljust(16384, b"\0"))
        with memory_grows_by_at_most(64 * MIB):
            for options in ({"read_only": True}, {}):
                try:
                    with Store.open(root, config=TINY, **options) as store:
                        for queue_id in (0, 1):
                            first, last = store.queue_range("Victim", queue_id)
                            assert last - first <= 1
                            list(store.read("Victim", queue_id, first, last))
                except StoreError:
                    pass
            verify_store(root)
        for place in ("config", "consumequeue", "index", "pyrmq"):
            shutil.rmtree(root / place, ignore_errors=True)
        (root / "abort").unlink(missing_ok=True)
        (root / "checkpoint").unlink(missing_ok=True)
        (root / "lock").write_bytes(b"lock")


@pytest.mark.parametrize("size", [(1 << 31) - 1, -1, 0, 1, 0x7FFFFFFE])
def test_a_size_in_a_queue_entry_that_lies_costs_no_memory(copy: Callable[[], Path], size: int) -> None:
    root = copy()
    path = root / "consumequeue" / "Victim" / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    struct.pack_into(">i", raw, 8 + 20 * 3, size)
    path.write_bytes(raw)
    with memory_grows_by_at_most(64 * MIB), Store.open(root, read_only=True) as store:
        try:
            batches = list(store.read("Victim", 0, *store.queue_range("Victim", 0)))
            rows = [row for batch in batches for row in batch.to_pylist()]
        except CorruptionError:
            rows = []
        assert all(row["body"] in (b"x" * 200, b"staged") for row in rows)


@pytest.mark.parametrize("count", [(1 << 31) - 1, -1, 0, 65])
def test_a_count_in_an_index_file_that_lies_costs_no_memory(copy: Callable[[], Path], count: int) -> None:
    root = copy()
    newest = max((root / "index").iterdir())
    raw = bytearray(newest.read_bytes())
    struct.pack_into(">i", raw, 36, count)
    newest.write_bytes(raw)
    (root / "abort").touch()
    (root / "lock").write_bytes(b"lock")  # a broker's: its index is looked at and cut
    with memory_grows_by_at_most(64 * MIB):
        verify_store(root)
        try:
            with Store.open(root) as store:
                assert store.queue_range("Victim", 0).max_offset >= 30
        except StoreError:
            pass


# -- bodies -----------------------------------------------------------------------------------------------------------


def stops_at_the_limit(kind: CompressionKind) -> None:
    bomb, sys_flag = compress(bytes(256 * MIB), kind)
    limit = 4 * MIB
    small, small_flag = compress(bytes(1000), kind)
    assert decompress(small, small_flag, limit) == bytes(1000)  # the decoder's code is in memory from here on
    # A Zstandard frame may ask for a window of 128 MiB.
    with memory_grows_by_at_most(3 * limit + (128 * MIB if kind == "zstd" else 0)):
        with pytest.raises(DecompressionError, match="more than 4194304 bytes"):
            decompress(bomb, sys_flag, limit)
        exactly, flag = compress(bytes(limit), kind)
        assert len(decompress(exactly, flag, limit)) == limit


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_body_that_grows_stops_at_the_limit(kind: CompressionKind) -> None:
    """In a process of its own: what other tests leave to be given back is no growth, and may go at any moment."""
    program = f"from security.test_bombs import stops_at_the_limit; stops_at_the_limit({kind!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bomb_in_a_bomb_is_bytes() -> None:
    inner = zlib.compress(bytes(64 * MIB), 9)
    body, sys_flag = compress(inner, "zlib")
    assert decompress(body, sys_flag, MIB) == inner


# -- JSON -------------------------------------------------------------------------------------------------------------

BOMBS = {
    "nested lists": b"[" * 200_000,
    "nested objects": b'{"a":' * 200_000,
    "nested and closed": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a long integer": b'{"a":' + b"9" * 5000 + b"}",
    "a long integer key": b"{" + b"9" * 5000 + b":1}",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":-Infinity}',
    "beyond double": b'{"a":1e999}',
    "a text without an end": b'{"a":"' + b"\\" * 300_000,
    "an escape cut off": b'{"a":"\\u12"}',
    "a surrogate": b'{"offsetTable":{"T@\\ud800":{"0":1}},"topicConfigTable":{"\\ud800":{}},'
    b'"subscriptionGroupTable":{"\\udfff":{}}}',
    "a raw surrogate": b'{"a":"\xed\xa0\x80"}',
    "no text": b"\xff\xfe\x00",
    "two documents": b"{}{}",
    "zeros": bytes(4096),
    "a list": b"[]",
    "null": b"null",
    "the wrong kinds": b'{"offsetTable":[],"topicConfigTable":7,"subscriptionGroupTable":"x"}',
    "wrong kinds inside": b'{"offsetTable":{"T@G":7},"topicConfigTable":{"T":7},"subscriptionGroupTable":{"G":[]}}',
    "huge numbers": b'{"offsetTable":{"T@G":{0:9223372036854775808}}}',
    "many queues": b'{"topicConfigTable":{"T":{"readQueueNums":2147483647,"writeQueueNums":2147483647}}}',
}
TABLES: dict[str, Callable[[Path], object]] = {
    "topics.json": lambda root: TopicTable(root).all(),
    "subscriptionGroup.json": lambda root: GroupTable(root).all(),
    "consumerOffset.json": lambda root: OffsetTable(root).all(),
    "delayOffset.json": lambda root: DelayOffsetTable(root).all(),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_json_that_is_none_is_a_typed_error_in_every_file(copy: Callable[[], Path], bomb: str) -> None:
    root = copy()
    with memory_grows_by_at_most(64 * MIB):
        for name, load in TABLES.items():
            path = root / "config" / name
            kept = path.read_bytes() if path.exists() else None
            for file in (path, path.with_name(f"{name}.bak")):
                file.write_bytes(BOMBS[bomb])
            try:
                load(root)
            except CorruptionError as error:
                assert str(path.parent) in str(error) and len(str(error)) < 1000
            verify_store(root)
            path.with_name(f"{name}.bak").unlink()
            path.unlink() if kept is None else path.write_bytes(kept)
        for own in ("pyrmq/store.json", "pyrmq/units.json"):
            path = root / own
            kept = path.read_bytes() if path.exists() else None
            path.write_bytes(BOMBS[bomb])
            try:
                with Store.open(root) as store:
                    assert store.last_unit("sink", "query") == 1
                assert own != "pyrmq/store.json"
            except StoreError as error:
                assert "store.json" in str(error)
            path.unlink() if kept is None else path.write_bytes(kept)


def test_of_duplicate_keys_the_last_one_wins_as_in_java(copy: Callable[[], Path]) -> None:
    root = copy()
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@G":{0:1},"T@G":{0:5,0:7}}}')
    assert OffsetTable(root).committed("G") == {("T", 0): 7}


def test_a_broker_name_that_is_no_text_is_refused(copy: Callable[[], Path]) -> None:
    root = copy()
    path = root / "pyrmq" / "store.json"
    path.write_bytes(path.read_bytes().replace(b'"rmq-embedded"', b'"\\ud800"'))
    with pytest.raises(CorruptionError, match="broker_name"):
        Store.open(root, read_only=True)
