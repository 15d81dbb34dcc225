"""Finds single messages in a cluster: by key, unique key, id, queue offset, and their traces.

Every broker of the topic is asked; the key of every found message is compared. Source: MQAdminImpl.java,
tools/command/message/*.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.cluster_mqadmin.common import LMQ_CLUSTER, like, require_route
from rmq_store.cli.mqadmin import message as store_commands
from rmq_store.cli.mqadmin import message_dump
from rmq_store.cli.mqadmin.message import no_message, write_found, write_keys
from rmq_store.cli.mqadmin.message_dump import TRACE_TOPIC, trace_views, write_traces
from rmq_store.cli.mqadmin.message_print import MessagePrinter, charset
from rmq_store.cli.shared.output import printable
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import StoredMessage
    from rmq_store.cli.target.answers import Answers
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.queries import Found


@like(store_commands.query_msg_by_key, LMQ_CLUSTER)
def query_msg_by_key(
    target: ClusterTarget, as_json: bool, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int
) -> None:
    """The newest 64 messages with a key at each broker: unique id, queue and offset of each.

    They are printed in the order in which they were stored at each broker. stderr says so if a broker has perhaps more.
    Exit code 1 if a broker does not answer: then its messages are missing, and stderr says so.
    """
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.queries import query_by_key

    wanted = key.strip()
    with target.open() as cluster:
        require_route(cluster, topic)
        asked = Answers(cluster)
        answers = query_by_key(
            cluster, topic, wanted, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num, on_missing=asked.failed
        )
    _tell_full(answers)
    found = [message for _, message in messages_of(cluster, answers) if wanted in (message.keys or "").split(" ")]
    if not found:
        asked.require_all()
        raise no_message()
    write_keys(found, as_json=as_json)
    asked.report()


@like(store_commands.query_msg_by_id, LMQ_CLUSTER)
def query_msg_by_id(
    target: ClusterTarget, as_json: bool, msg_ids: str, topic: str | None, encoding: str | None, body_dir: Path | None
) -> None:
    """One message by its offset message id, made by the broker: all fields, and the groups that have consumed it.

    The id has the address of a broker: only an address that a broker of this cluster has registered is asked. A unique
    id (UNIQ_KEY), made by the producer, looks similar; with -t it is found as well.
    """
    from rmq_store.cli.target.answers import Answers

    wanted = [msg_id.strip() for msg_id in msg_ids.split(",") if msg_id.strip()]
    with target.open() as cluster:
        asked = Answers(cluster)
        found = [_by_any_id(cluster, msg_id, topic, asked) for msg_id in wanted]
        _write(cluster, found, as_json, encoding, body_dir, with_offset_id=True)
        asked.report()


def _by_any_id(cluster: Cluster, msg_id: str, topic: str | None, asked: Answers) -> tuple[str, StoredMessage]:
    """MQAdminImpl#viewMessage: an offset id, otherwise a unique id."""
    from rmq_store.format.text.ids import check_message_id
    from rmq_store.remoting.cluster.queries import view_message

    check_message_id(msg_id)
    reason = "no such message"
    try:
        answer = view_message(cluster, msg_id)
        if answer is not None:
            return messages_of(cluster, [answer])[0]
    except UsageError as error:
        reason = str(error)
    if topic is None:
        hint = f"if a producer made this id: rmq queryMsgByUniqueKey -i {msg_id} -t TOPIC"
        raise no_message(f"{reason}; {hint}")
    return _by_unique_key(cluster, topic, msg_id, asked)[0]


@like(store_commands.query_msg_by_unique_key, LMQ_CLUSTER)
def query_msg_by_unique_key(
    target: ClusterTarget,
    as_json: bool,
    msg_id: str,
    topic: str,
    shows: str | None,
    encoding: str | None,
    body_dir: Path | None,
) -> None:
    """One message by its unique id, made by the producer: all fields, and the groups that have consumed it.

    If a producer repeats a send, the message is stored again with the same id, perhaps at another broker. The newest is
    shown; -a all shows each. Exit code 1 if a broker does not answer, which may have others: stderr says so.
    """
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        asked = Answers(cluster)
        found = _by_unique_key(cluster, topic, msg_id.strip(), asked)
        _write(cluster, found if shows else found[:1], as_json, encoding, body_dir, with_offset_id=False)
        asked.report()


def _by_unique_key(cluster: Cluster, topic: str, msg_id: str, asked: Answers) -> list[tuple[str, StoredMessage]]:
    """(broker, message), the newest first."""
    from rmq_store.remoting.cluster.queries import query_by_unique_key

    require_route(cluster, topic)
    answers = query_by_unique_key(cluster, topic, msg_id, on_missing=asked.failed)
    _tell_full(answers)
    found = [(name, one) for name, one in messages_of(cluster, answers) if msg_id in (one.msg_id, one.java_unique_key)]
    if not found:
        asked.require_all()
        raise no_message()
    return sorted(found, key=lambda one: one[1].store_timestamp_ms, reverse=True)


@like(store_commands.query_msg_by_offset)
def query_msg_by_offset(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    broker: str | None,
    queue_id: int,
    offset: int,
    encoding: str | None,
    body_dir: Path | None,
) -> None:
    """One message by its queue offset: all fields, and the groups that have consumed it."""
    from rmq_store.remoting.cluster.pull_request import pull
    from rmq_store.remoting.cluster.queries import Found as Answer

    with target.open() as cluster:
        queue = queue_of(cluster, topic, broker, queue_id)
        answer = pull(cluster, queue, offset, 1, target.filter())
        found = messages_of(cluster, [Answer(queue.broker_name, answer.frames, False)])
        if not found or found[0][1].queue_offset != offset:
            span = f"[{answer.min_offset}, {answer.max_offset})"
            raise no_message(f"{queue.broker_name} queue {queue_id} of {topic} has the offsets {span}, not {offset}")
        _write(cluster, found[:1], as_json, encoding, body_dir, with_offset_id=True)


def queue_of(cluster: Cluster, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
    """A queue of a topic that may be read. `broker` None: the only broker that has it.

    Raises:
        UsageError: no broker, or several, have such a queue. UnknownTopicError: no broker has the topic.
    """
    queues = [one for one in require_route(cluster, topic).read_queues() if one.queue_id == queue_id]
    found = [one for one in queues if broker is None or one.broker_name == broker.strip()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.broker_name for one in queues) or "none"
    if found:
        raise UsageError(f"several brokers have a queue {queue_id} of {topic}: name one of {names}")
    where = "no broker" if broker is None else f"broker {broker.strip()!r}"
    raise UsageError(f"topic {topic} has a queue {queue_id} at these brokers: {names}; asked for is {where}")


@like(message_dump.query_msg_trace_by_id)
def query_msg_trace_by_id(
    target: ClusterTarget, as_json: bool, msg_id: str, topic: str, begin_ms: int, end_ms: int, max_num: int
) -> None:
    """Trace of a message that clients with tracing enabled wrote: its sender, the consumers that got it, and how long
    each took.

    Only clients with tracing write it. `rmq trace` prints what the brokers know of a message without tracing. Exit code
    1 if a broker does not answer: stderr says so.
    """
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.queries import query_by_key

    with target.open() as cluster:
        asked = Answers(cluster)
        answers: list[Found] = []
        if topic != TRACE_TOPIC or cluster.refresh_route(topic) is not None:
            require_route(cluster, topic)
            answers = query_by_key(
                cluster, topic, msg_id, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num, on_missing=asked.failed
            )
    _tell_full(answers)
    found = [view for _, one in messages_of(cluster, answers) for view in trace_views(one, msg_id)]
    if not found:
        asked.require_all()
        raise no_message("query message by key finished, but no message. No client traced it.")
    write_traces(found, as_json=as_json)
    asked.report()


def messages_of(cluster: Cluster, answers: Iterable[Found]) -> list[tuple[str, StoredMessage]]:
    """(broker, message) of frames, topics without the namespace. CorruptRecordError: a frame is no sound message."""
    from rmq_store.format.frames.frame_walk import frames_of_answer
    from rmq_store.format.frames.stored_message import decode_frame

    found = []
    for answer in answers:
        view = memoryview(answer.frames)
        positions, _ = frames_of_answer(view)
        for at in positions:
            one = decode_frame(view, int(at), len(view))
            found.append((answer.broker_name, replace(one, topic=cluster.plain_name(one.topic))))
    return found


def _tell_full(answers: Iterable[Found]) -> None:
    for answer in answers:
        if answer.is_full:
            text = f"rmq: broker {answer.broker_name} gives no more messages in one answer: there may be more"
            click.echo(printable(text), err=True)


def _write(
    cluster: Cluster,
    found: Sequence[tuple[str, StoredMessage]],
    as_json: bool,
    encoding: str | None,
    body_dir: Path | None,
    *,
    with_offset_id: bool,
) -> None:
    from rmq_store.cli.cluster_mqadmin.tracks import ClusterTracker

    tracker = ClusterTracker(cluster, {one.offset_msg_id: name for name, one in found})
    printer = MessagePrinter(tracker.track, 0, encoding and charset(encoding), body_dir)
    write_found(printer, [one for _, one in found], as_json=as_json, with_offset_id=with_offset_id)


COMMANDS = (query_msg_by_id, query_msg_by_key, query_msg_by_unique_key, query_msg_by_offset, query_msg_trace_by_id)
