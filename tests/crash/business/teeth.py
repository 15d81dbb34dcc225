"""Protections of rmq_store.reliable that can be taken out. Each way to do without one is somebody's way to do it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any
from unittest import mock

import sqlalchemy as sa

from crash.protections import protection


@protection("inbox_apart", "writes that a message is done in a transaction before that of its effect")
def _inbox_apart() -> Iterator[None]:
    from rmq_store.reliable.inbox import delivery_log, effect, inbox

    def run(
        self: effect.Effect, fingerprints: inbox.Fingerprints, handle: effect.Handle, *, may_wait: bool
    ) -> tuple[set[str], set[str]]:
        group_tables, message_ids = self._group_tables, set(fingerprints)
        mine = effect.transact(
            group_tables.engine,
            lambda connection: inbox.insert_set(
                connection, group_tables.tables, group_tables.group, message_ids, self._clock()
            ),
        )

        def work(connection: sa.Connection) -> tuple[set[str], set[str]]:
            if mine:
                self._handlers.run(connection, lambda: handle(connection, frozenset(mine)))
            if void := self.confirm(connection, message_ids, self._clock()) & mine:
                raise effect.VoidStubsError(void)
            delivery_log.delete(connection, group_tables.tables, group_tables.group, message_ids)
            return mine, set()

        return effect.transact(group_tables.engine, work)

    with mock.patch.object(effect.Effect, "run", run):
        yield


@protection("no_inbox", "does not write down what a group has done, and relies on log and Redis")
def _no_inbox() -> Iterator[None]:
    from rmq_store.reliable.inbox import inbox

    def insert_set(
        connection: sa.Connection, tables: object, group: str, message_ids: Collection[str], *others: object
    ) -> set[str]:
        return set(message_ids)

    with mock.patch.object(inbox, "insert_set", insert_set):
        yield


@protection("redis_decides", "answers success to a message that Redis says is in work, as the document")
def _redis_decides() -> Iterator[None]:
    from rmq_store.reliable.inbox import exactly_once, redis_filter

    init = redis_filter.RedisFilter.__init__
    receive = exactly_once.ExactlyOnce._receive

    def believe(self: exactly_once.ExactlyOnce, attempt: Any) -> None:
        there = (redis_filter.Known.PROCESSING, redis_filter.Known.DONE)
        done = [each for each, known in attempt.known.items() if known in there]
        attempt.settle(done, exactly_once.HandlerOutcome.DUPLICATE)
        if attempt.unsettled():
            receive(self, attempt)
        else:
            attempt.received = exactly_once.Received()

    def without_lease(self: redis_filter.RedisFilter, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **{**named, "lease_ms": 600_000})

    with (
        mock.patch.object(exactly_once.ExactlyOnce, "_receive", believe),
        mock.patch.object(redis_filter.RedisFilter, "__init__", without_lease),
    ):
        yield


@protection("later_is_success", "has no leases, and answers success to a message that the log says is in work")
def _later_is_success() -> Iterator[None]:
    from rmq_store.reliable.inbox import exactly_once, idempotency

    init = idempotency.Idempotency.__init__

    def without_lease(self: idempotency.Idempotency, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **{**named, "lease_ms": 6 * 3_600_000, "busy_wait_ms": 0})

    is_success = property(lambda outcome: outcome is not exactly_once.HandlerOutcome.FAILED)
    with (
        mock.patch.object(idempotency.Idempotency, "__init__", without_lease),
        mock.patch.object(exactly_once.HandlerOutcome, "is_success", is_success),
    ):
        yield


@protection("stub_says_done", "takes a message for done when one group has confirmed its stub")
def _stub_says_done() -> Iterator[None]:
    from rmq_store.reliable.database.tables import CONFIRMED, UNCONFIRMED, Tables
    from rmq_store.reliable.inbox import delivery_log
    from rmq_store.reliable.outbox import stub

    state = delivery_log._state

    def one_group_confirms(tables: Tables) -> sa.Update:
        of = tables.stub
        return of.update().where(of.c.status == UNCONFIRMED).values(status=CONFIRMED, pending_groups=0)

    def by_status(
        tables: Tables, group: str, ids: list[str], fingerprint: sa.ColumnElement[Any], *, with_stubs: bool
    ) -> sa.CompoundSelect[Any]:
        of = tables.stub
        asked = sa.select(sa.literal_column("'stub'"), of.c.message_id, of.c.status, of.c.created_ms).where(
            of.c.message_id.in_(ids), of.c.status == CONFIRMED
        )
        return sa.union_all(*state(tables, group, ids, fingerprint, with_stubs=with_stubs).selects, asked)

    with (
        mock.patch.object(stub, "_one_group_less", one_group_confirms),
        mock.patch.object(delivery_log, "_state", by_status),
    ):
        yield


@protection("unseen_doubt", "does not say that an effect elsewhere may have happened twice")
def _unseen_doubt() -> Iterator[None]:
    from rmq_store.reliable.inbox import exactly_once

    with mock.patch.object(exactly_once.ExactlyOnce, "_doubt", lambda *_: None):
        yield


@protection("mark_before_send", "writes that a message is sent before it sends it")
def _mark_before_send() -> Iterator[None]:
    from rmq_store.reliable.database.transact import transact
    from rmq_store.reliable.outbox import outbox
    from rmq_store.reliable.outbox.sending import Claimed
    from rmq_store.reliable.relay import claim_sender

    look, send = outbox.look, claim_sender.ClaimSender.send

    def mark(engine: sa.Engine, tables: Any, claimed: Sequence[Claimed], now_ms: int) -> None:
        of = tables.stub
        marked = of.update().where(of.c.seq.in_([each.seq for each in claimed]), of.c.sent_ms.is_(None))
        values = {"sent_ms": now_ms, "resend_ms": now_ms + 600, "claim_token": None, "claim_until_ms": 0}
        transact(engine, lambda connection: connection.execute(marked.values(**values)))

    def looked(engine: sa.Engine, tables: Any, *arguments: Any, **named: Any) -> Any:
        found = look(engine, tables, *arguments, **named)
        if found.ready:
            mark(engine, tables, found.ready, named["now_ms"])
        return found

    def marked_first(self: claim_sender.ClaimSender, claimed: Sequence[Claimed], report: Any) -> int:
        if claimed:
            mark(self._engine, self._tables, claimed, self._clock())
        return send(self, claimed, report)

    with (
        mock.patch.object(outbox, "look", looked),
        mock.patch.object(claim_sender.ClaimSender, "send", marked_first),
    ):
        yield


@protection("uncounted_claims", "counts a send behind it, and not at its claim")
def _uncounted_claims() -> Iterator[None]:
    from rmq_store.reliable.outbox import claims

    claim = claims._claim

    def uncounted(connection: sa.Connection, tables: Any, *arguments: Any) -> Any:
        claimed = claim(connection, tables, *arguments)
        of = tables.stub
        ours = of.c.seq.in_([each.seq for each in claimed])
        connection.execute(of.update().where(ours).values(send_count=of.c.send_count - 1))
        return claimed

    with mock.patch.object(claims, "_claim", uncounted):
        yield


@protection("no_fresh_look", "sends behind a transaction without a look at what was committed")
def _no_fresh_look() -> Iterator[None]:
    from rmq_store.reliable.outbox import outbox
    from rmq_store.reliable.outbox.committed_stubs import Committed
    from rmq_store.reliable.outbox.sending import Claimed

    def unseen(engine: object, tables: object, stubs: Sequence[Any], *_: Any, **__: Any) -> Committed:
        return Committed(
            [
                Claimed(each.seq, each.message_id, each.message, 1, each.claim_token or "", each.claim_until_ms)
                for each in stubs
            ]
        )

    with mock.patch.object(outbox, "look", unseen):
        yield


@protection("keys_apart", "sends a message although an older one of its sharding key is not sent")
def _keys_apart() -> Iterator[None]:
    from rmq_store.reliable.outbox import committed_stubs

    with mock.patch.object(committed_stubs, "_oldest_other", lambda *_: None):
        yield
