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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

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


@dataclass(frozen=True)
class ConsumedFrom:
    """The place of the messages: `path`, or with an empty one the cluster that the options `given` name."""

    path: str
    cluster: ClusterOptions | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.location)

    @property
    def location(self) -> StoreLocation:
        """The same for readers."""
        return StoreDirectory(self.path) if self.cluster is None else ClusterLocation(self.cluster)

    @property
    def columns(self) -> dict[str, str]:
        """The columns, with their types, that name a message."""
        return _NAMES_A_MESSAGE if self.cluster is None else {"brokerName": "string", **_NAMES_A_MESSAGE}

    @property
    def has_marker(self) -> bool:
        """Whether a batch whose failures are all sent back is known as such."""
        return self.cluster is None

    @property
    def sink_options(self) -> dict[str, str]:
        """The options with which the failures are written."""
        return {"path": self.path, "repeatable": "false"} if self.cluster is None else dict(self.given)

    def maximum_option(self, given: int | None, of_group: int) -> dict[str, str]:
        """The option with the maximum of retries: the one that `consume` was `given`, else that of the group. Each
        broker of a cluster has a setting of its own, and none counts for the others.
        """
        if given is None and self.cluster is not None:
            return {}
        return {"maxReconsumeTimes": str(of_group if given is None else given)}

    def prepare(self, group: str, max_reconsume_times: int | None) -> None:
        """Make sure that the place can be written, and store the maximum where it is a setting of the group. Raises
        what `Store.open` raises. A cluster is asked nothing before the first batch.
        """
        if self.cluster is None:
            store_writer.prepare_to_consume(self.path, group, max_reconsume_times)


def consumed_from(path: object, options: Mapping[str, str] | None, caller: str) -> ConsumedFrom:
    """The place that the arguments of `caller` name: either a path, or options of a cluster.

    Raises:
        UsageError: both or none are given; an option is unknown, or is none of a write to a cluster.
    """
    if options is None:
        if path is None:
            refuse(f"{caller} needs path=, the directory of a store, or options= with the option {NAME_SERVER}")
        return ConsumedFrom(local_path(path_text("path", path), "path"))
    if path is not None:
        refuse(f"path and options of {caller} exclude each other: the messages are in a store or at brokers")
    if not isinstance(options, Mapping) or NAME_SERVER.lower() not in {str(name).lower() for name in options}:
        refuse(f"options of {caller} must have the option {NAME_SERVER}; a store is named by path=")
    from pyspark_rmq.options.options import sink_options

    given = {str(name): str(value) for name, value in options.items()}
    # As the sink will see them: what it refuses is refused before the query starts.
    parsed = sink_options({**given, "sendBack": "group", "txnAppId": caller, "txnVersion": "0"}, "batch write")
    return ConsumedFrom("", parsed.cluster, given)
