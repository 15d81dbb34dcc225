"""Options of a mirror from Kafka into a store."""

from __future__ import annotations

import re
from typing import Final, Literal

from rmq_store.bridge.mirror.pace import Window
from rmq_store.bridge.positions.topics import TopicChoice, check_mirror_name
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
Start = Literal["earliest", "latest"] | int
"""Where a partition begins that has no position yet; a time in ms since 1970: at the first record not before it."""

_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class IntoStoreOptions:
    """`mirror`: its name. `cluster_id`: of the RocketMQ side, the user's choice. `choice`: the topics.

    `create_topics`: create and extend target topics. `start`: the start of partitions that exist at the first run, and
    of topics that are named later; others begin at the earliest record. `rate`: records per second. `windows`: times of
    the day at which it copies; none: always. `on_data_loss` `count`: records that Kafka deleted are counted, and the
    mirror goes on. `on_bad_batch` `letter`: a batch that cannot be decoded becomes a dead letter with its offset.
    `restart_replaced`: a topic that was created again begins anew. `tags_header`: the header that becomes TAGS.
    `letters_max`: dead letters of one run; more end it.

    Raises (when constructed):
        UsageError: an invalid value.
    """

    mirror: str
    cluster_id: str
    choice: TopicChoice
    create_topics: bool = False
    start: Start = "earliest"
    rate: float | None = None
    windows: tuple[Window, ...] = ()
    on_data_loss: Literal["fail", "count"] = "fail"
    on_bad_batch: Literal["fail", "letter"] = "fail"
    restart_replaced: bool = False
    tags_header: str | None = None
    born_timestamp: Literal["keep", "mirror"] = "keep"
    topics_max: int = 1_000
    partitions_max: int = 1_024
    letters_max: int | None = None

    def __post_init__(self) -> None:
        check_mirror_name(self.mirror)
        if not _CLUSTER_ID.fullmatch(self.cluster_id):
            raise UsageError(
                f"the cluster id {self.cluster_id!r}: 1 to 64 letters, digits, dots, _ and - are expected. Choose one "
                "that no other cluster has, and keep it"
            )
        if self.rate is not None and not self.rate > 0:
            raise UsageError("the rate must be positive")
