"""The stub of a message (H02 of docs/conformance.md): the message as a row, who has confirmed it, and voiding it.

    unconfirmed --> confirmed      when the last of its groups has confirmed: `confirm`, in the effect's transaction
    unconfirmed --> void           when a person takes it back: `void`; from then on it has no effect

Confirmation and voiding lock the stub's row, so that one of both comes first. `stub_group` is written before `stub`, in
all functions here, and ids are taken in order: two of them cannot wait for each other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.client import Message, MessageIllegalError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import leases
from rmq_store.reliable.database.raw_rows import raw_columns, shown
from rmq_store.reliable.database.tables import CONFIRMED, UNCONFIRMED, VOID, Tables

IDS_PER_STATEMENT: Final = 1_000

# The fields of a Message in the order in which it stores them as properties, before all others.
_FIELDS: Final = ("KEYS", "TAGS", "__SHARDINGKEY", "DELAY", "TIMER_DELIVER_MS")


@dataclass(frozen=True, slots=True)
class Stub:
    """A message that a transaction has promised. `seq` numbers the stubs of a database in the order of their inserts.
    `claim_token` is not None if the process that wrote it is to send it, until `claim_until_ms`.
    """

    message_id: str
    message: Message
    groups: tuple[str, ...]
    seq: int
    created_ms: int
    claim_token: str | None
    claim_until_ms: int


class Confirmation(StrEnum):
    """The result of `confirm`. CONFIRMED: this group's part is now done. ALREADY: it was before. VOID: the stub was
    voided, the message must have no effect. NO_STUB: there is none, or it does not wait for this group.
    """

    CONFIRMED = "confirmed"
    ALREADY = "already"
    VOID = "void"
    NO_STUB = "no_stub"


# -- message <-> row --------------------------------------------------------------------------------------------------


def message_row(message: Message, stored_properties: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The columns of `stub` that hold the message; `stored_properties`: its properties as stored, if known."""
    stored = message.stored_properties() if stored_properties is None else stored_properties
    return {
        "topic": message.topic,
        "body": message.body,
        "flag": message.flag,
        "queue_id": message.queue_id,
        # ASCII only: PostgreSQL's text has no NUL, and a lone surrogate is no text at all.
        "properties": json.dumps(list(stored.items()), separators=(",", ":")),
        "sharding_key": message.sharding_key or None,
        "born_timestamp_ms": message.born_timestamp_ms,
    }


def message_of(row: sa.Row[Any]) -> Message:
    """The message of a row of `stub`. A broker stores it exactly as the message that was given to `message_row`.

    Raises:
        MessageIllegalError: the properties are not those of a message.
    """
    stored = properties_of(row.properties)
    named: dict[str, str] = {}
    place = -1
    for name, value in stored.items():
        # A property whose position is that of its field becomes the field; any other stays a property.
        if name not in _FIELDS[place + 1 :] or not _is_field(name, value, row.sharding_key):
            break
        named[name], place = value, _FIELDS.index(name)
    return Message(
        row.topic,
        bytes(row.body),
        tags=named.get("TAGS"),
        keys=named.get("KEYS"),
        properties={name: value for name, value in stored.items() if name not in named},
        flag=row.flag,
        queue_id=row.queue_id,
        sharding_key=named.get("__SHARDINGKEY"),
        born_timestamp_ms=row.born_timestamp_ms,
        delay_level=int(named.get("DELAY", 0)),
        deliver_timestamp_ms=int(named["TIMER_DELIVER_MS"]) if "TIMER_DELIVER_MS" in named else None,
    )


def without_content(stub: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns of `stub` as they are, but with the length of the body, `body_bytes`, in place of what may be large.
    """
    body_bytes = sa.func.coalesce(sa.func.length(stub.c.body), 0).label("body_bytes")
    return [*raw_columns(stub, without=("body", "properties")), body_bytes]


def properties_of(text: object) -> dict[str, str]:
    """The properties in the column of this name: JSON [[name, value], ...].

    Raises:
        MessageIllegalError: it has another form.
    """
    if not isinstance(text, str):
        raise MessageIllegalError(f"its properties are no text: {shown(text)}")
    try:
        pairs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageIllegalError(f"its properties are no JSON: {shown(text)}: {error}") from error
    if not isinstance(pairs, list):
        raise MessageIllegalError(f"its properties are no JSON list of [name, value]: {shown(text)}")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise MessageIllegalError(f"its properties hold {shown(pair)}: [name, value], two texts, is expected")
    return dict(pairs)


def _is_field(name: str, value: str, sharding_key: str | None) -> bool:
    if name == "__SHARDINGKEY":
        return value == sharding_key
    if name == "DELAY":
        return value != "0" and _is_plain_number(value)
    return name != "TIMER_DELIVER_MS" or _is_plain_number(value)


def _is_plain_number(value: str) -> bool:
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20 and str(int(value)) == value


# -- status -----------------------------------------------------------------------------------------------------------


def is_open(tables: Tables) -> sa.ColumnElement[bool]:
    """Condition: neither confirmed nor void. A status that nobody knows is open, too: people decide about it."""
    return sa.func.coalesce(tables.stub.c.status, "").not_in((CONFIRMED, VOID))


def as_filter(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """A condition for rows that are found by something better: no database takes it for a reason to read an index."""
    # By != PostgreSQL expects that most rows meet it; for = it would prepare to read very many.
    return sa.case((condition, 1), else_=0) != 0


def has_unknown_status(tables: Tables) -> sa.ColumnElement[bool]:
    """Condition: none of the three."""
    return sa.or_(*unknown_statuses(tables))


def unknown_statuses(tables: Tables) -> tuple[sa.ColumnElement[bool], ...]:
    """`has_unknown_status` in ranges: an index finds each of them, which nearly never is there."""
    status = tables.stub.c.status
    return (
        status.is_(None),
        status < CONFIRMED,
        sa.and_(status > CONFIRMED, status < UNCONFIRMED),
        sa.and_(status > UNCONFIRMED, status < VOID),
        status > VOID,
    )


def status_of(connection: sa.Connection, tables: Tables, message_ids: Iterable[str]) -> dict[str, str]:
    """The status of each id that has a stub; one statement per 1,000 ids. It is what this transaction can see. To
    decide about an effect, call `confirm`, which locks.
    """
    found: dict[str, str] = {}
    stub = tables.stub
    for ids in _slices(set(message_ids)):
        asked = sa.select(stub.c.message_id, stub.c.status).where(stub.c.message_id.in_(ids))
        found.update((row.message_id, row.status) for row in connection.execute(asked))
    return found


def confirm(connection: sa.Connection, tables: Tables, group: str, message_id: str, now_ms: int) -> Confirmation:
    """Record, in the caller's transaction, that the group has done the message: two statements for a stub that waits.

    Call it after the effect and commit both. On VOID roll back: the message must have no effect.
    """
    stub, stub_group = tables.stub, tables.stub_group
    ours = connection.execute(
        stub_group.update()
        .where(
            stub_group.c.message_id == message_id,
            stub_group.c.group_name == group,
            stub_group.c.confirmed_ms.is_(None),
        )
        .values(confirmed_ms=now_ms)
    ).rowcount
    if ours and connection.execute(_one_group_less(tables).where(stub.c.message_id == message_id)).rowcount:
        return Confirmation.CONFIRMED
    # FOR UPDATE reads what is committed now; REPEATABLE READ would show what was when the transaction began.
    status = connection.scalar(sa.select(stub.c.status).where(stub.c.message_id == message_id).with_for_update())
    if status is None:
        return Confirmation.NO_STUB
    if status == VOID:
        return Confirmation.VOID
    named = sa.select(stub_group.c.message_id).where(
        stub_group.c.message_id == message_id, stub_group.c.group_name == group
    )
    return Confirmation.NO_STUB if connection.scalar(named) is None else Confirmation.ALREADY


def confirm_all(
    connection: sa.Connection, tables: Tables, group: str, message_ids: Collection[str], now_ms: int
) -> dict[str, Confirmation]:
    """`confirm` for many ids: four statements per 1,000. Every id has a result."""
    answers = dict.fromkeys(message_ids, Confirmation.NO_STUB)
    for ids in _slices(answers):
        answers.update(_confirm_slice(connection, tables, group, ids, now_ms))
    return answers


def _confirm_slice(
    connection: sa.Connection, tables: Tables, group: str, ids: Sequence[str], now_ms: int
) -> dict[str, Confirmation]:
    stub, stub_group = tables.stub, tables.stub_group
    asked_groups = (
        sa.select(stub_group.c.message_id, stub_group.c.confirmed_ms)
        .where(stub_group.c.group_name == group, stub_group.c.message_id.in_(ids))
        .order_by(stub_group.c.message_id)
        .with_for_update()
    )
    confirmed_ms = {row.message_id: row.confirmed_ms for row in connection.execute(asked_groups)}
    asked = (
        sa.select(stub.c.message_id, stub.c.status)
        .where(stub.c.message_id.in_(ids))
        .order_by(stub.c.message_id)
        .with_for_update()
    )
    answers: dict[str, Confirmation] = {}
    for message_id, status in connection.execute(asked):
        if status == VOID:
            answers[message_id] = Confirmation.VOID
        elif message_id in confirmed_ms:
            is_new = confirmed_ms[message_id] is None and status == UNCONFIRMED
            answers[message_id] = Confirmation.CONFIRMED if is_new else Confirmation.ALREADY
    new = sorted(message_id for message_id, answer in answers.items() if answer is Confirmation.CONFIRMED)
    if new:
        connection.execute(
            stub_group.update()
            .where(stub_group.c.group_name == group, stub_group.c.message_id.in_(new))
            .values(confirmed_ms=now_ms)
        )
        connection.execute(_one_group_less(tables).where(stub.c.message_id.in_(new)))
    return answers


def settle(connection: sa.Connection, tables: Tables, message_ids: Sequence[str]) -> list[str]:
    """Confirm stubs all of whose groups have confirmed although the stubs say otherwise; returns their ids. A stub that
    names no group stays as it is.
    """
    stub, stub_group = tables.stub, tables.stub_group
    asked = (
        sa.select(stub_group.c.message_id)
        .where(stub_group.c.message_id.in_(message_ids))
        .group_by(stub_group.c.message_id)
        .having(sa.func.count() == sa.func.count(stub_group.c.confirmed_ms))
    )
    done = sorted(connection.scalars(asked))
    if done:
        ours = sa.and_(stub.c.message_id.in_(done), stub.c.status == UNCONFIRMED)
        connection.execute(stub.update().where(ours).values(status=CONFIRMED, pending_groups=0, is_manual=False))
    return done


def _one_group_less(tables: Tables) -> sa.Update:
    stub = tables.stub
    # MySQL sets from left to right and would show the others the number that is set; so the number comes last, where
    # every database shows them the old one.
    return (
        stub.update()
        .where(stub.c.status == UNCONFIRMED)
        .ordered_values(
            (stub.c.status, sa.case((stub.c.pending_groups <= 1, CONFIRMED), else_=UNCONFIRMED)),
            (stub.c.is_manual, sa.case((stub.c.pending_groups <= 1, sa.false()), else_=stub.c.is_manual)),
            (stub.c.pending_groups, stub.c.pending_groups - 1),
        )
    )


def void(connection: sa.Connection, tables: Tables, message_id: str, now_ms: int | None = None) -> str | None:
    """Void a message, in the caller's transaction: groups that have not confirmed it yet will do nothing. The stub is
    kept until no copy of the message can come any more; `resend_ms` has the time at which it was voided.

    Returns the status that the stub has now: "void", or "confirmed" if that came first; None without a stub.
    """
    stub = tables.stub
    connection.execute(
        stub.update()
        .where(stub.c.message_id == message_id, is_open(tables))
        .values(status=VOID, is_manual=False, resend_ms=leases.now_ms() if now_ms is None else now_ms)
    )
    return connection.scalar(sa.select(stub.c.status).where(stub.c.message_id == message_id).with_for_update())


def pending_groups_of(
    connection: sa.Connection, tables: Tables, message_ids: Iterable[str]
) -> Mapping[str, Sequence[str]]:
    """The groups that have not confirmed, by id; one statement per 1,000 ids."""
    found: dict[str, list[str]] = {}
    stub_group = tables.stub_group
    for ids in _slices(set(message_ids)):
        asked = sa.select(stub_group.c.message_id, stub_group.c.group_name).where(
            stub_group.c.message_id.in_(ids), stub_group.c.confirmed_ms.is_(None)
        )
        for message_id, group in connection.execute(asked):
            found.setdefault(message_id, []).append(group)
    return found


def _slices(message_ids: Collection[str]) -> Iterable[Sequence[str]]:
    ordered = sorted(message_ids)
    return (ordered[start : start + IDS_PER_STATEMENT] for start in range(0, len(ordered), IDS_PER_STATEMENT))
