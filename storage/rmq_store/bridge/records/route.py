"""The source and target of a copy by a mirror: one partition or queue on each side."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

_CLUSTER_ID = re.compile(r"[!-~]{1,255}", re.ASCII)
_HASH_BYTES = 8


@dataclass(frozen=True)
class Route:
    """The source and target of a copy. A partition is Kafka's, or a queue id of RocketMQ. `source_topic_id`: Kafka's
    topic id, which a topic that is created again does not have; "" if unknown.

    Raises:
        UsageError: an id that is no word of printable ASCII, or the same id on both sides.
    """

    source_cluster: str
    source_topic: str
    source_partition: int
    target_cluster: str
    target_topic: str
    target_partition: int
    source_topic_id: str = ""

    def __post_init__(self) -> None:
        for cluster_id in (self.source_cluster, self.target_cluster):
            if not _CLUSTER_ID.fullmatch(cluster_id):
                raise UsageError(
                    f"{cluster_id!r} cannot be a cluster id: printable ASCII characters without spaces only"
                )
        if self.source_cluster == self.target_cluster:
            raise UsageError(
                f"source and target have the same cluster id, {self.source_cluster!r}: a mirror could not tell its own "
                "copies from others; give the RocketMQ side an id of its own"
            )

    @property
    def source(self) -> tuple[str, str]:
        """Cluster id and topic."""
        return self.source_cluster, self.source_topic

    @property
    def target(self) -> tuple[str, str]:
        """Cluster id and topic."""
        return self.target_cluster, self.target_topic

    @cached_property
    def source_hash(self) -> str:
        """16 hex digits that identify the source partition. Every mirror of it gets the same."""
        named = [self.source_cluster, self.source_topic, self.source_topic_id, self.source_partition]
        text = json.dumps(named, ensure_ascii=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest().upper()
