"""Claimers take turns: one that has begun is waited for, also if there is nothing to claim yet."""

from __future__ import annotations

import threading
from functools import partial

import sqlalchemy as sa

from rmq_store.reliable import Tables
from rmq_store.reliable.database.transact import begin, transact
from rmq_store.reliable.outbox.claims import claim_first_sends
from rmq_store.reliable.outbox.sending_rules import SendingRules

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
