"""`rmq trace`: the life of one message, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import (
    common_options,
    open_store,
    printable,
    time_text,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.errors import ResponseError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.trace import Life, Standing
    from rmq_store.broker.monitoring.trace_life import Step

# ResponseCode.java
_NO_MESSAGE = 208

_STEP_COLUMNS = ("TIME", "EVENT", "WHERE", "GROUP", "TRY", "NOTE")
_STANDING_COLUMNS = ("GROUP", "NOW", "WHERE", "TRY", "DUE")


@click.command(
    short_help="The history of one message: stored, delayed, retried, dead.",
    epilog="\b\nExamples:\n  rmq trace --uniq-key C0000202371F5FFD2B2767134429005D --store /data/rocketmq/store\n"
    "  rmq trace -t OrderTopic -k ORD-000007 --store /data/rocketmq/store",
)
@common_options
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
    root: Path,
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

    Times are UTC. A failed attempt is known from the copy that it stored, a successful one from the group's offset. So
    nothing is known about consumers that store no offset here (broadcasting, another cluster). The second table has the
    state of the message for each group: CONSUMED, NOT_CONSUME_YET and NOT_ONLINE (no consumer of the group is running)
    as in mqadmin's MessageTrack; WAITING for its next attempt, DEAD, or REDRIVEN and not consumed since.
    """
    named_once(unique_key, msg_id, topic, key)
    with open_store(root) as store:
        lives = _find(store, unique_key, msg_id, topic, key, archive)
    if not lives:
        raise no_record("no record of this message is in the store")
    write_lives(lives, as_json=as_json, events=events)


def named_once(unique_key: str | None, msg_id: str | None, topic: str | None, key: str | None) -> None:
    """Raise UsageError unless the options name one message, and one key of it."""
    if sum(value is not None for value in (unique_key, msg_id, key)) != 1 or (key is not None and topic is None):
        raise UsageError("name one message: --uniq-key ID, --msg-id ID, or -t TOPIC -k KEY")
    if key is not None and (not key.strip() or " " in key.strip()):
        raise UsageError(f"-k {key!r}: one key is expected; keys have no spaces, which separate the keys of a message")


def no_record(text: str) -> ResponseError:
    """The error that there is none (ResponseCode.NO_MESSAGE)."""
    return ResponseError(_NO_MESSAGE, text)


def write_lives(lives: list[Life], *, as_json: bool, events: bool) -> None:
    """Print the histories of messages. `events`: with the meaning of each event."""
    if as_json:
        write_json([_life_json(life) for life in lives])
        return
    for number, life in enumerate(lives):
        if number:
            click.echo()
        _write(life)
    if events:
        _write_meanings(lives)


def _find(
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


def _write(life: Life) -> None:
    first = next((step.message for step in life.steps if step.message is not None), None)
    head = f"message {life.msg_id}"
    if first is not None and first.keys:
        head += f", keys {first.keys}"
    click.echo(printable(head))
    rows = [_step_row(step) for step in life.steps]
    write_table(_STEP_COLUMNS, rows, flexible=("WHERE", "GROUP", "NOTE"))
    click.echo()
    standings = [_standing_row(standing) for standing in life.standings]
    write_table(_STANDING_COLUMNS, standings, flexible=("GROUP", "WHERE"))
    if not life.complete:
        click.echo("not everything could be looked at: there may be more records")


def _write_meanings(lives: list[Life]) -> None:
    from rmq_store.broker.monitoring.trace_life import MEANINGS

    used = dict.fromkeys(step.event for life in lives for step in life.steps)
    click.echo()
    write_table(("EVENT", "MEANING"), [(str(event), MEANINGS[event]) for event in used], flexible=("MEANING",))


def _step_row(step: Step) -> tuple[str | int, ...]:
    place = step.topic
    if step.queue_id is not None and step.queue_offset is not None:
        place += f" {step.queue_id}:{step.queue_offset}"
    attempt = "-" if step.attempt is None else step.attempt
    notes = [step.note] if step.note else []
    if step.due_ms is not None:
        notes.append(f"due {_time(step.due_ms)}")
    return _time(step.time_ms), str(step.event), place, step.group or "-", attempt, ", ".join(notes)


def _standing_row(standing: Standing) -> tuple[str | int, ...]:
    attempt = "-" if standing.attempt is None else standing.attempt
    return standing.group or "-", str(standing.state), standing.topic, attempt, _time(standing.due_ms)


def _time(time_ms: int | None) -> str:
    return "" if time_ms is None else time_text(time_ms * 1000)


def _life_json(life: Life) -> dict[str, Any]:
    return {
        "msgId": life.msg_id,
        "complete": life.complete,
        "steps": [_step_json(step) for step in life.steps],
        "groups": [
            {
                "group": one.group, "state": str(one.state), "topic": one.topic, "attempt": one.attempt,
                "due": _time(one.due_ms) or None,
            }
            for one in life.standings
        ],
    }  # fmt: skip


def _step_json(step: Step) -> dict[str, Any]:
    message = step.message
    return {
        "time": _time(step.time_ms), "event": str(step.event), "topic": step.topic, "queueId": step.queue_id,
        "queueOffset": step.queue_offset, "group": step.group, "attempt": step.attempt,
        "due": _time(step.due_ms) or None, "note": step.note,
        "offsetMsgId": None if message is None else message.offset_msg_id,
        "commitLogOffset": None if message is None else message.commit_log_offset,
        "reconsumeTimes": None if message is None else message.reconsume_times,
    }  # fmt: skip
