"""The role of a broker among those of its name (BrokerRole.java). The values are those of the state page."""

from __future__ import annotations

from enum import IntEnum


class BrokerRole(IntEnum):
    """ASYNC_MASTER: a send waits for no slave. SYNC_MASTER: it waits until a slave has the message. SLAVE: it has what
    its master has, and takes no sends.
    """

    ASYNC_MASTER = 0
    SYNC_MASTER = 1
    SLAVE = 2
