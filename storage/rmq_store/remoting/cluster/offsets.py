"""Offsets of queues and of groups: ends, look-ups by time, commits, resets.

Source: ConsumerManageProcessor.java, AdminBrokerProcessor.java, ResetOffsetByTimeCommand.java.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from itertools import islice
from types import MappingProxyType

import numpy as np

from rmq_store.format.frames.frame_fields import frame_columns
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import IN_FLIGHT_MAX, Cluster
from rmq_store.remoting.cluster.gather import At, BrokerError, Gathered, Question, Told, gather
from rmq_store.remoting.cluster.pull_request import PullRequests, answer_of
from rmq_store.remoting.questions.offsets import (
    ConsumerOffset,
    ask_commit,
    ask_consumer_offset,
    ask_max_offset,
    ask_min_offset,
    ask_offset_by_time,
    read_commit,
    read_consumer_offset,
    read_max_offset,
    read_min_offset,
    read_offset_by_time,
)


def queue_ranges(cluster: Cluster, queues: Collection[MessageQueue]) -> dict[MessageQueue, QueueRange]:
    """The ranges of queues, see `gather_ranges`.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave answers.
    """
    return gather_ranges(cluster, queues).required()


def gather_ranges(
    cluster: Cluster,
    queues: Collection[MessageQueue],
    at: At = At.READABLE,
    *,
    processes: Mapping[str, int] = MappingProxyType({}),
) -> Gathered[MessageQueue, QueueRange]:
    """The ranges of queues, by two requests each (31, 30), all at once; (0, 0) for a queue that its broker does not
    have. For single queues, also those that nobody may read or write any more: those of a topic come by fewer requests
    (`topics.ends_at_brokers`). A slave's ranges may end early: `Told.broker_id` says who told one of the two.
    """
    questions: dict[tuple[MessageQueue, str], Question[int]] = {}
    for queue in queues:
        name = queue.broker_name
        least, most = ask_min_offset(cluster, queue), ask_max_offset(cluster, queue.topic, queue.queue_id, name)
        # The beginning is asked for first: retention moves it up.
        questions[queue, "start"] = Question(name, least, read_min_offset)
        questions[queue, "end"] = Question(name, most, read_max_offset)
    told = gather(cluster, questions, at, processes=processes).told
    return Gathered({queue: _range(told[queue, "start"], told[queue, "end"]) for queue in queues})


def _range(start: Told[int], end: Told[int]) -> Told[QueueRange]:
    broker_id = max(start.broker_id, end.broker_id)
    for one in (start, end):
        if one.error is not None:
            return Told(one.broker_name, broker_id, None, one.error)
    first = start.required()
    return Told(start.broker_name, broker_id, QueueRange(first, max(end.required(), first)))


def search_offset(cluster: Cluster, queue: MessageQueue, timestamp_ms: int, at: At = At.READABLE) -> int:
    """As `search_offsets`, of one queue."""
    return search_offsets(cluster, [queue], timestamp_ms, at)[queue]


def search_offsets(
    cluster: Cluster, queues: Collection[MessageQueue], timestamp_ms: int, at: At = At.READABLE
) -> dict[MessageQueue, int]:
    """Of each queue the first offset stored at or after the time; the end of the queue if all are older (29). All
    queues are asked at once. A slave's may be a later one, if it came late.

    Raises as `queue_ranges`.
    """
    questions = {
        queue: Question(queue.broker_name, ask_offset_by_time(cluster, queue, timestamp_ms), read_offset_by_time)
        for queue in queues
    }
    found: dict[MessageQueue, int] = {}
    near: dict[MessageQueue, int] = {}
    for queue, told in gather(cluster, questions, at).required().items():
        (near if told.is_near else found)[queue] = told.offset
    return found | _first_stored(cluster, near, timestamp_ms, at)


def _first_stored(
    cluster: Cluster, near: Mapping[MessageQueue, int], timestamp_ms: int, at: At
) -> dict[MessageQueue, int]:
    """Of each queue the first offset stored at or after the time, by pulls of single messages around `near`. Each round
    has one pull of each queue that is not done.
    """
    ranges = gather_ranges(cluster, near, at).required() if near else {}
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
        some = dict(islice(looks_at.items(), IN_FLIGHT_MAX))
        questions = {
            queue: Question(queue.broker_name, PullRequests(cluster, queue).request(offset, 1), answer_of)
            for queue, offset in some.items()
        }
        for queue, answer in gather(cluster, questions, at).required().items():
            offset = some[queue]
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
    found = gather_consumer_offsets(cluster, group, queues, set_zero_if_not_found=set_zero_if_not_found).required()
    return {queue: offset for queue, offset in found.items() if offset is not None}


def gather_consumer_offsets(
    cluster: Cluster, group: str, queues: Collection[MessageQueue], *, set_zero_if_not_found: bool | None = False
) -> Gathered[MessageQueue, ConsumerOffset | None]:
    """The group's committed offsets (14), all asked for at once; None: it has none. A slave's may be older ones."""

    def question(queue: MessageQueue) -> Question[ConsumerOffset | None]:
        command = ask_consumer_offset(cluster, group, queue, set_zero_if_not_found=set_zero_if_not_found)
        return Question(queue.broker_name, command, read_consumer_offset)

    return gather(cluster, {queue: question(queue) for queue in queues}, At.READABLE)


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
    failure: BrokerError | None = None
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
) -> dict[MessageQueue, int | BrokerError]:
    """As `update_consumer_offsets`, but raises nothing: of each queue what stands at its broker now, or the error.

    The first queue of each topic goes alone. A broker makes the group's table of a topic at the first commit, and of
    two commits at once each makes one: the later table takes the offset of the other away, though both were answered
    with success (ConsumerOffsetManager.commitOffset).
    """
    firsts = {(queue.broker_name, queue.topic): queue for queue in reversed(list(offsets))}
    questions = {
        queue: Question(queue.broker_name, ask_commit(cluster, group, queue, offset), read_commit)
        for queue, offset in offsets.items()
    }
    first = gather(cluster, {queue: questions[queue] for queue in firsts.values()})
    others = {queue: question for queue, question in questions.items() if queue not in first.told}
    told = {**first.told, **gather(cluster, others, without=first.away).told}
    outcomes: dict[MessageQueue, int | BrokerError] = {}
    for queue, offset in offsets.items():
        error = told[queue].error
        outcomes[queue] = offset if error is None else _explained(error, group)
    pending = [queue for queue, one in told.items() if one.error is None and not one.value]
    for queue, now in gather_consumer_offsets(cluster, group, pending, set_zero_if_not_found=None).told.items():
        if now.error is not None:
            outcomes[queue] = now.error
        elif now.value is not None:
            outcomes[queue] = now.value.offset
    return outcomes


def _explained(error: BrokerError, group: str) -> BrokerError:
    if not isinstance(error, MQBrokerError) or error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return error
    remark = f"{error.remark}; the group {group!r} is not there at this broker: create it (rmq updateSubGroup)"
    return MQBrokerError(error.response_code, remark, error.broker_name, error.address)
