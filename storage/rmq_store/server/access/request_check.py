"""Decides whether a request may be carried out: by its signature, its sender's rights, and what it changes."""

from __future__ import annotations

from rmq_store.broker.store.store import Store
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.format.properties.property_string import REAL_TOPIC
from rmq_store.format.text.names import is_sent_by_broker_only
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode, request_name
from rmq_store.protocol.wire.signature import ACCESS_KEY, is_signed_with
from rmq_store.server.access.refusals import NoAccessError, RefusalLog
from rmq_store.server.access.rights import User
from rmq_store.server.access.users import Users
from rmq_store.server.requests.request import Request, refusal
from rmq_store.server.requests.request_needs import needs_of
from rmq_store.server.requests.request_table import REQUESTS, Change, Rights


class RequestCheck:
    """`users` is None where everybody may ask. `is_admin`: changes for administrators are carried out. `store` is None
    at a name server alone, which answers no request that is about a store.
    """

    def __init__(self, store: Store | None, users: Users | None, *, is_admin: bool) -> None:
        self._store = store
        self._users = users
        self._is_admin = is_admin
        self._refusals = RefusalLog()

    def __call__(self, request: Request) -> None:
        """Return if the request may be carried out.

        Raises:
            NoAccessError: the remark says what is missing. The log has it, too.
            MQBrokerError: 1, no message is at the place that is named.
            RemotingCommandError, UsageError: a body or a place in the log cannot be read.
        """
        try:
            user = self._check(request.command)
        except NoAccessError as error:
            self._tell(request, error)
            raise
        row = REQUESTS.get(request.command.code)
        if row is not None and row.rights.change is Change.NEVER:
            self._tell(request, NoAccessError(user, "it is never carried out"))

    def _tell(self, request: Request, error: NoAccessError) -> None:
        self._refusals.tell(request.peer.address, error.user, request_name(request.command.code), error.remark)

    def _check(self, command: RemotingCommand) -> str:
        """The access key of the user who may make a request; "" where there are no users. Raises as `__call__`."""
        user = _signer(self._users, command) if self._users is not None else None
        row = REQUESTS.get(command.code)
        if user is not None:
            if row is None:
                raise NoAccessError(user.access_key, f"{request_name(command.code)} has no declared right")
            for need in () if user.is_admin else needs_of(command, row.rights.needs, self._topics_at):
                if not user.may(need):
                    raise NoAccessError(user.access_key, f"no permission: {need} is missing")
        if row is not None and not self._is_admin and self._is_change(command, row.rights):
            remark = (
                f"{request_name(command.code)} changes what is there already: this broker takes it only when it was "
                "started with --admin"
            )
            raise NoAccessError(user.access_key if user is not None else "", remark)
        return user.access_key if user is not None else ""

    def _is_change(self, command: RemotingCommand, rights: Rights) -> bool:
        if rights.change is not Change.EXISTING:
            return rights.change is Change.ALWAYS
        assert self._store is not None
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            return self._store.find_topic(command.ext_fields.get("topic", "")) is not None
        return SubscriptionGroupConfig.decode(command.body).group_name in self._store.groups()

    def _topics_at(self, offset: int) -> list[str]:
        """The topic of the message at a place in the log, and the one that it is for if it waits in a system topic.
        MQBrokerError 1: none is there; if one came before the processor looks, nobody would have asked for its right. A
        record is a message if its queue has it: a sender can write a body that looks like a record of any topic.
        """
        assert self._store is not None
        try:
            found = self._store.message_at(offset)
            behind = found.queue_offset + 1
            (entry,) = self._store.queue_entries(found.topic, found.queue_id, found.queue_offset, behind)
        except (UsageError, OffsetOutOfRangeError) as error:
            raise _not_found(offset) from error
        if entry["commit_log_offset"] != offset:
            raise _not_found(offset)
        real = found.properties.get(REAL_TOPIC)
        return [found.topic, real] if real is not None and is_sent_by_broker_only(found.topic) else [found.topic]


def _signer(users: Users, command: RemotingCommand) -> User:
    """The user who has signed a request. NoAccessError: nobody, or the signature is wrong."""
    access_key = command.ext_fields.get(ACCESS_KEY)
    if not access_key:
        raise NoAccessError("", "the request is not signed, and this server asks for it")
    user = users.signer(
        access_key, lambda secret: is_signed_with(command.ext_fields, command.body, secret, command.version)
    )
    if user is None:
        raise NoAccessError(access_key, "check signature failed: no such access key, or another secret")
    return user


def _not_found(offset: int) -> MQBrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
