"""The producer groups of this process that real brokers know, and ask for the outcome of transactions.

A broker knows a member by a connection that has sent a heartbeat (34), forgets it with the connection, and asks any
member it knows. So heartbeats go to all masters every 30 s, and at once when connections were lost or made; and no half
message goes to a broker that does not know a member. Sources: ProducerManager.java, MQClientInstance.java
(sendHeartbeatToAllBroker), ClientRemotingProcessor.java (checkTransactionState), DefaultMQProducerImpl.java
(endTransaction).
"""

from __future__ import annotations

import logging
from dataclasses import field, replace
from queue import Empty, SimpleQueue
from typing import Final

from rmq_store import real_time
from rmq_store.client.backend.transactions import OnCheck
from rmq_store.errors import StoreError, UsageError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Guard
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.properties.property_string import PRODUCER_GROUP, TRANSACTION_ID, UNIQUE_KEY
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.clients import HeartbeatData, ProducerData
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingConnectError, RemotingError
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.transactions import HalfMessage, LocalTransactionState, TransactionCheck
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster

HEARTBEAT_EVERY_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0

_COMMIT_OR_ROLLBACK: Final = {
    LocalTransactionState.COMMIT_MESSAGE: int(SysFlag.TRANSACTION_COMMIT),
    LocalTransactionState.ROLLBACK_MESSAGE: int(SysFlag.TRANSACTION_ROLLBACK),
    LocalTransactionState.UNKNOW: 0,
}
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Member:
    client_id: str
    on_check: OnCheck
    # The brokers that know of it, as far as this process can tell.
    told: set[str] = field(default_factory=set)


class RemoteTransactions:
    """The producer groups of one backend."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: dict[str, _Member] = {}
        # Two threads that open groups at a time start one thread: `close` stops no more.
        self._guard = Guard()
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._beats: Background | None = None

    def open(self, group: str, client_id: str, on_check: OnCheck) -> RemoteGroup:
        """Make this process a member of a producer group. UsageError: it is one already by this backend."""
        member = _Member(client_id, on_check)
        if self._members.setdefault(group, member) is not member:
            raise UsageError(
                f"producer group {group!r} has a TransactionProducer in this backend: give each one a backend, or a "
                "text as rmq://ns1:9876, of its own"
            )
        self._cluster.client.on_request(RequestCode.CHECK_TRANSACTION_STATE, self.on_check)
        self.heartbeat(group, member)
        with self._guard.entered():
            if self._beats is None:
                self._beats = Background(self._beat, "rmq-producer-heartbeats")
                self._beats.start()
        return RemoteGroup(self, self._cluster, group)

    def make_known(self, broker_name: str, group: str, timeout_ms: int) -> None:
        """Before a half message: the broker must know whom to ask.

        Raises:
            MQClientError: the group has no member here. RemotingConnectError: the broker does not answer.
        """
        member = self._members.get(group)
        if member is None:
            raise MQClientError("half messages need a TransactionProducer, which answers the broker's questions")
        if broker_name not in member.told:
            try:
                groups.heartbeat(self._cluster, self._data(group, member), [broker_name], timeout_ms)
            except RemotingError as error:
                # Whatever became of the heartbeat: of the half message nothing has left this process.
                raise RemotingConnectError(f"the half message was not sent: {error}") from error
            member.told.add(broker_name)

    def heartbeat(self, group: str, member: _Member) -> None:
        """Tell all masters about a member. Failures are logged: the next heartbeat tries again."""
        try:
            member.told = set(groups.heartbeat(self._cluster, self._data(group, member)))
        except (RemotingError, MQBrokerError) as error:
            member.told = set()
            _log.warning("producer group %s: no heartbeat: %s", group, error)

    def leave(self, group: str) -> None:
        """End the membership; brokers that do not answer forget it with the connection."""
        member = self._members.pop(group, None)
        if member is not None:
            try:
                groups.unregister(self._cluster, member.client_id, producer_group=group)
            except (RemotingError, MQBrokerError) as error:
                _log.warning("producer group %s: brokers do not know that we left: %s", group, error)

    def close(self) -> None:
        """End all memberships, and the heartbeats."""
        for group in list(self._members):
            self.leave(group)
        if self._beats is not None:
            self._stop.put(None)
            self._beats.join()
            self._beats = None

    def on_check(self, address: str, command: RemotingCommand) -> None:
        """A broker asks for the outcome of a transaction (39). Another member's question is left unanswered."""
        header = CheckTransactionStateRequestHeader.from_ext(command.ext_fields)
        owner = self._cluster.routes.name_of(address)
        broker_name = header.bname or (owner[0] if owner is not None else "")
        for message in messages_in(command.body, broker_name):
            wire_group = message.properties.get(PRODUCER_GROUP, "")
            member = self._members.get(self._cluster.plain_name(wire_group))
            if member is None:
                _log.warning("%s asks for a transaction of producer group %r, which is not here", address, wire_group)
            else:
                member.on_check(self._check(address, header, message))

    def _check(
        self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> TransactionCheck:
        shown = _shown(message, self._cluster.plain_name(message.topic))
        unique_key = message.properties.get(UNIQUE_KEY) or message.msg_id
        half = HalfMessage(
            shown.topic, message.broker_name, unique_key, header.tran_state_table_offset, header.commit_log_offset,
            address,
        )  # fmt: skip
        return TransactionCheck(half, shown)

    def _data(self, group: str, member: _Member) -> HeartbeatData:
        data = ProducerData(group_name=self._cluster.wire_group(group))
        return HeartbeatData(client_id=member.client_id, producer_data_set=(data,))

    def _beat(self) -> None:
        due_s, seen = real_time.monotonic() + HEARTBEAT_EVERY_S, self._connections()
        while not self._is_stopped():
            now_s = real_time.monotonic()
            if now_s >= due_s or self._connections() != seen:
                try:
                    for group, member in list(self._members.items()):
                        self.heartbeat(group, member)
                except StoreError:
                    _log.exception("producer groups: no heartbeat")
                due_s, seen = now_s + HEARTBEAT_EVERY_S, self._connections()

    def _is_stopped(self) -> bool:
        try:
            self._stop.get(timeout=LOOK_EVERY_S)
        except Empty:
            return False
        return True

    def _connections(self) -> tuple[int, int]:
        counters = self._cluster.client.counters()
        return counters.open_connections, counters.made_connections


class RemoteGroup:
    """A producer group as Transactions (`client/backend/transactions.py`)."""

    def __init__(self, owner: RemoteTransactions, cluster: Cluster, group: str) -> None:
        self._owner = owner
        self._cluster = cluster
        self._group = group

    def end(self, half: HalfMessage, state: LocalTransactionState, remark: str = "") -> None:
        """See `Transactions.end`: to the master of the broker's name, or to the process that has asked."""
        header = EndTransactionRequestHeader(
            producer_group=self._cluster.wire_group(self._group),
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=_COMMIT_OR_ROLLBACK[state],
            from_transaction_check=bool(half.asked_by),
            msg_id=half.transaction_id,
            transaction_id=half.transaction_id,
            topic=self._cluster.wire_topic(half.topic),
            bname=half.broker_name or None,
        )
        command = request(header)
        command.remark = remark or None
        self._cluster.client.call_oneway(half.asked_by or self._cluster.address(half.broker_name), command)

    def is_only_asked(self) -> bool:
        """See `Transactions.is_only_asked`."""
        return self._cluster.routes.is_of_proxies()

    def leave(self) -> None:
        """See `Transactions.leave`."""
        self._owner.leave(self._group)


def _shown(message: MessageExt, topic: str) -> MessageExt:
    """The half message as the listener sees it: its topic without namespace, and the transaction's id."""
    properties = dict(message.properties)
    properties[TRANSACTION_ID] = properties.get(UNIQUE_KEY) or message.msg_id
    return replace(message, topic=topic, properties=properties)
