"""Claimers take turns: one that has begun is waited for, also if there is nothing to claim yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.reliable import Tables
from rmq_store.reliable.database import raw_rows
from rmq_store.reliable.database.transact import begin, transact
from rmq_store.reliable.outbox import first_sends
from rmq_store.reliable.outbox.claims import claim_first_sends
from rmq_store.reliable.outbox.sending_rules import SendingRules

from .cluster import World

RULES = SendingRules()


def test_a_claim_waits_for_the_one_that_has_begun(engine: sa.Engine, tables: Tables) -> None:
    """Else two claims would see halves of each other, and tear a sharding key in two."""
    claim = partial(claim_first_sends, tables=tables, rules=RULES, now_ms=1_700_000_000_000, limit=10)
    transact(engine, claim)  # the row of the turn is there
    ended = threading.Event()

    def second() -> None:
        transact(engine, claim)
        ended.set()

    thread = threading.Thread(target=second)
    with begin(engine) as connection:
        claim(connection)
        thread.start()
        assert not ended.wait(0.5)
    thread.join(30)
    assert ended.is_set()


def test_a_key_whose_wait_ends_between_two_pages_stays_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the later page takes messages that are newer than those that the first page left out."""
    first, *_ = world.add(*(Message("Orders", b"%d" % step, sharding_key="K") for step in range(6)))
    world.update(first, resend_ms=world.clock() + 1_000)
    inner, calls = raw_rows.fetch_raw, list[object]()

    def fetch(connection: sa.Connection, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        rows = inner(connection, statement)
        calls.append(statement)
        if len(calls) == 2:  # the first page and the keys that wait are read
            stub = world.tables.stub
            connection.execute(stub.update().where(stub.c.message_id == first).values(sent_ms=1))
        return rows

    monkeypatch.setattr(first_sends, "fetch_raw", fetch)
    with world.engine.begin() as connection:
        found, _ = first_sends.find_first_sends(connection, world.tables, SendingRules(), world.clock(), 3, ())
    assert len(calls) > 2
    assert found == []
