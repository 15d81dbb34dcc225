"""No message lost, no effect twice: the message stub, the idempotent consumer and the timed resend, on a database.

The sender's transaction writes a stub of each message (`Outbox`), a relay sends what is not sent and sends again what
no consumer confirms (`Relay`), and the consumer's transaction writes an inbox row beside the effect (`Idempotency`).
docs/reliable.md is the guide, docs/reliable-design.md has the data flow and each crash point. Needs the extra
`[reliable]`: SQLAlchemy 2, and redis for those who want a filter before the database.
"""

from rmq_store.format.properties.new_message import OUTBOX_ID
from rmq_store.reliable.database.engine import open_engine, set_up_sqlite, shared_engine
from rmq_store.reliable.database.inserting import insert_rows
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.message_id import UNIQUE_KEY, message_id_of
from rmq_store.reliable.database.outage import holding_metrics
from rmq_store.reliable.database.schema import create_tables, migrate, validate_schema
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.inbox.batches import Batch, BatchResult, BatchWriter
from rmq_store.reliable.inbox.consume_counters import ConsumeCounts
from rmq_store.reliable.inbox.deliveries import id_properties
from rmq_store.reliable.inbox.exactly_once import RowsFailedError
from rmq_store.reliable.inbox.idempotency import Idempotency, ReceiveCounts
from rmq_store.reliable.outbox.outbox import Flushed, Outbox
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.outbox.stub import Stub
from rmq_store.reliable.relay.dead_letters import CollectReport, DeadLetters
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.notifier import CallableNotifier, Notifications, Notifier, SmtpNotifier
from rmq_store.reliable.relay.relay import Relay
from rmq_store.reliable.relay.relay_report import RelayReport
from rmq_store.reliable.relay.relay_service import RelayService, ServiceReport

__all__ = [
    "OUTBOX_ID",
    "UNIQUE_KEY",
    "Batch",
    "BatchResult",
    "BatchWriter",
    "CallableNotifier",
    "CollectReport",
    "ConsumeCounts",
    "DeadLetters",
    "Flushed",
    "Idempotency",
    "Inboxes",
    "ManualEntry",
    "Notifications",
    "Notifier",
    "Outbox",
    "ReceiveCounts",
    "Relay",
    "RelayReport",
    "RelayService",
    "ResendBackoff",
    "RowsFailedError",
    "ServiceReport",
    "SmtpNotifier",
    "Stub",
    "Tables",
    "create_tables",
    "holding_metrics",
    "id_properties",
    "insert_rows",
    "message_id_of",
    "migrate",
    "open_engine",
    "set_up_sqlite",
    "shared_engine",
    "validate_schema",
]
