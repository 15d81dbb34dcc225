"""The settings of a store as a broker would have them in its broker.conf (AdminBrokerProcessor#getBrokerConfig)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.store_log import with_delays

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store


def broker_conf(store: Store) -> dict[str, int | bool | str]:
    """The present settings, under their names in broker.conf; messageDelayLevel has the delays that count, "" if they
    are unknown. Raises as `Retention.settings`.
    """
    known = StoreFile.load(store.path)
    config = known.config if known is not None else replace(store.config, message_delay_level="")
    delays = {"messageDelayLevel": with_delays(store.path, config).message_delay_level}
    return {**store.retention.settings().broker_conf(), **delays, "brokerName": store.broker_name}
