"""43, 45, 60, 61 and 402: the tables of a master, for its slaves; 906: its HA port (AdminBrokerProcessor.java).

Tables are sent as the files of the store have them, with the `dataVersion` by which a slave sees that one has changed.
Topics and groups (21, 201) are those that mqadmin asks for, too.
"""

from __future__ import annotations

from typing import Any, Final

from rmq_store.broker.metadata.json_table import ConfigFile, Table
from rmq_store.broker.metadata.offset_files import LMQ_OFFSETS, PLAIN_OFFSETS, OffsetFile
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.files.durable import read_limited
from rmq_store.format.tables.config_json import Style, dumps
from rmq_store.format.text.names import CONFIG_DIRECTORY
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.versions import V5_0_0
from rmq_store.protocol.wire.admin_headers import ExchangeHAInfoResponseHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

_CHECK_POINT_BYTES: Final = 56
_BYTES_MAX: Final = 1 << 16
# A slave takes the version without a look whether there is one (DataVersion#assignNewOne).
_NO_VERSION: Final = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class SlaveTables:
    """The tables of one served store. `ha_address`: host:port of its HA port, "" if it has none."""

    def __init__(self, served: ServedStore, offsets: CommittedOffsets, ha_address: str) -> None:
        self._served = served
        self._offsets = offsets
        self._ha_address = ha_address

    def consumer_offsets(self, request: Request) -> RemotingCommand:
        """43, with everything that was committed before the question."""
        self._offsets.write()
        is_lmq = self._served.store.config.enable_lmq
        table = self._table(LMQ_OFFSETS if is_lmq else PLAIN_OFFSETS, OffsetFile.part)
        return self._answer(request, table)

    def delay_offsets(self, request: Request) -> RemotingCommand:
        """45."""
        return self._answer(request, self._table("delayOffset.json", DelayOffsetTable.part))

    def request_modes(self, request: Request) -> RemotingCommand:
        """402. The table has no version."""
        table = self._table("messageRequestMode.json", "messageRequestModeMap")
        table.pop("dataVersion", None)
        return self._answer(request, table)

    def timer_check_point(self, request: Request) -> RemotingCommand:
        """60: 56 bytes. MQBrokerError 1: no broker with timers has run on the store."""
        return request.answer(body=self._bytes("timercheck", "The timerCheckpoint is null")[:_CHECK_POINT_BYTES])

    def timer_metrics(self, request: Request) -> RemotingCommand:
        """61. MQBrokerError 1: as 60."""
        return request.answer(body=self._bytes("timermetrics", "The timerMessageStore is null"))

    def ha_info(self, request: Request) -> RemotingCommand:
        """906: where slaves connect. Fields, which would tell a slave its master, change nothing. MQBrokerError 3: this
        broker has no HA port.
        """
        if not self._ha_address:
            raise refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this broker has no HA port (--ha-listen)")
        return request.answer(header=ExchangeHAInfoResponseHeader(
            master_ha_address=self._ha_address, master_address=self._served.address
        ))  # fmt: skip

    def _table(self, name: str, part: str) -> Table:
        table = ConfigFile(self._served.store.path, name).load()
        empty: Table = {part: {}, "dataVersion": dict(_NO_VERSION)}
        return empty | table

    def _answer(self, request: Request, table: dict[str, Any]) -> RemotingCommand:
        style: Style = "5.x" if request.command.version >= V5_0_0 else "4.x"
        return request.answer(body=dumps(table, style).encode())

    def _bytes(self, name: str, missing: str) -> bytes:
        try:
            return read_limited(self._served.store.path / CONFIG_DIRECTORY / name, _BYTES_MAX)
        except FileNotFoundError as error:
            raise refusal(ResponseCode.SYSTEM_ERROR, missing) from error
