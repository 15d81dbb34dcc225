"""Where the messages of `consume` are: a store or a cluster, and what differs between them. Control plane.

                        store                                      cluster
    a batch's failures  one unit, with a marker of the batch       each task by itself; a repetition leaves out what is
                                                                   sent back
    maximum of retries  becomes the setting of the group           is told to the brokers with each message; without
                                                                   one each broker's setting of the group decides
    a message is named  by commitLogOffset                         by brokerName and commitLogOffset
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from pyspark_rmq.access import store_writer
from pyspark_rmq.access.cluster_location import ClusterLocation
from pyspark_rmq.access.store_location import StoreDirectory, StoreLocation
from pyspark_rmq.options.cluster_options import NAME_SERVER
from pyspark_rmq.options.option_values import local_path
from pyspark_rmq.position.position import refuse
from rmq_store.arguments import path_text

if TYPE_CHECKING:
    from pyspark_rmq.options.cluster_options import ClusterOptions

_NAMES_A_MESSAGE: Final = {"commitLogOffset": "bigint", "msgId": "string"}


class ConsumedFrom(Protocol):
    """The place of the messages. `str()` names it in messages."""

    @property
    def location(self) -> StoreLocation:
        """The same for readers."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns, with their types, that name a message."""

    @property
    def sink_options(self) -> dict[str, str]:
        """The options with which the failures are written."""

    def maximum_option(self, given: int | None, of_group: int) -> dict[str, str]:
        """The option with the maximum of retries: the one that `consume` was `given`, else that of the group."""

    @property
    def away_ms(self) -> int:
        """So long a batch waits for somebody who is away."""

    def prepare(self, group: str, max_reconsume_times: int | None) -> None:
        """Make sure that the place can be written, and store the maximum where it is a setting of the group."""


@runtime_checkable
class MarkedBatches(Protocol):
    """A place that knows a batch whose failures were all sent back."""

    def last_sent_back(self, key: str) -> int | None:
        """The newest value of a send-back marker; None if there is none."""


@dataclass(frozen=True)
class ConsumedStore:
    """The store at `path`."""

    path: str

    def __str__(self) -> str:
        return str(self.location)

    @property
    def location(self) -> StoreLocation:
        """As `ConsumedFrom.location`."""
        return StoreDirectory(self.path)

    @property
    def columns(self) -> dict[str, str]:
        """As `ConsumedFrom.columns`."""
        return _NAMES_A_MESSAGE

    @property
    def sink_options(self) -> dict[str, str]:
        """As `ConsumedFrom.sink_options`."""
        return {"path": self.path, "repeatable": "false"}

    def maximum_option(self, given: int | None, of_group: int) -> dict[str, str]:
        """As `ConsumedFrom.maximum_option`."""
        return {"maxReconsumeTimes": str(of_group if given is None else given)}

    @property
    def away_ms(self) -> int:
        """As `ConsumedFrom.away_ms`: a store is never away."""
        return 0

    def prepare(self, group: str, max_reconsume_times: int | None) -> None:
        """As `ConsumedFrom.prepare`. Raises what `Store.open` raises."""
        store_writer.prepare_to_consume(self.path, group, max_reconsume_times)

    def last_sent_back(self, key: str) -> int | None:
        """As `MarkedBatches.last_sent_back`. Raises what `Store.open` raises."""
        return store_writer.last_sent_back(self.path, key)


@dataclass(frozen=True)
class ConsumedCluster:
    """The cluster of `options`, which were `given` as texts."""

    options: ClusterOptions
    given: Mapping[str, str]

    def __str__(self) -> str:
        return str(self.location)

    @property
    def location(self) -> StoreLocation:
        """As `ConsumedFrom.location`."""
        return ClusterLocation(self.options)

    @property
    def columns(self) -> dict[str, str]:
        """As `ConsumedFrom.columns`: two brokers may have messages at the same commit-log offset."""
        return {"brokerName": "string", **_NAMES_A_MESSAGE}

    @property
    def sink_options(self) -> dict[str, str]:
        """As `ConsumedFrom.sink_options`."""
        return dict(self.given)

    def maximum_option(self, given: int | None, of_group: int) -> dict[str, str]:
        """As `ConsumedFrom.maximum_option`, without that of the group: each broker has a setting of its own, and none
        counts for the others.
        """
        return {} if given is None else {"maxReconsumeTimes": str(given)}

    @property
    def away_ms(self) -> int:
        """As `ConsumedFrom.away_ms`: the option brokerAwayTimeout."""
        return self.options.broker_away_timeout_ms

    def prepare(self, group: str, max_reconsume_times: int | None) -> None:
        """A cluster is asked nothing before the first batch."""


def consumed_from(path: object, options: Mapping[str, str] | None, caller: str) -> ConsumedStore | ConsumedCluster:
    """The place that the arguments of `caller` name: either a path, or options of a cluster.

    Raises:
        UsageError: both or none are given; an option is unknown, or is none of a write to a cluster.
    """
    if options is None:
        if path is None:
            refuse(f"{caller} needs path=, the directory of a store, or options= with the option {NAME_SERVER}")
        return ConsumedStore(local_path(path_text("path", path), "path"))
    if path is not None:
        refuse(f"path and options of {caller} exclude each other: the messages are in a store or at brokers")
    if not isinstance(options, Mapping) or NAME_SERVER.lower() not in {str(name).lower() for name in options}:
        refuse(f"options of {caller} must have the option {NAME_SERVER}; a store is named by path=")
    from pyspark_rmq.options.options import sink_options

    given = {str(name): str(value) for name, value in options.items()}
    # As the sink will see them: what it refuses is refused before the query starts.
    parsed = sink_options({**given, "sendBack": "group", "txnAppId": caller, "txnVersion": "0"}, "batch write")
    assert parsed.cluster is not None  # the option is there
    return ConsumedCluster(parsed.cluster, given)
