"""Finds single messages as mqadmin does: by key, unique key, id, queue offset. Source: tools/command/message/*.java.

If nothing is found, the error is RocketMQ's NO_MESSAGE, exit code 1. The key of every found message is compared: a hash
collision is never shown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.mqadmin.common import mqadmin_options, refused_options
from rmq_store.cli.mqadmin.message_print import MessagePrinter, charset, message_json, shown
from rmq_store.cli.mqadmin_print.lines import date_text, write_line
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.name_lookup import require_queue, require_topic
from rmq_store.cli.shared.output import open_store, time_text, write_json
from rmq_store.errors import OffsetOutOfRangeError, ResponseError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store, StoredMessage

Command = TypeVar("Command", bound=Callable[..., Any])

NO_MESSAGE = 208
"""ResponseCode.java"""

_LONG_MAX = (1 << 63) - 1
_PORT_MAX = 65_535
_KEY_LINE = "%-50s %4s %40s"


_to_client = refused_options(
    ("-g", "--consumerGroup"),
    ("-d", "--clientId"),
    reason="hands the message to a running client, which `rmq` does not do; it is shown without",
)


def body_options(command: Command) -> Command:
    """Add -f and --body-dir; the command gets `encoding: str | None` and `body_dir: Path | None`."""
    command = click.option(
        "--body-dir",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write each body to a file in DIR, named after the message's id. (mqadmin writes to "
        "/tmp/rocketmq/msgbodys.)",
    )(command)
    return click.option(
        "-f", "--bodyFormat", "encoding", metavar="CHARSET",
        help="Print the whole body, decoded with this character set, not only its beginning.",
    )(command)  # fmt: skip


def no_message(text: str = "query message by key finished, but no message.") -> ResponseError:
    """The error of MQAdminImpl#queryMessage."""
    return ResponseError(NO_MESSAGE, text)


@click.command(
    "queryMsgByKey",
    short_help="The newest 64 messages with a key.",
    epilog="\b\nExample:\n  rmq queryMsgByKey -t OrderTopic -k ORD-000007 --store /data/rocketmq/store",
)
@mqadmin_options("nc")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-k", "--msgKey", "key", required=True, help="The key: one of a message's KEYS.")
@click.option("-b", "--beginTimestamp", "begin_ms", type=int, default=0, help="Stored at this time (ms) or later.")
@click.option("-e", "--endTimestamp", "end_ms", type=int, default=_LONG_MAX, help="Stored at this time (ms) or before.")
@click.option("-m", "--maxNum", "max_num", type=click.IntRange(1, 64), default=64, show_default=True,
              help="Maximum number of messages.")  # fmt: skip
def query_msg_by_key(root: Path, as_json: bool, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> None:
    """The newest 64 messages with a key: unique id, queue and offset of each.

    They are printed in the order in which they were stored, as by mqadmin.
    """
    with open_store(root) as store:
        require_topic(store, topic)
        found = store.query.by_key(topic, key.strip(), begin_ms=begin_ms, end_ms=end_ms, max_num=max_num)
    if not found:
        raise no_message()
    found.reverse()  # a broker sorts by place in the log (DefaultMessageStore#queryMessage)
    write_keys(found, as_json=as_json)


@click.command(
    "queryMsgById",
    short_help="One message by its offset message id.",
    epilog="\b\nExample:\n  rmq queryMsgById -i 7F000001000051AF0000000000009E67 --store /data/rocketmq/store",
)
@mqadmin_options("nc")
@click.option("-i", "--msgId", "msg_ids", required=True, help="Offset message id, or several with commas between.")
@click.option("-t", "--topic", type=TOPIC, help="Topic to search if the id is a unique id.")
@click.option("-u", "--unitName", hidden=True, expose_value=False)
@_to_client
@refused_options(("-s", "--sendMessage"), reason="sends the message again; `rmq sendMessage` sends one")
@body_options
def query_msg_by_id(
    root: Path, as_json: bool, msg_ids: str, topic: str | None, encoding: str | None, body_dir: Path | None
) -> None:
    """One message by its offset message id, made by the broker: all fields, and the groups that have consumed it.

    A unique id (UNIQ_KEY), made by the producer, looks similar; with -t it is found as well.
    """
    wanted = [msg_id.strip() for msg_id in msg_ids.split(",") if msg_id.strip()]
    with open_store(root) as store:
        found = [_by_any_id(store, msg_id, topic) for msg_id in wanted]
        _write(store, found, as_json, encoding, body_dir, with_offset_id=True)


def _by_any_id(store: Store, msg_id: str, topic: str | None) -> StoredMessage:
    """MQAdminImpl#viewMessage: an offset id, otherwise a unique id."""
    from rmq_store.format.text.ids import check_message_id

    check_message_id(msg_id)
    try:
        return store.query.by_offset_id(msg_id)
    except UsageError as error:
        if topic is None:
            hint = f"if a producer made this id: rmq queryMsgByUniqueKey -i {msg_id} -t TOPIC"
            raise ResponseError(NO_MESSAGE, f"{error}; {hint}") from error
    require_topic(store, topic)
    found = store.query.by_unique_key(topic, msg_id, begin_ms=0)
    if not found:
        raise no_message()
    return found[0]


@click.command(
    "queryMsgByUniqueKey",
    short_help="One message by its unique id.",
    epilog="\b\nExample:\n  rmq queryMsgByUniqueKey -t OrderTopic -i C0000202371F5FFD2B2767134429005D "
    "--store /data/rocketmq/store",
)
@mqadmin_options("nc")
@click.option("-i", "--msgId", "msg_id", required=True, help="The unique id (UNIQ_KEY).")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-a", "--showAll", "shows", type=click.Choice(["all"]), help='"all": show every message with this id.')
@_to_client
@body_options
def query_msg_by_unique_key(
    root: Path,
    as_json: bool,
    msg_id: str,
    topic: str,
    shows: str | None,
    encoding: str | None,
    body_dir: Path | None,
) -> None:
    """One message by its unique id, made by the producer: all fields, and the groups that have consumed it.

    If a producer repeats a send, the message is stored again with the same id. The newest is shown; -a all shows each.
    Copies in retry and dead-letter topics have the same id too: see `rmq trace`.
    """
    with open_store(root) as store:
        require_topic(store, topic)
        found = store.query.by_unique_key(topic, msg_id.strip(), begin_ms=0)
        if not found:
            raise no_message()
        _write(store, found if shows else found[:1], as_json, encoding, body_dir, with_offset_id=False)


@click.command(
    "queryMsgByOffset",
    short_help="One message by its queue offset.",
    epilog="\b\nExample:\n  rmq queryMsgByOffset -t OrderTopic -b golden-a -i 1 -o 7 --store /data/rocketmq/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-b", "--brokerName", "broker", help="The broker's name; a store has one.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), required=True, help="The queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), required=True, help="The offset in the queue.")
@body_options
def query_msg_by_offset(
    root: Path,
    as_json: bool,
    topic: str,
    broker: str | None,
    queue_id: int,
    offset: int,
    encoding: str | None,
    body_dir: Path | None,
) -> None:
    """One message by its queue offset: all fields, and the groups that have consumed it."""
    with open_store(root) as store:
        require_broker(store, broker)
        require_queue(store, topic, queue_id)
        try:
            found = store.query.by_queue_offset(topic, queue_id, offset)
        except OffsetOutOfRangeError as error:
            raise ResponseError(NO_MESSAGE, str(error)) from error
        _write(store, [found], as_json, encoding, body_dir, with_offset_id=True)


def require_broker(store: Store, name: str | None) -> None:
    """Raise UsageError if -b names another broker than the store's, instead of answering with its messages."""
    if name is not None and name.strip() != store.broker_name:
        raise UsageError(f"-b {name!r}: this is the store of the broker {store.broker_name!r}")


def _write(
    store: Store,
    found: list[StoredMessage],
    as_json: bool,
    encoding: str | None,
    body_dir: Path | None,
    *,
    with_offset_id: bool,
) -> None:
    from rmq_store.broker.monitoring.message_track import Tracker

    bytes_max = store.config.max_message_size
    printer = MessagePrinter(Tracker(store).track, bytes_max, encoding and charset(encoding), body_dir)
    write_found(printer, found, as_json=as_json, with_offset_id=with_offset_id)


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


@click.command(
    "DecodeMessageId",
    short_help="Decode a message id: host, time, offset.",
    epilog="\b\nExample:\n  rmq DecodeMessageId -i C0000202371F5FFD2B2767134429005D",
)
@click.option("-i", "--messageId", "msg_id", required=True, help="A message id of 32 or 56 hex digits.")
@click.option("-n", "--namesrvAddr", hidden=True, expose_value=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decode_message_id(msg_id: str, as_json: bool) -> None:
    """Decode a message id: as a unique id, made by a producer (its host, and the time when it was made, UTC), and, if
    possible, as an offset id, made by a broker (its host, and the log offset). No store is needed.

    A unique id holds its time only within a month: the latest month that is not in the future is shown.
    """
    from rmq_store import clock
    from rmq_store.format.text.ids import month_start_ms, parse_offset_message_id, parse_unique_id

    now_ms = clock.system_clock()
    unique = parse_unique_id(msg_id.strip())
    start_ms = month_start_ms(now_ms)
    made_ms = unique.time_ms(now_ms, start_ms, month_start_ms(start_ms - 1))
    ip = str(ipaddress.ip_address(unique.address))
    found: dict[str, Any] = {"ip": ip, "date": time_text(made_ms * 1000), "pid": unique.pid, "counter": unique.counter}
    try:
        host, offset = parse_offset_message_id(msg_id.strip())
        if 0 <= host.port <= _PORT_MAX:
            found.update(storeHost=str(host), commitLogOffset=offset)
    except UsageError:
        pass  # a unique id whose last bytes are no offset
    if as_json:
        write_json(found)
        return
    found["date"] = date_text(made_ms, millis=True)
    for name, value in found.items():
        write_line("%s", f"{name}={value}")


COMMANDS = (query_msg_by_id, query_msg_by_key, query_msg_by_unique_key, query_msg_by_offset, decode_message_id)
