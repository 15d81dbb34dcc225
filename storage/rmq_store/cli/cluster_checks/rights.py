"""The rights of these credentials, asked without a change: reads, and a send to a queue that no topic has.

A broker checks rights before it looks at a request. So the send is refused in any case: for want of rights, or because
of its queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmq_store.cli.checks import FAIL, OK, Finding
from rmq_store.client.delivery.request import single_request
from rmq_store.format.text.names import retry_topic
from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import PullFilter, PullRequests
from rmq_store.remoting.questions.answer import lacks_rights
from rmq_store.remoting.questions.offsets import ask_consumer_offset
from rmq_store.remoting.questions.topics import ask_topic_stats

NO_QUEUE: Final = (1 << 31) - 1


def checks(cluster: Cluster, topic: str, group: str, pull_group: str, now_ms: int) -> list[Finding]:
    """Check the rights of a source, a sink and a member of the group at each broker that has the topic."""
    route = cluster.route(topic)
    if route is None:
        fix = "check the name; rmq -n ... topics lists all, rmq -n ... updateTopic makes one"
        return [Finding("topic", FAIL, f"no broker has a topic {topic!r}", fix)]
    found = [Finding("topic", OK, f"{topic}: at {', '.join(sorted(route.queues))}")]
    for name in sorted(route.queues):
        for what, needed, command in _questions(cluster, topic, group, pull_group, name, now_ms):
            found.append(_asked(cluster, name, what, needed, command))
    return found


def _questions(
    cluster: Cluster, topic: str, group: str, pull_group: str, broker_name: str, now_ms: int
) -> Iterator[tuple[str, str, RemotingCommand]]:
    wire = cluster.wire_topic(topic)
    yield "source: ends", f"Get (4.9: SUB) on topic {wire}", ask_topic_stats(cluster, topic, broker_name)
    pulls = PullRequests(cluster, MessageQueue(topic, broker_name, 0), PullFilter(group=pull_group))
    yield "source: messages", f"Sub (4.9: SUB) on topic {wire} and group {pull_group}", pulls.request(0, 1)
    nowhere = MessageQueue(topic, broker_name, NO_QUEUE)
    yield "sink: sends", f"Pub (4.9: PUB) on topic {wire}", single_request(
        cluster, nowhere, b"?", "", group="rmq_doctor", born_ms=now_ms
    )
    if group:
        for name in (topic, retry_topic(group)):
            queue = MessageQueue(name, broker_name, 0)
            command = ask_consumer_offset(cluster, group, queue, set_zero_if_not_found=None)
            needed = f"Sub (4.9: SUB) on topic {cluster.wire_topic(name)} and group {cluster.wire_group(group)}"
            yield f"group: offsets of {name}", needed, command


def _asked(cluster: Cluster, broker_name: str, what: str, needed: str, command: RemotingCommand) -> Finding:
    (answer,) = cluster.call_all([(broker_name, command)])
    if isinstance(answer, RemotingError):
        return Finding("rights", FAIL, f"{what}: {answer}", "see the address of this broker above")
    remark = (answer.remark or "").strip()
    if lacks_rights(answer):
        first = remark.splitlines()[0] if remark else ""
        return Finding("rights", FAIL, f"{broker_name}: {what}: code {answer.code}: {first}", f"grant {needed}")
    return Finding("rights", OK, f"{broker_name}: {what}")
