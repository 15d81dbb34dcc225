"""Finds single messages as mqadmin does: by key, unique key, id, queue offset, and the traces that clients left of one.
Source: tools/command/message/*.java.

If nothing is found, the error is RocketMQ's NO_MESSAGE, exit code 1. The key of every found message is compared: a hash
collision is never shown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.mqadmin.common import Target, messages_of, mqadmin_command, refused_options
from rmq_store.cli.mqadmin_print.lines import date_text, write_line
from rmq_store.cli.mqadmin_print.messages import MessagePrinter, charset, write_found, write_keys
from rmq_store.cli.mqadmin_print.traces import TRACE_TOPIC, write_traces
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.output import time_text, write_json
from rmq_store.cli.target.command import by_target
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import StoredMessage
    from rmq_store.cli.mqadmin_targets.cluster_messages import ClusterMessages
    from rmq_store.cli.mqadmin_targets.store_messages import StoreMessages

Command = TypeVar("Command", bound=Callable[..., Any])

_LONG_MAX = (1 << 63) - 1
_PORT_MAX = 65_535

# mqadmin finds the route of an LMQ by it.
_LMQ_CLUSTER = by_target(cluster=click.option("-c", "--clusterName", hidden=True, expose_value=False))

_to_client = refused_options(
    ("-g", "--consumerGroup"),
    ("-d", "--clientId"),
    reason="hands the message to a running client, which `rmq` does not do; it is shown without",
)


def _body_options(command: Command) -> Command:
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


@mqadmin_command(
    "queryMsgByKey",
    short_help="The newest 64 messages with a key.",
    epilog="\b\nExample:\n  rmq queryMsgByKey -t OrderTopic -k ORD-000007 --store /data/rocketmq/store",
    unneeded="nc",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-k", "--msgKey", "key", required=True, help="The key: one of a message's KEYS.")
@click.option("-b", "--beginTimestamp", "begin_ms", type=int, default=0, help="Stored at this time (ms) or later.")
@click.option("-e", "--endTimestamp", "end_ms", type=int, default=_LONG_MAX, help="Stored at this time (ms) or before.")
@click.option("-m", "--maxNum", "max_num", type=click.IntRange(1, 64), default=64, show_default=True,
              help="Maximum number of messages.")  # fmt: skip
@_LMQ_CLUSTER
def query_msg_by_key(
    target: Target, as_json: bool, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int
) -> None:
    """The newest 64 messages with a key[cluster:  at each broker]: unique id, queue and offset of each.

    They are printed in the order in which they were stored[store: , as by mqadmin.][cluster:  at each broker. stderr
    says so if a broker has perhaps more. Exit code 1 if a broker does not answer: then its messages are missing, and
    stderr says so.]
    """
    with messages_of(target) as messages:
        write_keys(messages.by_key(topic, key.strip(), begin_ms, end_ms, max_num), as_json=as_json)


@mqadmin_command(
    "queryMsgById",
    short_help="One message by its offset message id.",
    epilog="\b\nExample:\n  rmq queryMsgById -i 7F000001000051AF0000000000009E67 --store /data/rocketmq/store",
    unneeded="nc",
)
@click.option("-i", "--msgId", "msg_ids", required=True, help="Offset message id, or several with commas between.")
@click.option("-t", "--topic", type=TOPIC, help="Topic to search if the id is a unique id.")
@click.option("-u", "--unitName", hidden=True, expose_value=False)
@_to_client
@refused_options(("-s", "--sendMessage"), reason="sends the message again; `rmq sendMessage` sends one")
@_body_options
@_LMQ_CLUSTER
def query_msg_by_id(
    target: Target, as_json: bool, msg_ids: str, topic: str | None, encoding: str | None, body_dir: Path | None
) -> None:
    """One message by its offset message id, made by the broker: all fields, and the groups that have consumed it.

    [cluster: The id has the address of a broker: only an address that a broker of this cluster has registered is
    asked.] A unique id (UNIQ_KEY), made by the producer, looks similar; with -t it is found as well.
    """
    wanted = [msg_id.strip() for msg_id in msg_ids.split(",") if msg_id.strip()]
    with messages_of(target) as messages:
        found = messages.by_ids(wanted, topic)
        _write(messages, found, as_json, encoding, body_dir)


@mqadmin_command(
    "queryMsgByUniqueKey",
    short_help="One message by its unique id.",
    epilog="\b\nExample:\n  rmq queryMsgByUniqueKey -t OrderTopic -i C0000202371F5FFD2B2767134429005D "
    "--store /data/rocketmq/store",
    unneeded="nc",
)
@click.option("-i", "--msgId", "msg_id", required=True, help="The unique id (UNIQ_KEY).")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-a", "--showAll", "shows", type=click.Choice(["all"]), help='"all": show every message with this id.')
@_to_client
@_body_options
@_LMQ_CLUSTER
def query_msg_by_unique_key(
    target: Target, as_json: bool, msg_id: str, topic: str, shows: str | None, encoding: str | None,
    body_dir: Path | None,
) -> None:  # fmt: skip
    """One message by its unique id, made by the producer: all fields, and the groups that have consumed it.

    If a producer repeats a send, the message is stored again with the same id[cluster: , perhaps at another broker].
    The newest is shown; -a all shows each. [store: Copies in retry and dead-letter topics have the same id too: see
    `rmq trace`.][cluster: Exit code 1 if a broker does not answer, which may have others: stderr says so.]
    """
    with messages_of(target) as messages:
        found = messages.by_unique_key(topic, msg_id.strip())
        _write(messages, found if shows else found[:1], as_json, encoding, body_dir, with_offset_id=False)


@mqadmin_command(
    "queryMsgByOffset",
    short_help="One message by its queue offset.",
    epilog="\b\nExample:\n  rmq queryMsgByOffset -t OrderTopic -b golden-a -i 1 -o 7 --store /data/rocketmq/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-b", "--brokerName", "broker", help="The broker's name; a store has one.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), required=True, help="The queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), required=True, help="The offset in the queue.")
@_body_options
def query_msg_by_offset(
    target: Target, as_json: bool, topic: str, broker: str | None, queue_id: int, offset: int, encoding: str | None,
    body_dir: Path | None,
) -> None:  # fmt: skip
    """One message by its queue offset: all fields, and the groups that have consumed it."""
    with messages_of(target) as messages:
        _write(messages, [messages.by_offset(topic, broker, queue_id, offset)], as_json, encoding, body_dir)


def _write(
    messages: StoreMessages | ClusterMessages, found: Sequence[StoredMessage], as_json: bool, encoding: str | None,
    body_dir: Path | None, *, with_offset_id: bool = True,
) -> None:  # fmt: skip
    bytes_max = messages.max_message_bytes
    printer = MessagePrinter(messages.track, bytes_max, encoding and charset(encoding), body_dir)
    write_found(printer, found, as_json=as_json, with_offset_id=with_offset_id)


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


@mqadmin_command(
    "queryMsgTraceById",
    short_help="Trace of a message, written by clients.",
    epilog="\b\nExample:\n  rmq queryMsgTraceById -i C0000202371F5FFD2B2767134429005D --store /data/rocketmq/store",
    unneeded="n",
)
@click.option("-i", "--msgId", "msg_id", required=True, help="The unique id (UNIQ_KEY).")
@click.option("-t", "--traceTopic", "topic", type=TOPIC, default=TRACE_TOPIC, show_default=True,
              help="Topic of the traces.")  # fmt: skip
@click.option("-b", "--beginTimestamp", "begin_ms", type=int, default=0, help="Traces of this time (ms) or later.")
@click.option("-e", "--endTimestamp", "end_ms", type=int, default=_LONG_MAX,
              help="Traces of this time (ms) or before.")  # fmt: skip
@click.option("-c", "--maxNum", "max_num", type=click.IntRange(1, 64), default=64, show_default=True,
              help="Maximum number of trace messages to read.")  # fmt: skip
def query_msg_trace_by_id(
    target: Target, as_json: bool, msg_id: str, topic: str, begin_ms: int, end_ms: int, max_num: int
) -> None:
    """Trace of a message that clients with tracing enabled wrote: its sender, the consumers that got it, and how long
    each took.

    Only clients with tracing write it. `rmq trace` prints [store: the history of a message that the store itself knows,
    without tracing.][cluster: what the brokers know of a message without tracing. Exit code 1 if a broker does not
    answer: stderr says so.]
    """
    with messages_of(target) as messages:
        write_traces(messages.traces(msg_id, topic, begin_ms, end_ms, max_num), as_json=as_json)


COMMANDS = (query_msg_by_id, query_msg_by_key, query_msg_by_unique_key, query_msg_by_offset, decode_message_id)
