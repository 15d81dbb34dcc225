"""The master that an option names: by its address, or by its name among the name servers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings
    from rmq_store.replica.master import Master

CLUSTER: Final = "rmq://"

MASTER_HELP: Final = "The master: its address, or rmq://ADDRESSES of the name servers that know it."


def master_of(text: str, settings: ClusterSettings, *, broker: str, ha_address: str) -> Master:
    """The master that `text` names, to be closed. `settings`: of the way to it. `broker`: its name among the name
    servers.

    Raises:
        UsageError: a malformed address, or name servers without a name.
    """
    from rmq_store.replica.master import Master

    if not text.startswith(CLUSTER):
        return Master(settings, address=text, ha_address=ha_address)
    if not broker:
        raise UsageError(f"which broker of {text}? Nothing here tells its name: say --broker NAME")
    return Master(settings, broker=broker, ha_address=ha_address)
