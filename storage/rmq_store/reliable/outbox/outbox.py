"""The sender's half: a message is promised by the transaction that needs it, and sent when that has been committed.

    with Outbox(producer, engine, groups=("stock",)) as outbox:
        with outbox.begin() as connection:
            connection.execute(orders.insert(), {"id": 1})
            outbox.add(connection, Message("Orders", b"order 1"))

`add` writes the stub; `begin` commits and sends. An application with a transaction of its own calls
`flush_after_commit` after its commit. Neither is needed for the promise: what is not sent here, a `Relay` sends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from rmq_store.client import Message, Producer, SendResult
from rmq_store.errors import UsageError
from rmq_store.format.frames.message import changed
from rmq_store.format.properties.new_message import OUTBOX_ID, of_new_message
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import leases
from rmq_store.reliable.database.drivers import commits_each_statement, require_engine, require_supported
from rmq_store.reliable.database.message_id import UNIQUE_KEY, check_message_id
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.committed_stubs import Committed, look
from rmq_store.reliable.outbox.delays import deliver_ms
from rmq_store.reliable.outbox.message_ids import MessageIds
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.outbox.sending import NotSent, Sent, send_claimed
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.sent_marks import SentMarks
from rmq_store.reliable.outbox.stub import Stub, message_row
from rmq_store.reliable.outbox.stub_statements import StubStatements

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_LOG = logging.getLogger(__name__)

_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,128}", re.ASCII)
_SHARDING_KEY_CHARACTERS_MAX: Final = 255
_FLAG_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class Flushed:
    """The results of `flush_after_commit`, by message id. `left`: the reason why a message was not sent here; if its
    stub is committed, a relay sends it.
    """

    sent: Mapping[str, SendResult] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)



class Outbox:
    """Promises messages in transactions, and sends them after the commit. Safe for threads, not across fork.

    `producer` is started by its owner. A producer that is not started only checks messages, and a relay sends them.
    `engine`: the database of the application, in a sync engine; the outbox uses its connections for short transactions
    of its own, which check and mark stubs. `groups`: the consumer groups that must confirm, unless `add` names others.
    `lease_ms`: how long no other process sends messages that were added here; longer than a transaction and its send
    take. `mark_delay_ms`: how late a sent message is marked at most. `clock`: wall clock in ms.

    Raises (when constructed):
        UsageError: an invalid setting.
    """

    def __init__(
        self,
        producer: Producer,
        engine: sa.Engine,
        tables: Tables | None = None,
        *,
        groups: Sequence[str] = (),
        clock: Callable[[], int] = leases.now_ms,
        lease_ms: int = 30_000,
        mark_delay_ms: int = 100,
        backoff: ResendBackoff | None = None,
    ) -> None:
        rules = SendingRules(lease_ms, backoff=backoff or ResendBackoff())
        if not 0 <= mark_delay_ms <= lease_ms:
            raise UsageError(f"mark_delay_ms={mark_delay_ms}: not negative, and not above lease_ms={lease_ms}")
        self._producer = producer
        self._engine = require_engine(engine)
        self._tables = tables or Tables()
        self._statements = StubStatements(self._tables)
        self._groups = checked_groups(groups) if groups else ()
        self._clock = clock
        self._lease_ms = lease_ms
        self._token = leases.new_token()
        self._ids = MessageIds()
        self._marks = SentMarks(engine, self._tables, rules.backoff, clock, mark_delay_ms)
        self._pid = os.getpid()
        # The stubs of open `begin` blocks, by their connection.
        self._open: dict[sa.Connection, list[Stub]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Outbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the marks that are not written yet. May be called again; a closed outbox writes marks at once."""
        if os.getpid() == self._pid:
            self._marks.close()

    def add(
        self,
        connection: sa.Connection | Session,
        message: Message,
        *,
        groups: Sequence[str] | None = None,
        message_id: str | None = None,
        send_now: bool = True,
    ) -> Stub:
        """Write the stub of a message in the caller's transaction: two statements, on PostgreSQL one. It is durable,
        and will be sent, when that transaction commits. Then give the stub to `flush_after_commit`; `begin` does so
        itself.

        `connection` is a Connection or an ORM Session, also inside savepoints. From AsyncConnection and AsyncSession:
        `await connection.run_sync(outbox.add, message)`. It is a new message: its id (`message_id`, or a new one)
        becomes its OUTBOX_ID and UNIQ_KEY. Of the properties of another message that it was made of, those stay behind
        that belong to that one (docs/columns.md). `send_now=False`: only a relay sends it, in its next round.

        Raises:
            UsageError: a message that no broker would accept (MessageIllegalError), that is half of a transaction, or
                whose `message_id` has a stub already; no group; a connection that commits each statement; a forked
                child; or the sequence of the table is behind its rows, as after a restore.
        """
        self._check_process()
        named = self._groups if groups is None else checked_groups(groups)
        if not named:
            raise UsageError("which group must confirm the message? Name groups=, here or for the whole outbox")
        now_ms = self._clock()
        ready, message_id, is_chosen = _with_id(message, message_id, self._ids, now_ms)
        stored = ready.stored_properties()
        self._check(ready, stored)
        inner = _connection_of(connection, self._tables.stub)
        until_ms = now_ms + self._lease_ms if send_now else 0
        token = self._token if send_now else None
        row = {
            **message_row(ready, stored),
            "message_id": message_id,
            "deliver_ms": deliver_ms(ready, now_ms),
            "status": UNCONFIRMED,
            "pending_groups": len(named),
            "created_ms": now_ms,
            "send_count": int(send_now),
            "resend_ms": until_ms or now_ms,
            "claim_token": token,
            "claim_until_ms": until_ms,
            "is_manual": False,
        }
        seq = self._statements.insert(inner, row, named, is_chosen=is_chosen)
        stub = Stub(message_id, ready, named, seq, now_ms, token, until_ms)
        with self._lock:
            if (block := self._open.get(inner)) is not None:
                block.append(stub)
        return stub

    @contextlib.contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction: `with outbox.begin() as connection:` commits at its end, and sends the messages that were
        added. An exception rolls back, and nothing is sent. The error of a failed send is never raised here: the
        transaction is committed, and a relay sends the message.
        """
        self._check_process()
        stubs: list[Stub] = []
        there: set[str] | None = None
        try:
            with self._engine.begin() as connection, self.collecting(connection) as stubs:
                yield connection
                if stubs and not any(stub.message.sharding_key for stub in stubs):
                    # After the commit, a transaction of its own would be needed. Only messages with keys need that:
                    # others may have committed older messages of the key.
                    there = self._statements.still_there(connection, [stub.message_id for stub in stubs])
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                # The commit may have happened and its answer been lost: the stubs tell.
                self.flush_after_commit(*stubs)
            raise
        self._flush(stubs, there)

    @contextlib.contextmanager
    def collecting(self, connection: sa.Connection) -> Iterator[list[Stub]]:
        """A list to which the stubs that are added on a connection in a `with` block are appended. For code that runs
        foreign code in a transaction, commits it, and then calls `flush_after_commit`.
        """
        with self._lock:
            outer = self._open.get(connection)
            stubs = self._open[connection] = []
        try:
            yield stubs
        finally:
            with self._lock:
                if outer is None:
                    del self._open[connection]
                else:
                    self._open[connection] = outer
                    outer += stubs

    def flush_after_commit(self, *stubs: Stub) -> Flushed:
        """Send messages whose transaction has been committed, in the order in which they were added. Messages whose
        stub does not exist, or that are not this process's to send, are left out, and so are messages whose sharding
        key has an older unsent message. Failures are logged and returned, never raised: the transaction was committed.
        """
        self._check_process()
        return self._flush(stubs, None)

    def _flush(self, stubs: Sequence[Stub], there: set[str] | None) -> Flushed:
        """`there`: the ids that are known to be committed, if none of them has a sharding key."""
        mine = sorted((stub for stub in stubs if stub.claim_token is not None), key=lambda stub: stub.seq)
        left = {stub.message_id: "a relay sends it" for stub in stubs if stub.claim_token is None}
        if not mine:
            return Flushed({}, left)
        now_ms = self._clock()
        try:
            if there is None or any(stub.claim_until_ms - now_ms < self._lease_ms // 2 for stub in mine):
                found = look(self._engine, self._tables, mine, self._marks, now_ms=now_ms, lease_ms=self._lease_ms)
            else:
                found = Committed.of(mine, there)
        except sa.exc.SQLAlchemyError as error:
            _LOG.warning(
                "%d messages are left to the relay: the database cannot be asked: %s",
                len(mine),
                getattr(error, "orig", error),
            )
            return Flushed({}, left | {stub.message_id: "the database cannot be asked" for stub in mine})
        left |= found.left
        outcomes: list[Sent | NotSent] = [NotSent(each, None, False) for each in found.held_back]
        try:
            for some in send_claimed(self._producer, found.ready, self._clock):
                outcomes += some
        finally:
            self._marks.add(outcomes)
        failed = [each for each in outcomes if isinstance(each, NotSent) and each.error is not None]
        if failed:
            _LOG.warning("%d messages are left to the relay: %s", len(failed), failed[0].error)
        for each in outcomes:
            if isinstance(each, NotSent):
                left.setdefault(each.claimed.message_id, str(each.error or "held back"))
        return Flushed({each.claimed.message_id: each.result for each in outcomes if isinstance(each, Sent)}, left)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(f"this outbox belongs to process {self._pid}: a forked child needs its own Outbox")

    def _check(self, message: Message, stored: Mapping[str, str]) -> None:
        self._producer.check(message)
        if stored.get("TRAN_MSG", "").lower() == "true":
            raise UsageError(
                "half messages cannot be added: the transaction of the database decides, not a producer"
            )
        key = message.sharding_key or ""
        if len(key) > _SHARDING_KEY_CHARACTERS_MAX or "\0" in key:
            raise UsageError(
                f"the sharding key has {len(key)} characters, perhaps a NUL: at most {_SHARDING_KEY_CHARACTERS_MAX} "
                "without one can be kept"
            )
        if not -_FLAG_MAX <= message.flag < _FLAG_MAX:
            raise UsageError(f"flag={message.flag}: 32 bits are expected")


def checked_groups(groups: Sequence[str]) -> tuple[str, ...]:
    """The groups, without duplicates.

    Raises:
        UsageError: a name that no group can have, or that no table can hold.
    """
    if isinstance(groups, str):
        raise UsageError(f"groups={groups!r}: a sequence of names is expected, such as ({groups!r},)")
    for group in groups:
        if not isinstance(group, str) or not _GROUP.fullmatch(group):
            raise UsageError(f"group {group!r}: 1 to 128 of the characters %|a-zA-Z0-9_- are expected")
    return tuple(dict.fromkeys(groups))


def _with_id(message: Message, message_id: str | None, made_by: MessageIds, now_ms: int) -> tuple[Message, str, bool]:
    """The message with its id, the id, and True if the caller has chosen it."""
    if not isinstance(message, Message):
        raise UsageError(f"a Message is expected, got {type(message).__name__}")
    is_chosen = message_id is not None
    message_id = check_message_id(message_id) if is_chosen else made_by.new(now_ms)
    ids = {UNIQUE_KEY: message_id, OUTBOX_ID: message_id}
    return changed(message, properties=ids | dict(of_new_message(message.properties))), message_id, is_chosen


def _connection_of(given: sa.Connection | Session, table: sa.Table) -> sa.Connection:
    """The connection of the caller's transaction, which has begun. A Session begins one if it has none, for the engine
    of `table`.

    Raises:
        UsageError: neither of both, one that commits each statement by itself, or with a driver that is not supported.
    """
    connection = given
    if not isinstance(given, sa.Connection):
        if not hasattr(given, "bind_mapper") and not hasattr(given, "get_bind"):
            raise UsageError(
                f"a Connection or a Session is expected, got {type(given).__name__}; from AsyncConnection and "
                "AsyncSession call it by run_sync"
            )
        connection = given.connection(bind_arguments={"clause": table})
    assert isinstance(connection, sa.Connection)
    require_supported(connection.dialect)
    if not connection.in_transaction():
        # The first statement begins the transaction; what begins with it can then be seen.
        connection.scalar(sa.select(sa.literal(1)))
    if commits_each_statement(connection):
        raise UsageError(
            "this connection commits each statement by itself (AUTOCOMMIT), so a message would be sent for what is "
            "never written: give the connection of a transaction"
        )
    return connection
