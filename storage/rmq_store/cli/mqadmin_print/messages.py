"""Messages as mqadmin prints them: labels, tracks, table lines, Java's toString. Sources: QueryMsgByIdSubCommand.java
(printMsg), PrintMessageByQueueCommand.java (printMessage), SendMessageCommand.java, MessageExt.java. The bytes of a
body are counted in the MessageExt, not printed as numbers; the text behind BODY is the body.

mqadmin leaves the body of every message it shows in a file below /tmp. Ours are written with --body-dir only; otherwise
the label stays, and a line with the beginning of the body follows.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.lines import date_text, write_line
from rmq_store.cli.shared.output import printable, time_text, write_json
from rmq_store.errors import ResponseError, UsageError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from rmq_store import SendResult, StoredMessage
    from rmq_store.broker.monitoring.message_track import MessageTrack

PREVIEW_CHARACTERS = 200

# Names of files: an id may hold whatever its producer wrote.
_FILE_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}", re.ASCII)

_COMPRESSED = 1

_KEY_LINE = "%-50s %4s %40s"
_SEND_LINE = "%-32s  %-4s  %-20s    %s"
RULE = "-" * 56
"""Behind each queue."""


NO_MESSAGE = 208
"""ResponseCode.java"""


def no_message(text: str = "query message by key finished, but no message.") -> ResponseError:
    """The error of MQAdminImpl#queryMessage."""
    return ResponseError(NO_MESSAGE, text)


def charset(name: str) -> str:
    """`name`, if Python knows the encoding, and can replace bytes that are not of it. Raises UsageError."""
    try:
        b"x".decode(found := codecs.lookup(name.strip()).name, "backslashreplace")
        return found
    except (LookupError, UnicodeError):
        raise UsageError(f"unknown character set {name!r}: UTF-8, GBK, ...") from None


def shown(message: StoredMessage, max_message_bytes: int = 0) -> StoredMessage:
    """The message as a client of 5.x shows it: its body inflated (`compression.inflate`), its sysFlag without the
    compressed bit. As it is stored if the body cannot be inflated. `max_message_bytes`: maxMessageSize, 0 if it is
    not known.
    """
    from rmq_store.format.frames.compression import DecompressionError, inflate, plain_bytes_max

    try:
        body = inflate(message.body, message.sys_flag, plain_bytes_max(max_message_bytes))
    except DecompressionError:
        return message
    return replace(message, body=body, sys_flag=message.sys_flag & ~_COMPRESSED)


def java_map(properties: dict[str, str]) -> str:
    """`{a=b, c=d}`."""
    return "{" + ", ".join(f"{name}={value}" for name, value in properties.items()) + "}"


class MessagePrinter:
    """Prints messages as they are `shown`; `track` finds their groups. `max_message_bytes`: as `shown`."""

    def __init__(
        self,
        track: Callable[[StoredMessage], Sequence[MessageTrack]],
        max_message_bytes: int,
        encoding: str | None,
        body_dir: Path | None,
    ) -> None:
        self._track = track
        self._max_message_bytes = max_message_bytes
        self._encoding = encoding
        self._body_dir = body_dir

    def write(self, message: StoredMessage, *, with_offset_id: bool) -> None:
        """All lines of one message, and one for each group of its topic."""
        message = shown(message, self._max_message_bytes)
        path = self._body_path(message)
        rows: list[tuple[str, object]] = [("OffsetID:", message.offset_msg_id)] if with_offset_id else []
        rows += [
            ("Topic:", message.topic),
            ("Tags:", f"[{_or_null(message.tags)}]"),
            ("Keys:", f"[{_or_null(message.keys)}]"),
            ("Queue ID:", message.queue_id),
            ("Queue Offset:", message.queue_offset),
            ("CommitLog Offset:", message.commit_log_offset),
            ("Reconsume Times:", message.reconsume_times),
            ("Born Timestamp:", date_text(message.born_timestamp_ms, millis=True)),
            ("Store Timestamp:", date_text(message.store_timestamp_ms, millis=True)),
            ("Born Host:", message.born_host),
            ("Store Host:", message.store_host),
            ("System Flag:", message.sys_flag),
            ("Properties:", java_map(message.properties)),
            ("Message Body Path:", path or "-"),
        ]
        if path is None or self._encoding is not None:
            rows.append(("Message Body:", self._body_text(message.body)))
        for label, value in rows:
            click.echo(f"{label:<20} {printable(str(value))}")
        tracks = self._track(message)
        click.echo("\n")
        for track in tracks:
            click.echo(printable(str(track)))
        if not tracks:
            click.echo("WARN: No Consumer")

    def as_json(self, message: StoredMessage) -> dict[str, Any]:
        """The message for `write_json`."""
        message = shown(message, self._max_message_bytes)
        found = message_json(message, message.body.decode(self._encoding or "utf-8", "backslashreplace"))
        if (path := self._body_path(message)) is not None:
            found["bodyPath"] = str(path)
        return {**found, "messageTracks": [_track_json(track) for track in self._track(message)]}

    def _body_path(self, message: StoredMessage) -> Path | None:
        if self._body_dir is None:
            return None
        from rmq_store.files import durable

        is_name = _FILE_NAME.fullmatch(message.msg_id)
        path = self._body_dir / (message.msg_id if is_name else message.offset_msg_id)
        durable.make_directory(self._body_dir)
        durable.write_atomically(path, message.body)
        return path

    def _body_text(self, body: bytes) -> str:
        text = body.decode(self._encoding or "utf-8", "backslashreplace")
        if self._encoding is not None or len(text) <= PREVIEW_CHARACTERS:
            return text
        return f"{text[:PREVIEW_CHARACTERS]}... ({len(body)} bytes)"


class MessageLines:
    """Prints messages, one per line. `max_message_bytes`: as `shown`."""

    def __init__(self, encoding: str, with_body: bool, as_json: bool, max_message_bytes: int) -> None:
        self._encoding = encoding
        self._with_body = with_body
        self._as_json = as_json
        self._max_message_bytes = max_message_bytes

    def write(self, message: StoredMessage, broker_name: str) -> None:
        """Print one message as it is `shown`."""
        message = shown(message, self._max_message_bytes)
        text = message.body.decode(self._encoding, "backslashreplace") if self._with_body else None
        if self._as_json:
            write_json(message_json(message, text), one_line=True)
            return
        body = "NOT PRINT BODY" if text is None else text
        line = f"MSGID: {message.msg_id} {java_message(message, broker_name)} BODY: {body}"
        click.echo(printable(line))


def write_found(
    printer: MessagePrinter, found: Sequence[StoredMessage], *, as_json: bool, with_offset_id: bool
) -> None:
    """Print messages with all their fields and groups."""
    if as_json:
        write_json([printer.as_json(message) for message in found])
        return
    for message in found:
        printer.write(message, with_offset_id=with_offset_id)


def write_keys(found: Sequence[StoredMessage], *, as_json: bool) -> None:
    """Print the places of messages that have a key."""
    if as_json:
        write_json([message_json(shown(message), None) for message in found])
        return
    write_line(_KEY_LINE, "#Message ID", "#QID", "#Offset")
    for message in found:
        write_line(_KEY_LINE, message.msg_id, message.queue_id, message.queue_offset)


def write_counts(counted: Counter[str], *, as_json: bool) -> None:
    """Print how many messages have each tag, the most frequent first."""
    if as_json:
        write_json(dict(counted.most_common()), one_line=True)
        return
    for tag, count in counted.most_common():
        write_line("Tag: %-30s Count: %s", tag, count)


def write_sent(result: SendResult, broker_name: str, *, as_json: bool) -> None:
    """Print where a message was stored."""
    if as_json:
        write_json(
            {
                "brokerName": broker_name, "queueId": result.queue_id, "queueOffset": result.queue_offset,
                "sendStatus": result.status.name, "msgId": result.msg_id,
            }
        )  # fmt: skip
        return
    write_line(_SEND_LINE, "#Broker Name", "#QID", "#Send Result", "#MsgId")
    write_line(_SEND_LINE, broker_name, result.queue_id, result.status.name, result.msg_id)


def message_json(message: StoredMessage, body: str | None) -> dict[str, Any]:
    """The fields of a message that is `shown`, under RocketMQ's names."""
    found: dict[str, Any] = {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "msgId": message.msg_id, "offsetMsgId": message.offset_msg_id, "tags": message.tags, "keys": message.keys,
        "commitLogOffset": message.commit_log_offset, "storeSize": message.total_size,
        "reconsumeTimes": message.reconsume_times, "flag": message.flag, "sysFlag": message.sys_flag,
        "bornTimestamp": time_text(message.born_timestamp_ms * 1000), "bornHost": str(message.born_host),
        "storeTimestamp": time_text(message.store_timestamp_ms * 1000), "storeHost": str(message.store_host),
        "bodyCRC": message.body_crc, "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
    }  # fmt: skip
    return found if body is None else {**found, "body": body}


def java_message(message: StoredMessage, broker_name: str) -> str:
    """MessageExt#toString of a message that is `shown`, but with the number of the body's bytes: mqadmin prints every
    byte as a number.
    """
    transaction_id = message.properties.get("__transactionId__")
    return (
        f"MessageExt [brokerName={broker_name}, queueId={message.queue_id}, storeSize={message.total_size}, "
        f"queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp_ms}, bornHost=/{message.born_host}, "
        f"storeTimestamp={message.store_timestamp_ms}, storeHost=/{message.store_host}, "
        f"msgId={message.offset_msg_id}, commitLogOffset={message.commit_log_offset}, bodyCRC={message.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={java_map(message.properties)}, body=[{len(message.body)} bytes], "
        f"transactionId='{_or_null(transaction_id)}'}}]"
    )


def _track_json(track: MessageTrack) -> dict[str, str | None]:
    return {
        "consumerGroup": track.consumer_group, "trackType": str(track.track_type), "exceptionDesc": track.exception_desc
    }  # fmt: skip


def _or_null(text: str | None) -> str:
    return "null" if text is None else text
