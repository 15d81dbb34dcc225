"""Deletes stubs that nothing needs any more: confirmed and void ones that nobody has changed for a month.

A void stub keeps copies of its message from having an effect, so it must outlive them: it stays longer than the rows of
an inbox (30 days). Unconfirmed stubs stay for ever.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from rmq_store.reliable.database.tables import CONFIRMED, VOID, Tables
from rmq_store.reliable.database.transact import transact

KEEP_MS: Final = 31 * 24 * 3_600_000
_ROWS: Final = 1_000


def purge(engine: sa.Engine, tables: Tables, before_ms: int) -> int:
    """Delete stubs created, sent and voided before `before_ms`; returns their number. 1,000 per transaction."""
    stub, stub_group = tables.stub, tables.stub_group
    is_old = sa.and_(stub.c.status.in_((CONFIRMED, VOID)), stub.c.resend_ms < before_ms, stub.c.created_ms < before_ms)

    def delete_some(connection: sa.Connection) -> int:
        old = list(connection.scalars(sa.select(stub.c.message_id).where(is_old).limit(_ROWS)))
        if old:
            connection.execute(stub_group.delete().where(stub_group.c.message_id.in_(old)))
            connection.execute(stub.delete().where(stub.c.message_id.in_(old)))
        return len(old)

    total = 0
    while deleted := transact(engine, delete_some):
        total += deleted
    return total
