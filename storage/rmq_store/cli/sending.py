"""Lines of a file as batches for `Store.append`; one batch at a time is in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import IO, TYPE_CHECKING, Any

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
LINE_BYTES_MAX = 64 << 20

_ROW = re.compile(r"row ([0-9]+)")

# Key of a line -> column of INPUT_SCHEMA. The others of MESSAGE_SCHEMA are the store's to say, and are passed over.
_FIELDS = ("tags", "keys", "properties", "flag", "shardingKey", "queueId", "delayLevel", "deliverTimestamp")
_TEXTS, _NUMBERS = ("tags", "keys", "shardingKey"), ("flag", "queueId", "delayLevel")
_PASSED_OVER = (
    "topic", "queueOffset", "msgId", "reconsumeTimes", "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp",
    "storeHost", "commitLogOffset", "brokerName",
)  # fmt: skip

# Properties that a store gave a message, and gives the new one anew.
_OWN = ("UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET", "CLUSTER")


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of INPUT_SCHEMA, and the line that each came from."""

    rows: pa.RecordBatch
    lines: list[int]
    size_bytes: int

    def with_line(self, message: str) -> str:
        """An error of `Store.append` that names a row, naming the line instead."""
        found = _ROW.match(message)
        return message if found is None else f"line {self.lines[int(found[1])]}{message[found.end() :]}"


def batches_of_lines(file: IO[bytes], template: Message) -> Iterator[Batch]:
    """A message per line; empty lines are messages with an empty body. UsageError: a line that is too long."""
    return _batches(file, lambda number, line: {"body": line}, template)


def batches_of_json(file: IO[bytes], template: Message) -> Iterator[Batch]:
    """A message per line that is not empty.

    Raises:
        UsageError: a line is no JSON object, or has an unknown key or a value of a wrong type; batches before it were
            yielded.
    """
    return _batches(file, lambda number, line: _fields_of(number, line) if line.strip() else None, template)


def _batches(file: IO[bytes], parse: Any, template: Message) -> Iterator[Batch]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    size = 0
    defaults = _defaults(template)
    for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
        if len(line) == LINE_BYTES_MAX:
            raise UsageError(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        fields = parse(number, line.removesuffix(b"\n").removesuffix(b"\r"))
        if fields is None:
            continue
        rows.append(_with_defaults(fields, defaults))
        lines.append(number)
        size += len(rows[-1]["body"])
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
            yield Batch(_columns(rows), lines, size)
            rows, lines, size = [], [], 0
    if rows:
        yield Batch(_columns(rows), lines, size)


def _defaults(template: Message) -> dict[str, Any]:
    deliver_ms = template.deliver_timestamp_ms
    given = {
        "tags": template.tags, "keys": template.keys, "shardingKey": template.sharding_key,
        "queueId": template.queue_id, "delayLevel": template.delay_level or None,
        "properties": dict(template.properties) or None,
        "deliverTimestamp": None if deliver_ms is None else deliver_ms * 1000,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _with_defaults(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    row = {**defaults, **{name: value for name, value in fields.items() if value is not None}}
    if "properties" in row:
        row["properties"] = list({**defaults.get("properties", {}), **dict(row["properties"])}.items())
    return row


def _columns(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    from rmq_store.broker.encoding import INPUT_SCHEMA

    names = {name for row in rows for name in row}
    fields = [field for field in INPUT_SCHEMA if field.name in names]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _fields_of(number: int, line: bytes) -> dict[str, Any]:
    """One line of JSON as columns, checked."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"line {number} is no JSON object")
    fields: dict[str, Any] = {"body": _body(number, found)}
    for name, value in found.items():
        if name in ("body", "bodyHex") or name in _PASSED_OVER or value is None:
            continue
        if name not in _FIELDS:
            near = get_close_matches(name, ("body", "bodyHex", *_FIELDS), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are body, bodyHex, {', '.join(_FIELDS)}"
            raise UsageError(f"line {number}: unknown key {name!r}{hint}")
        fields[name] = _value(number, name, value)
    return fields


def _body(number: int, found: Mapping[str, Any]) -> bytes:
    text, digits = found.get("body"), found.get("bodyHex")
    if isinstance(text, str) and digits is None:
        return text.encode(errors="surrogatepass")
    if isinstance(digits, str) and text is None:
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise UsageError(f"line {number}: bodyHex is no hex text") from None
    if text is not None and digits is None and isinstance(text, dict | list):
        return json.dumps(text, ensure_ascii=False).encode()
    raise UsageError(f"line {number}: body is a text, an object or a list, or bodyHex a text of hex digits")


def _value(number: int, name: str, value: Any) -> Any:
    if name in _TEXTS and isinstance(value, str):
        return value
    if name in _NUMBERS and type(value) is int and -(1 << 31) <= value < 1 << 31:
        return value
    if name == "deliverTimestamp" and type(value) is int and 0 <= value < 1 << 53:
        return value * 1000
    if name == "properties" and isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return {key: text for key, text in value.items() if key not in _OWN}
    expected = {"deliverTimestamp": "milliseconds since 1970", "properties": "an object of texts"}
    kind = expected.get(name, "a text" if name in _TEXTS else "a 32-bit integer")
    raise UsageError(f"line {number}: {name} is {kind}")
