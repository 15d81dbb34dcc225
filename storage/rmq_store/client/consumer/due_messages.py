"""Delivery of delayed messages that are due. Consumers ask for it at each poll: an embedded store has no daemon."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rmq_store.client.backend.backend import Broker
from rmq_store.protocol.errors import ClientError

_log = logging.getLogger(__name__)


def deliver_due(brokers: Mapping[str, Broker]) -> None:
    """Make each broker, by name, deliver its delayed messages that are due. A broker that cannot do so (its disk is
    full, for example) is logged: the messages that it has can still be read.
    """
    for _, broker in sorted(brokers.items()):
        try:
            broker.deliver_due()
        except ClientError as error:
            _log.warning("broker %s delivers no delayed messages: %s", broker.name, error)
