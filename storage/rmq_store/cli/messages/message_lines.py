"""Lines of a file as batches for `Store.append`; one batch at a time is in memory.

A wrong line ends the file; the messages before that line are stored first. A value of a line is stored exactly, or
refused: numbers of a body keep their digits, and no key may come twice.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from rmq_store.errors import UsageError, did_you_mean
from rmq_store.lazy.dataclasses import dataclass

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
    """Rows of INPUT_SCHEMA, and the line number of each."""

    rows: pa.RecordBatch
    lines: list[int]
    size_bytes: int

    def store(self, append: Callable[[pa.RecordBatch], object]) -> tuple[int, UsageError | None]:
        """Append the rows, or those before the first row that cannot be stored. Returns their number, and the error
        about that row, with its line.

        Raises:
            UsageError: no row is at fault. Other errors as `append`.
        """
        rows, mistake = self.rows, None
        while rows.num_rows:
            try:
                append(rows)
                break
            except UsageError as error:
                found = _ROW.match(str(error))
                if found is None:
                    raise
                # An earlier row may break a rule that is looked at later.
                row = int(found[1])
                mistake = type(error)(f"line {self.lines[row]}{str(error)[found.end() :]}")
                rows = rows.slice(0, row)
        return rows.num_rows, mistake


@dataclass(frozen=True, slots=True)
class _Fraction:
    """A number with a fraction or an exponent, as it stands in the line."""

    text: str


def batches_of_lines(file: IO[bytes], template: Message) -> Iterator[Batch]:
    """A message per line; empty lines are messages with an empty body. Raises UsageError for a line that is too long.
    """
    return _batches(file, lambda number, line: {"body": line}, template)


def batches_of_json(file: IO[bytes], template: Message) -> Iterator[Batch]:
    """A message per line that is not empty.

    Raises:
        UsageError: a line is no JSON object, or has an unknown key, a key twice or a value of a wrong type. Messages
            before
            it were yielded.
    """

    def parse(number: int, line: bytes) -> dict[str, Any] | None:
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        return _fields_of(number, line) if line.strip() else None

    return _batches(file, parse, template)


def _batches(
    file: IO[bytes], parse: Callable[[int, bytes], dict[str, Any] | None], template: Message
) -> Iterator[Batch]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    size = 0
    defaults = _defaults(template)
    for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
        try:
            if len(line) == LINE_BYTES_MAX:
                raise UsageError(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
            fields = parse(number, line.removesuffix(b"\n").removesuffix(b"\r"))
        except UsageError:
            if rows:
                yield Batch(_columns(rows), lines, size)
            raise
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

    from rmq_store.broker.write.encoder import INPUT_SCHEMA

    names = {name for row in rows for name in row}
    fields = [field for field in INPUT_SCHEMA if field.name in names]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _fields_of(number: int, line: bytes) -> dict[str, Any]:
    """One line of JSON as columns, after checking it."""
    try:
        found = _DECODER.decode(line.decode())
    except UsageError as error:
        raise UsageError(f"line {number}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"line {number} is no JSON object")
    fields: dict[str, Any] = {"body": _body(number, found)}
    for name, value in found.items():
        if name in ("body", "bodyHex") or name in _PASSED_OVER or value is None:
            continue
        if name not in _FIELDS:
            hint = did_you_mean(name, ("body", "bodyHex", *_FIELDS))
            known = f"; known are body, bodyHex, {', '.join(_FIELDS)}"
            raise UsageError(f"line {number}: unknown key {name!r}{hint or known}")
        fields[name] = _value(number, name, value)
    return fields


def _body(number: int, found: Mapping[str, Any]) -> bytes:
    text, digits = found.get("body"), found.get("bodyHex")
    if isinstance(text, str) and digits is None:
        return _utf_8(number, "body", text).encode()
    if isinstance(digits, str) and text is None:
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise UsageError(f"line {number}: bodyHex is no hex text") from None
    if text is not None and digits is None and isinstance(text, dict | list):
        try:
            return _utf_8(number, "body", _json(text)).encode()
        except RecursionError:
            raise UsageError(f"line {number}: body is nested too deep") from None
    raise UsageError(f"line {number}: body is a text, an object or a list, or bodyHex a text of hex digits")


def _value(number: int, name: str, value: Any) -> Any:
    if name in _TEXTS and isinstance(value, str):
        return _utf_8(number, name, value)
    if name in _NUMBERS and type(value) is int and -(1 << 31) <= value < 1 << 31:
        return value
    if name == "deliverTimestamp" and type(value) is int and 0 <= value < 1 << 53:
        return value * 1000
    if name == "properties" and isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return {_utf_8(number, name, key): _utf_8(number, name, text) for key, text in value.items() if key not in _OWN}
    expected = {"deliverTimestamp": "milliseconds since 1970", "properties": "an object of texts"}
    kind = expected.get(name, "a text" if name in _TEXTS else "a 32-bit integer")
    raise UsageError(f"line {number}: {name} is {kind}")


def _utf_8(number: int, name: str, text: str) -> str:
    """Refuse half a pair of surrogates, which JSON can have, but which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"a lone surrogate, {text[error.start]!r}, which is no text"
        raise UsageError(f"line {number}: {name} holds {what}") from None
    return text


def _json(value: Any) -> str:
    """As json.dumps, but numbers keep their digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return value.text if isinstance(value, _Fraction) else json.dumps(value, ensure_ascii=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the key {twice!r} is there twice")
    return found


def _no_number(text: str) -> Any:
    raise UsageError(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_Fraction, parse_constant=_no_number)
