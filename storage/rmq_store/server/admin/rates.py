"""315: how many messages a topic got lately (AdminBrokerProcessor#ViewBrokerStatsData).

A broker counts in memory from its start. Here the store times of the messages say it, so that messages of all
processes count, and a restart forgets none.
"""

from __future__ import annotations

from typing import Final

from rmq_store.broker.monitoring.topic_rates import DAY_MS, HOUR_MS, MINUTE_MS, stored_lately
from rmq_store.protocol.bodies.topics import BrokerStatsData, BrokerStatsItem
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import ViewBrokerStatsDataRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"


class Rates:
    """The rates of one store."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served

    def view(self, request: Request) -> RemotingCommand:
        """315, for TOPIC_PUT_NUMS of a topic. MQBrokerError 1, as of a broker that has not counted: another figure."""
        header = request.header(ViewBrokerStatsDataRequestHeader)
        store, topic = self._served.store, header.stats_key
        if header.stats_name != TOPIC_PUT_NUMS or store.find_topic(topic) is None:
            remark = f"The stats <{header.stats_name}> <{topic}> not exist"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)

        def rate(period_ms: int) -> BrokerStatsItem:
            count = stored_lately(store, topic, period_ms)
            # Each message counts as a call of its own.
            return BrokerStatsItem(sum=count, tps=count * 1000 / period_ms, avgpt=1.0 if count else 0.0)

        found = BrokerStatsData(stats_minute=rate(MINUTE_MS), stats_hour=rate(HOUR_MS), stats_day=rate(DAY_MS))
        return request.answer(body=found.encode())
