"""Bodies of name servers: routes, clusters, lists of names, registrations (TopicRouteData.java, ClusterInfo.java)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.topics import TopicConfigTable

MASTER_ID = 0
TIMER_MESSAGES: Final = "timerMessages"
"""A figure (28) that only served stores have. `true`: they keep messages until their deliver time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData(JsonBody):
    """The queues of a topic at one broker. Both numbers count queues; `perm`: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData(JsonBody):
    """The addresses of a broker group by broker id: 0 is the master, others are slaves."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool | None = None
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData(JsonBody):
    """The route of a topic (105). `topic_queue_mapping_by_broker` is not empty for static topics (5.x)."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, Any] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo(JsonBody):
    """All brokers by name, and the names of the brokers of each cluster (106)."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(JsonBody):
    """Names of topics (206, 224, 343)."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable(JsonBody):
    """Pairs of texts: the figures of a broker (28), or a name space of a name server (219)."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody(JsonBody):
    """The topics of a broker that registers (103)."""

    topic_config_serialize_wrapper: TopicConfigTable
    filter_server_list: tuple[str, ...] = ()
