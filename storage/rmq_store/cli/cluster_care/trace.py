"""`rmq trace`: the life of one message, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.messages.life_text import write_lives
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.target.command import target_command
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.store_target import StoreTarget
from rmq_store.errors import ResponseError, UsageError
from rmq_store.protocol.errors import ResponseCode

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.trace import Life
    from rmq_store.cli.target.cluster_target import ClusterTarget


@target_command(
    short_help="The history of one message: stored, delayed, retried, dead.",
    epilog="\b\nExamples:\n  rmq trace --uniq-key C0000202371F5FFD2B2767134429005D --store /data/rocketmq/store\n"
    "  rmq trace -t OrderTopic -k ORD-000007 --store /data/rocketmq/store",
)
@wide_option
@click.option("--uniq-key", "unique_key", metavar="ID", help="Unique id, made by the producer (UNIQ_KEY).")
@click.option("--msg-id", metavar="ID", help="Offset message id, made by the broker; of any copy of the message.")
@click.option("-t", "--topic", type=TOPIC,
              help="With -k: the topic. With --uniq-key: the topic to search if the store has no index.")  # fmt: skip
@click.option("-k", "--key", help="With -t: the newest 64 messages with this key.")
@click.option("--archive", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Also search an archive of dead letters (`rmq dlq archive`).")  # fmt: skip
@click.option("--events", is_flag=True, help="Explain each event below the table.")
def trace(
    target: StoreTarget | ClusterTarget,
    as_json: bool,
    unique_key: str | None,
    msg_id: str | None,
    topic: str | None,
    key: str | None,
    archive: Path | None,
    events: bool,
) -> None:
    """The history of one message: its copies, delays and failed attempts, and for each group its state now and its next
    delivery.

    [store: Times are UTC. A failed attempt is known from the copy that it stored, a successful one from the group's
    offset. So nothing is known about consumers that store no offset here (broadcasting, another cluster). The second
    table has the state of the message for each group: CONSUMED, NOT_CONSUME_YET and NOT_ONLINE (no consumer of the
    group is running) as in mqadmin's MessageTrack; WAITING for its next attempt, DEAD, or REDRIVEN and not consumed
    since.]
    [cluster: The brokers of the message's topic are asked for its copies in this topic, in the topics of delays, timers
    and half messages, and in the retry and dead-letter topics of the groups that read it. --uniq-key needs -t: brokers
    index by topic. Each broker that has copies prints a history of its own. Times are UTC. The rollback of a half
    message is not looked for. The second table has the state of the message for each group, as mqadmin's MessageTrack;
    WAITING for its next attempt, DEAD, or REDRIVEN and not consumed since. Exit code 1 if a broker does not answer:
    then its history is missing, and stderr says so.]
    """
    if sum(value is not None for value in (unique_key, msg_id, key)) != 1 or (key is not None and topic is None):
        raise UsageError("name one message: --uniq-key ID, --msg-id ID, or -t TOPIC -k KEY")
    if key is not None and (not key.strip() or " " in key.strip()):
        raise UsageError(f"-k {key!r}: one key is expected; keys have no spaces, which separate the keys of a message")
    lives, failures, place = _find(target, unique_key, msg_id, topic, key, archive)
    if not lives:
        failures.require_all()
        raise ResponseError(ResponseCode.NO_MESSAGE, f"no record of this message is {place}")
    write_lives(lives, as_json=as_json, events=events)
    failures.report()


def _find(
    target: StoreTarget | ClusterTarget,
    unique_key: str | None,
    msg_id: str | None,
    topic: str | None,
    key: str | None,
    archive: Path | None,
) -> tuple[list[Life], FailureReport[str], str]:
    """The lives, the brokers that they lack, and the place that was searched."""
    if isinstance(target, StoreTarget):
        with target.open() as store:
            return _lives_of_store(store, unique_key, msg_id, topic, key, archive), FailureReport(), "in the store"
    from rmq_store.cli.cluster_care.cluster_history import ClusterHistory
    from rmq_store.cli.target.answers import Answers

    if archive is not None:
        raise UsageError("--archive belongs to a store: rmq trace --store PATH --archive DIR")
    with target.open() as cluster:
        asked = Answers(cluster)
        return ClusterHistory(cluster, asked).lives(unique_key, msg_id, topic, key), asked, "at the brokers"


def _lives_of_store(
    store: Store, unique_key: str | None, msg_id: str | None, topic: str | None, key: str | None, archive: Path | None
) -> list[Life]:
    from rmq_store.broker.monitoring.trace import Trace

    if topic is not None:
        require_topic(store, topic)
    found = Trace(store, archive=archive)
    if unique_key is not None:
        return found.by_unique_keys([unique_key.strip()], topic)
    if msg_id is not None:
        life = found.by_offset_id(msg_id.strip())
        return [] if life is None else [life]
    return found.by_key(str(topic), str(key).strip())
