"""Prints records as they are in a file, byte by byte. Source: DumpCompactionLogCommand.java; the layout of a record is
in `format/frames/frame_check`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import click

from rmq_store.cli.mqadmin_print.lines import date_text
from rmq_store.cli.mqadmin_print.messages import PREVIEW_CHARACTERS, java_message, message_json, shown
from rmq_store.cli.shared.output import open_store, printable, wide_option, write_json, write_table
from rmq_store.cli.shared.parameters import store_options
from rmq_store.errors import CorruptRecordError, UsageError

_SHOWN_BYTES = 32
_PREFIX_BYTES = 8  # totalSize, magicCode

# (field, format of struct) in their order, up to the body's length; hosts take what sysFlag says.
_HEAD = (
    ("totalSize", "i"), ("magicCode", "i"), ("bodyCRC", "i"), ("queueId", "i"), ("flag", "i"), ("queueOffset", "q"),
    ("physicalOffset", "q"), ("sysFlag", "i"), ("bornTimestamp", "q"), ("bornHost", "host"), ("storeTimestamp", "q"),
    ("storeHost", "host"), ("reconsumeTimes", "i"), ("preparedTransactionOffset", "q"), ("bodyLength", "i"),
)  # fmt: skip


@click.command(
    "dumpCompactionLog",
    short_help="Show the records of a file, byte for byte.",
    epilog="\b\nExample:\n  rmq dumpCompactionLog --at 40551 --store /data/rocketmq/store",
)
@click.option("-f", "--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A file of records: a segment of a commit log, or a compaction log.")  # fmt: skip
@click.option("--at", "offset", type=click.IntRange(0, (1 << 62) - 1), metavar="BYTE",
              help="Show one record, field by field: its offset in the file, or without -f in the log of "
                   "--store.")  # fmt: skip
@store_options(is_required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@wide_option
@click.option("-n", "--namesrvAddr", hidden=True, expose_value=False)
def dump_compaction_log(path: Path | None, offset: int | None, root: Path | None, as_json: bool) -> None:
    """Show the records of a file, byte for byte.

    With -f alone: print all records as mqadmin does, up to the first bytes that are no record. Exit code 1 if these are
    not the unwritten end of the file. With --at: print every field of one record: its position in the record, its size,
    its bytes in hex and their meaning. Long fields are cut; --json has them in full. Nothing is changed.
    """
    if path is None and (root is None or offset is None):
        raise UsageError("name a file with -f, or a store and a place in its log: --store PATH --at BYTE")
    if path is not None and offset is None:
        _dump_all(path, as_json)
        return
    frame = _frame_of_store(root, offset) if path is None and root else _frame_of_file(path, offset)
    rows = list(frame_fields(frame))
    if as_json:
        write_json(
            [{"byte": at, "size": size, "field": name, "hex": raw.hex(), "value": value}
             for at, size, name, raw, value in rows]
        )  # fmt: skip
        return
    shown = [(at, size, name, _short_hex(raw), _short_text(value)) for at, size, name, raw, value in rows]
    write_table(("BYTE", "SIZE", "FIELD", "HEX", "VALUE"), shown, cut=("HEX", "VALUE"))


def frame_fields(frame: bytes) -> Iterator[tuple[int, int, str, bytes, str]]:
    """(first byte, size in bytes, field, its bytes, its value as text) for every field of one whole record."""
    from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, SysFlag
    from rmq_store.format.frames.stored_message import decode_frame

    message = decode_frame(memoryview(frame), 0, len(frame))
    (magic,) = struct.unpack_from(">i", frame, 4)
    values: dict[str, object] = {
        "magicCode": "MESSAGE_MAGIC_CODE" if magic == MESSAGE_MAGIC_V1 else "MESSAGE_MAGIC_CODE_V2",
        "bornHost": message.born_host, "storeHost": message.store_host,
    }  # fmt: skip
    host_bytes = {"bornHost": 4, "storeHost": 4}
    if message.sys_flag & SysFlag.BORN_HOST_V6:
        host_bytes["bornHost"] = 16
    if message.sys_flag & SysFlag.STORE_HOST_V6:
        host_bytes["storeHost"] = 16
    at = 0
    for name, code in _HEAD:
        size = host_bytes[name] + 4 if code == "host" else struct.calcsize(f">{code}")
        raw = frame[at : at + size]
        value = values.get(name, "" if code == "host" else struct.unpack(f">{code}", raw)[0])
        text = f"{value} ({date_text(int(str(value)))})" if name.endswith("Timestamp") else str(value)
        yield at, size, name, raw, text
        at += size
    topic_head = 1 if magic == MESSAGE_MAGIC_V1 else 2
    topic = message.topic.encode()
    parts = [
        ("body", message.body, message.body.decode("utf-8", "backslashreplace")),
        ("topicLength", frame[at + len(message.body) :][:topic_head], str(len(topic))),
        ("topic", topic, message.topic),
        ("propertiesLength", len(message.properties_raw).to_bytes(2, "big"), str(len(message.properties_raw))),
        ("properties", message.properties_raw, str(message.properties)),
    ]
    for name, raw, text in parts:
        yield at, len(raw), name, raw, text
        at += len(raw)


def _dump_all(path: Path, as_json: bool) -> None:
    import mmap

    from rmq_store.format.frames.frame_check import check_frame
    from rmq_store.format.frames.stored_message import decode_frame

    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        at = 0
        while at < len(view):
            check = check_frame(view, at, len(view), expect_offset=None, check_crc=False)
            if check.kind != "message":
                _require_end(path, view, at, check.kind)
                break
            message = shown(decode_frame(view, at, len(view)))
            at += message.total_size
            if as_json:
                write_json(message_json(message, None), one_line=True)
            else:
                click.echo(printable(java_message(message, "null")))


def _require_end(path: Path, view: memoryview, at: int, kind: str) -> None:
    """Raise CorruptRecordError unless a blank record, or unwritten bytes, end the file."""
    if kind != "blank" and any(view[at : at + _PREFIX_BYTES]):
        raise CorruptRecordError(str(path), at, f"no record begins here; {len(view) - at} bytes are not shown")


def _frame_of_store(root: Path, offset: int | None) -> bytes:
    with open_store(root) as store:
        found = store.message_at(offset or 0)
        size = store.config.mapped_file_size_commit_log
        base = found.commit_log_offset // size * size
        return _slice(root / "commitlog" / f"{base:020d}", found.commit_log_offset - base)


def _frame_of_file(path: Path | None, offset: int | None) -> bytes:
    assert path is not None
    return _slice(path, offset or 0)


def _slice(path: Path, at: int) -> bytes:
    """One record. Raises UsageError if none begins there."""
    from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN, check_frame

    with path.open("rb") as file:
        file.seek(at)
        size = int.from_bytes(file.read(4), "big", signed=True)
        limit = path.stat().st_size - at
        if FRAME_BYTES_MIN <= size <= limit:
            file.seek(at)
            frame = file.read(size)
            if check_frame(memoryview(frame), 0, size, expect_offset=None, check_crc=False).kind == "message":
                return frame
    raise UsageError(f"{path}: no record begins at byte {at}")


def _short_text(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARACTERS else f"{text[:PREVIEW_CHARACTERS]}..."


def _short_hex(raw: bytes) -> str:
    return raw.hex() if len(raw) <= _SHOWN_BYTES else f"{raw[:_SHOWN_BYTES].hex()}..."


COMMANDS = (dump_compaction_log,)
