"""Registers a served store with name servers of other processes (BrokerOuterAPI.java, BrokerController.java)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Final

from rmq_store import real_time
from rmq_store.clock import system_clock
from rmq_store.errors import StoreError, UsageError
from rmq_store.protocol.bodies.routes import MASTER_ID, BrokerData, ClusterInfo, RegisterBrokerBody
from rmq_store.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.name_server_headers import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rmq_store.remoting.questions.name_servers import ask_clusters
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings, is_address_server
from rmq_store.server.housekeeping import Housekeeping, Step

_log: Final = logging.getLogger(__name__)

# BrokerConfig#registerNameServerPeriod. Changes of topics are seen within _CHANGES_S.
_PERIOD_S: Final = 30.0
_CHANGES_S: Final = 1.0


class Registration:
    """Keeps the broker `own` in the routes of the name servers of `settings`, from `start` until `close`. Requests are
    signed if the settings name keys. `broker_id`: of the process, above 0 of a slave. Slaves of the name are told
    `ha_address`.

    It registers every 30 s, and at once when `topics` has changed. A name server that does not answer, refuses, or
    knows another broker of the name is logged once, and asked again each time; the others go on.

    Raises (when constructed):
        UsageError: no address of a name server, but a URL that lists them.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        own: BrokerData,
        topics: Callable[[], Mapping[str, TopicConfig]],
        *,
        broker_id: int = MASTER_ID,
        ha_address: str = "",
    ) -> None:
        if any(map(is_address_server, settings.name_servers)):
            raise UsageError("a broker registers with name servers, not with an address server: give their HOST:PORT")
        self._addresses = settings.name_servers
        self._own = own
        self._broker_id = broker_id
        self._ha_address = ha_address or own.broker_addrs[broker_id]  # a field that must be there
        self._topics = topics
        self._client = RemotingClient(settings)
        self._known: Mapping[str, TopicConfig] | None = None
        self._changes = 0
        self._body = b""
        self._due_s = 0.0
        self._problems: dict[str, str] = {}
        self._loop = Housekeeping(own.broker_name, (Step("registration", _CHANGES_S, self.register_if_due),))
        # Name servers that may have this broker in their routes.
        self._told: set[str] = set()

    def start(self) -> None:
        """Register, and go on in a thread.

        Raises:
            UsageError: a name server knows the broker's name with another address.
        """
        self.refuse_taken_name()
        self.register_if_due()
        self._loop.start()

    def refuse_taken_name(self) -> None:
        """Ask all name servers, and raise UsageError if one knows the broker's name with another address."""
        _, taken = self._ask_for_name({})
        for name_server, problem in taken.items():
            raise UsageError(
                f"name server {name_server} knows {problem}. Stop the other one, or serve a store of another name "
                "(`rmq init --broker-name`)"
            )

    def register_if_due(self) -> None:
        """Register with all name servers if the topics have changed, or 30 s have passed."""
        topics = dict(self._topics())
        if topics != self._known:
            self._changes += 1
            version = DataVersion(counter=self._changes, timestamp=system_clock())
            table = TopicConfigTable(topic_config_table=topics, data_version=version)
            self._body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
            self._known = topics
        elif real_time.monotonic() < self._due_s:
            return
        self._due_s = real_time.monotonic() + _PERIOD_S
        # Each time: a name server may have been away until now, and RocketMQ's takes whoever registers last.
        problems: dict[str, str] = {}
        free, taken = self._ask_for_name(problems)
        self._told = (self._told - taken.keys()) | set(free)
        self._ask(free, self._registration(), problems)
        self._log(problems | {name_server: f"it knows {problem}" for name_server, problem in taken.items()})

    def close(self) -> None:
        """Leave the routes, as a broker that stops. Does nothing the second time."""
        self._loop.close()
        told, self._told = self._told, set()
        if told:
            header = UnRegisterBrokerRequestHeader(
                broker_name=self._own.broker_name,
                broker_addr=self._own.broker_addrs[self._broker_id],
                cluster_name=self._own.cluster,
                broker_id=self._broker_id,
            )
            problems: dict[str, str] = {}
            self._ask(told, request(header), problems)
            self._log(problems)
        self._client.close()

    def _registration(self) -> RemotingCommand:
        address = self._own.broker_addrs[self._broker_id]
        header = RegisterBrokerRequestHeader(
            broker_name=self._own.broker_name,
            broker_addr=address,
            cluster_name=self._own.cluster,
            ha_server_addr=self._ha_address,
            broker_id=self._broker_id,
            body_crc32=zlib.crc32(self._body) & 0x7FFFFFFF,
        )
        return request(header, self._body)

    def _ask_for_name(self, problems: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """The name servers that do not know the broker's name with another address, and those that do, each with what
        it knows. Two brokers of one name would take turns in the routes, and clients would lose sight of each in turn.
        """
        name, own = self._own.broker_name, self._own.broker_addrs[self._broker_id]
        free, taken = [], {}
        answers = self._ask(self._addresses, ask_clusters(), problems)
        for name_server, answer in answers.items():
            try:
                known = ClusterInfo.decode(answer.body).broker_addr_table.get(name)
            except RemotingCommandError as error:  # the others go on
                problems[name_server] = str(error)
                continue
            address = known.broker_addrs.get(self._broker_id) if known is not None else None
            if address in (None, own):
                free.append(name_server)
            else:
                taken[name_server] = f"the broker {name} with the address {address}, and this one has {own}"
        return free, taken

    def _ask(
        self, name_servers: Iterable[str], command: RemotingCommand, problems: dict[str, str]
    ) -> dict[str, RemotingCommand]:
        """Ask these name servers together. Returns the answers with code 0, by name server; `problems` gets the others.
        """
        futures = {address: self._client.submit(address, command) for address in name_servers}
        answers = {}
        for address, future in futures.items():
            problem, answer = _outcome(future)
            if answer is not None:
                answers[address] = answer
            else:
                problems[address] = problem
        return answers

    def _log(self, problems: dict[str, str]) -> None:
        for address, problem in problems.items():
            if problem != self._problems.get(address):
                text = "broker %s is not registered with name server %s: %s; trying again every %.0f s"
                _log.warning(text, self._own.broker_name, address, problem, _PERIOD_S)
        self._problems = problems


def _outcome(future: Future[RemotingCommand]) -> tuple[str, RemotingCommand | None]:
    """Why a name server has not done what it was asked, and its answer if it has."""
    try:
        answer = future.result()
    except StoreError as error:
        return str(error), None
    if answer.code != 0:
        return f"code {answer.code}, {answer.remark or ''}", None
    return "", answer
