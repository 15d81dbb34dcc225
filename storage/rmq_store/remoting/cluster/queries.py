"""Look-ups of messages by key and by id, and figures of brokers (MQAdminImpl.java, QueryMessageProcessor.java)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, BrokerError, Question, gather
from rmq_store.remoting.cluster.routes import RegisteredProcess
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info
from rmq_store.remoting.questions.messages import (
    ask_message,
    ask_messages_by_key,
    read_message,
    read_messages_by_key,
)
from rmq_store.remoting.transport.connector import hosts_of
from rmq_store.remoting.transport.settings import parse_address

KEY_MAX: Final = 64
UNIQUE_KEY_MAX: Final = 32
"""So many messages a broker finds at most for one key, whatever it is asked for."""
QUERY_TIMEOUT_MS: Final = 18_000
END_OF_TIME_MS: Final = (1 << 63) - 1


OnMissing: TypeAlias = Callable[[str, BrokerError], object]
"""Told of a broker that refuses, or whose master and slaves do not answer, and why."""


class Found(NamedTuple):
    """The messages that one broker has found, as frames. `is_full`: as many as it gives at most, so perhaps not all.

    A broker compares hashes: the caller compares the keys.
    """

    broker_name: str
    frames: bytes
    is_full: bool


def query_by_key(
    cluster: Cluster,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    max_num: int = KEY_MAX,
    on_missing: OnMissing | None = None,
) -> list[Found]:
    """The messages of a topic with a key, stored in [begin_ms, end_ms], from each of its brokers (12). With
    `on_missing` a broker that does not tell is left out.

    Raises:
        UnknownTopicError: no broker has the topic.
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave of a broker answers.
    """
    max_num = min(max_num, KEY_MAX)
    return _query(cluster, topic, key, begin_ms, end_ms, max_num, on_missing, is_unique_key=False)


def query_by_unique_key(
    cluster: Cluster,
    topic: str,
    unique_key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    on_missing: OnMissing | None = None,
) -> list[Found]:
    """The messages of a topic with a UNIQ_KEY. As `query_by_key`."""
    return _query(cluster, topic, unique_key, begin_ms, end_ms, UNIQUE_KEY_MAX, on_missing, is_unique_key=True)


def copies_by_key(
    cluster: Cluster,
    topics: Iterable[str],
    broker_names: Iterable[str],
    key: str,
    *,
    on_missing: OnMissing,
    is_unique_key: bool = True,
) -> list[Found]:
    """The messages with a UNIQ_KEY, or a key, in several topics at each of these brokers, whether it has the topics or
    not. All are asked at once. A broker that does not tell is left out.
    """
    places = [(name, topic) for topic in topics for name in broker_names]
    max_num = UNIQUE_KEY_MAX if is_unique_key else KEY_MAX
    return _ask(cluster, places, key, 0, END_OF_TIME_MS, max_num, on_missing, is_unique_key=is_unique_key)


def _query(
    cluster: Cluster,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    max_num: int,
    on_missing: OnMissing | None,
    *,
    is_unique_key: bool,
) -> list[Found]:
    places = [(name, topic) for name in sorted(cluster.known_route(topic).queues)]
    return _ask(cluster, places, key, begin_ms, end_ms, max_num, on_missing, is_unique_key=is_unique_key)


def _ask(
    cluster: Cluster,
    places: Sequence[tuple[str, str]],
    key: str,
    begin_ms: int,
    end_ms: int,
    max_num: int,
    on_missing: OnMissing | None,
    *,
    is_unique_key: bool,
) -> list[Found]:
    """`places`: broker and topic of each question."""
    questions = {
        (name, topic): Question(
            name,
            ask_messages_by_key(
                cluster, topic, key,
                begin_ms=begin_ms, end_ms=end_ms, max_num=max_num, is_unique_key=is_unique_key,
            ),
            read_messages_by_key,
        )
        for name, topic in places
    }  # fmt: skip
    found = []
    for one in gather(cluster, questions, At.READABLE, timeout_ms=QUERY_TIMEOUT_MS).told.values():
        if one.error is not None and on_missing is not None:
            on_missing(one.broker_name, one.error)
        elif frames := one.required():
            found.append(Found(one.broker_name, frames, _frame_count(frames) >= max_num))
    return found


def view_message(cluster: Cluster, offset_message_id: str) -> Found | None:
    """The message of an offset id (33), from the broker whose address is in the id; None: not there.

    An id names an address, and anybody can make one. Only addresses of the routes are asked.

    Raises:
        UsageError: the text is no offset id, or no broker of this cluster has registered its address.
        MQBrokerError: it refuses. RemotingError: it does not answer.
    """
    host, offset = parse_offset_message_id(offset_message_id)
    owners, is_sure = _owners(cluster, host)
    if not owners:
        raise UsageError(
            f"message id {offset_message_id!r} names the broker {host}, which is none of this cluster: nothing was "
            "asked"
        )
    failure: RemotingError | None = None
    for name, broker_id, _ in owners:
        try:
            answer = cluster.call_broker(name, ask_message(offset, name), broker_id=broker_id, ok=None)
        except RemotingError as error:
            failure = failure or error
            continue
        frame = read_message(answer, name)
        if frame and (is_sure or _is_of(frame, host, offset)):
            return Found(name, frame, False)
    if failure is not None:
        raise failure
    return None


def _owners(cluster: Cluster, host: Host) -> tuple[list[RegisteredProcess], bool]:
    """The processes that may have a message whose id names `host`, and whether their addresses say so for sure.

    A broker that has registered a name (brokerIP1) writes the IP address into ids that it had for this name at its
    start. So names are resolved here, and targets of the address map as well. A name that cannot be resolved here, as
    one of a container, may stand for any address: its port decides, and then the message itself.
    """
    known = list(dict.fromkeys(cluster.routes.processes()))
    same = [one for one in known if one.address == str(host)]
    if same:
        return same[:1], True
    unresolved = []
    for one in known:
        registered, target = parse_address(one.address), cluster.settings.target_of(one.address)
        if host.port not in (registered.port, target.port):
            continue
        hosts = hosts_of(registered)
        if host in hosts or host in hosts_of(target):
            same.append(one)
        elif not hosts and registered.port == host.port:
            unresolved.append(one)
    return (same, True) if same else (sorted(unresolved, key=lambda one: one.broker_id), False)


def _is_of(frame: bytes, host: Host, offset: int) -> bool:
    """Whether the message in an answer has this place: another broker may have other bytes at the offset."""
    from rmq_store.format.frames.stored_message import decode_frame

    try:
        message = decode_frame(memoryview(frame), 0, len(frame))
    except CorruptRecordError:
        return False
    return (message.store_host, message.commit_log_offset) == (host, offset)


def _frame_count(frames: bytes) -> int:
    from rmq_store.format.frames.frame_walk import frames_of_answer

    return len(frames_of_answer(frames)[0])


class LogFigure(NamedTuple):
    """Where a broker's commit log begins and ends, in bytes, by the process that told it.

    `dispatch_behind_bytes`: so much of the log is not in the queues yet.
    """

    min_offset: int
    max_offset: int
    dispatch_behind_bytes: int
    broker_id: int
    address: str


def log_figures(cluster: Cluster, broker_names: Sequence[str]) -> dict[str, LogFigure | BrokerError | None]:
    """The figure of each broker, all asked at once (28); a slave's while the master does not answer. An error: nobody
    answers, or the broker is busy. None: the broker refuses, or tells no such figure.
    """
    asked = {name: Question(name, ask_runtime_info(), checked) for name in broker_names}
    found: dict[str, LogFigure | BrokerError | None] = {}
    for name, one in gather(cluster, asked, At.READABLE).told.items():
        if one.error is None:
            found[name] = _figure_of(one.required(), one.broker_id)
        else:
            found[name] = one.error if one.is_away else None
    return found


def _figure_of(answer: RemotingCommand, broker_id: int) -> LogFigure | None:
    texts = read_runtime_info(answer, "")
    first, end, behind = (
        texts.get(name, "") for name in ("commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes")
    )
    if not (first.isdecimal() and end.isdecimal()):
        return None
    return LogFigure(int(first), int(end), int(behind) if behind.isdecimal() else 0, broker_id, answer.came_from)
