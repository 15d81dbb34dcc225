"""The lives of messages as `rmq trace` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.output import printable, time_text, write_json, write_table

if TYPE_CHECKING:
    from rmq_store.broker.monitoring.trace import Life, Standing
    from rmq_store.broker.monitoring.trace_life import Step

_STEP_COLUMNS = ("TIME", "EVENT", "WHERE", "GROUP", "TRY", "NOTE")
_STANDING_COLUMNS = ("GROUP", "NOW", "WHERE", "TRY", "DUE")


def write_lives(lives: Sequence[Life], *, as_json: bool, events: bool) -> None:
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


def _write_meanings(lives: Sequence[Life]) -> None:
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
