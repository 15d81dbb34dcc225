"""Offsets of queues and of groups: ends, look-ups by time, commits, resets.

Source: ConsumerManageProcessor.java, AdminBrokerProcessor.java, ResetOffsetByTimeCommand.java.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from itertools import islice

import numpy as np

from rmq_store.format.frames.frame_fields import frame_columns
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.answers import PULL_CODES
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import IN_FLIGHT_MAX, Cluster
from rmq_store.remoting.cluster.pull_request import PullRequests, answer_of
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.offsets import (
    ConsumerOffset,
    ask_commit,
    ask_consumer_offset,
    ask_max_offset,
    ask_min_offset,
    ask_offset_by_time,
    read_consumer_offset,
    read_offset_by_time,
    read_range,
)


def queue_ranges(cluster: Cluster, queues: Collection[MessageQueue]) -> dict[MessageQueue, QueueRange]:
    """The ranges of queues, by two requests each (31, 30), all at once; (0, 0) for a queue that its broker does not
    have. For single queues, also those that nobody may read or write any more: those of a topic come by fewer requests
    (`topics.ends_at_brokers`). A slave's ranges may end early.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave answers.
    """
    asked = list(queues)
    commands = end_requests(cluster, asked)
    answers = cluster.read_all(commands)
    pairs = zip(answers[::2], answers[1::2], strict=True)
    return {queue: read_range(*pair, queue.broker_name) for queue, pair in zip(asked, pairs, strict=True)}


def end_requests(cluster: Cluster, queues: Collection[MessageQueue]) -> list[tuple[str, RemotingCommand]]:
    """The two requests for the range of each queue, for `read_range`: (broker name, 31), (broker name, 30)."""
    commands = []
    for queue in queues:
        name = queue.broker_name
        commands.append((name, ask_min_offset(cluster, queue)))
        commands.append((name, ask_max_offset(cluster, queue.topic, queue.queue_id, name)))
    return commands


def search_offset(cluster: Cluster, queue: MessageQueue, timestamp_ms: int) -> int:
    """As `search_offsets`, of one queue."""
    return search_offsets(cluster, [queue], timestamp_ms)[queue]


def search_offsets(
    cluster: Cluster, queues: Collection[MessageQueue], timestamp_ms: int
) -> dict[MessageQueue, int]:
    """Of each queue the first offset stored at or after the time; the end of the queue if all are older (29). All
    queues are asked at once.

    Raises as `queue_ranges`.
    """
    asked = list(queues)
    commands = [(queue.broker_name, ask_offset_by_time(cluster, queue, timestamp_ms)) for queue in asked]
    found: dict[MessageQueue, int] = {}
    near: dict[MessageQueue, int] = {}
    for queue, given in zip(asked, cluster.read_all(commands), strict=True):
        told = read_offset_by_time(given, queue.broker_name)
        (near if told.is_near else found)[queue] = told.offset
    return found | _first_stored(cluster, near, timestamp_ms)


def _first_stored(cluster: Cluster, near: Mapping[MessageQueue, int], timestamp_ms: int) -> dict[MessageQueue, int]:
    """Of each queue the first offset stored at or after the time, by pulls of single messages around `near`. Each round
    has one pull of each queue that is not done.
    """
    ranges = queue_ranges(cluster, near) if near else {}
    found: dict[MessageQueue, int] = {}
    searches = {queue: _search(near[queue], *limits) for queue, limits in ranges.items()}
    looks_at: dict[MessageQueue, int] = {}

    def goes_on(queue: MessageQueue, was_older: bool | None) -> None:
        try:
            looks_at[queue] = searches[queue].send(was_older)
        except StopIteration as end:
            looks_at.pop(queue, None)
            found[queue] = end.value

    for queue in searches:
        goes_on(queue, None)
    while looks_at:
        # Bodies wait for each other: no more of them than requests are in flight.
        some = list(islice(looks_at.items(), IN_FLIGHT_MAX))
        commands = [(queue.broker_name, PullRequests(cluster, queue).request(offset, 1)) for queue, offset in some]
        for (queue, offset), given in zip(some, cluster.read_all(commands), strict=True):
            answer = answer_of(checked(given, queue.broker_name, PULL_CODES), queue.broker_name)
            is_stored_before = bool(answer.frames) and store_timestamp_ms(answer.frames) < timestamp_ms
            goes_on(queue, offset < answer.min_offset or is_stored_before)
    return found


def _search(near: int, start: int, end: int) -> Generator[int, bool | None, int]:
    """Yields offsets of [start, end), and is told whether each message is older; returns the first that is not."""
    near = min(max(near, start), end)
    step = 1
    if near < end and (yield near):
        first, last = near + 1, end
        while near + step < end:
            if not (yield near + step):
                last = near + step
                break
            first, step = near + step + 1, step * 2
    else:
        first, last = start, near
        while near - step >= start:
            if (yield near - step):
                first = near - step + 1
                break
            last, step = near - step, step * 2
    while first < last:
        middle = (first + last) // 2
        if (yield middle):
            first = middle + 1
        else:
            last = middle
    return first


def store_timestamp_ms(frames: bytes) -> int:
    """When the first message of an answer to a pull was stored."""
    import pyarrow as pa

    positions, sizes = frames_of_answer(frames)
    headers = frame_columns(pa.py_buffer(frames), positions[:1], sizes[:1].astype(np.int32))
    return int(headers.store_timestamp[0])


def query_consumer_offset(
    cluster: Cluster, group: str, queue: MessageQueue, *, set_zero_if_not_found: bool | None = None
) -> int | None:
    """The group's committed offset (14); None: it has none (22). A broker answers 0 for a new group and a queue that
    still has its first messages, unless `set_zero_if_not_found` is False, which only 5.x brokers know.

    Raises as `queue_ranges`.
    """
    found = query_consumer_offsets(cluster, group, [queue], set_zero_if_not_found=set_zero_if_not_found)
    return found[queue].offset if queue in found else None


def query_consumer_offsets(
    cluster: Cluster, group: str, queues: Collection[MessageQueue], *, set_zero_if_not_found: bool | None = False
) -> dict[MessageQueue, ConsumerOffset]:
    """The group's committed offsets, all asked for at once; queues without one are left out. See
    `query_consumer_offset`.
    """
    asked = list(queues)
    answers = _asked(cluster, group, asked, set_zero_if_not_found=set_zero_if_not_found)
    told = zip(asked, answers, strict=True)
    found = {queue: read_consumer_offset(given, queue.broker_name) for queue, given in told}
    return {queue: offset for queue, offset in found.items() if offset is not None}


def _asked(
    cluster: Cluster, group: str, queues: Collection[MessageQueue], *, set_zero_if_not_found: bool | None
) -> list[RemotingCommand | RemotingError]:
    """The answers of brokers about the group's offsets (14), one for each queue."""
    commands = [
        (queue.broker_name, ask_consumer_offset(cluster, group, queue, set_zero_if_not_found=set_zero_if_not_found))
        for queue in queues
    ]
    return cluster.read_all(commands)


def update_consumer_offsets(
    cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Commit offsets (15) at their masters, and return what stands there now: another one if a reset of the group is
    pending, which the broker then keeps. An error is raised after all brokers have answered, so the offsets of
    the others are committed.

    Raises:
        MQBrokerError: 26 the group does not exist at this broker (5.x; `groups.create_group`), 17, 16.
        RemotingError: no answer; the master does not answer, and an offset is never committed to a slave.
    """
    stands: dict[MessageQueue, int] = {}
    failure: MQBrokerError | RemotingError | None = None
    for queue, outcome in try_update_consumer_offsets(cluster, group, offsets).items():
        if isinstance(outcome, int):
            stands[queue] = outcome
        else:
            failure = failure or outcome
    if failure is not None:
        raise failure
    return stands


def try_update_consumer_offsets(
    cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int | MQBrokerError | RemotingError]:
    """As `update_consumer_offsets`, but raises nothing: of each queue what stands at its broker now, or the error.

    The first queue of each topic goes alone. A broker makes the group's table of a topic at the first commit, and of
    two commits at once each makes one: the later table takes the offset of the other away, though both were answered
    with success (ConsumerOffsetManager.commitOffset).
    """
    outcomes: dict[MessageQueue, int | MQBrokerError | RemotingError] = dict(offsets)
    first = {(queue.broker_name, queue.topic): queue for queue in reversed(list(offsets))}
    answers = _committed(cluster, group, offsets, list(first.values()))
    without = {place for place, queue in first.items() if isinstance(answers[queue], RemotingError)}
    others = [queue for queue in offsets if queue not in answers]
    for queue in others:
        if (queue.broker_name, queue.topic) in without:
            answers[queue] = answers[first[queue.broker_name, queue.topic]]
    answers |= _committed(cluster, group, offsets, [queue for queue in others if queue not in answers])
    pending: list[MessageQueue] = []
    for queue, given in answers.items():
        try:
            answer = checked(given, queue.broker_name)
        except MQBrokerError as error:
            outcomes[queue] = _explained(error, group)
        except RemotingError as error:
            outcomes[queue] = error
        else:
            if answer.remark:  # "Offset has been previously reset": the broker ignored the commit
                pending.append(queue)
    for queue, given in zip(pending, _asked(cluster, group, pending, set_zero_if_not_found=None), strict=True):
        try:
            stands = read_consumer_offset(given, queue.broker_name)
        except (MQBrokerError, RemotingError) as error:
            outcomes[queue] = error
        else:
            if stands is not None:
                outcomes[queue] = stands.offset
    return outcomes


def _committed(
    cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int], queues: Collection[MessageQueue]
) -> dict[MessageQueue, RemotingCommand | RemotingError]:
    """The answers of brokers to commits of these queues (15), all sent at once."""
    commands = [(queue.broker_name, ask_commit(cluster, group, queue, offsets[queue])) for queue in queues]
    return dict(zip(queues, cluster.call_all(commands), strict=True))


def _explained(error: MQBrokerError, group: str) -> MQBrokerError:
    if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return error
    remark = f"{error.remark}; the group {group!r} is not there at this broker: create it (rmq updateSubGroup)"
    return MQBrokerError(error.response_code, remark, error.broker_name, error.address)
