"""Typed headers of requests to name servers (RegisterBrokerRequestHeader.java and others)."""

from __future__ import annotations

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequestHeader(RequestHeader):
    """A broker and its topics, which are in the body."""

    code = RequestCode.REGISTER_BROKER

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    compressed: bool = False
    body_crc32: int = 0
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponseHeader(ResponseHeader):
    """The addresses of a slave's master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnRegisterBrokerRequestHeader(RequestHeader):
    """A broker that stops."""

    code = RequestCode.UNREGISTER_BROKER

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionRequestHeader(RequestHeader):
    """A question: does the name server know this version of a broker's topics? It is in the body."""

    code = RequestCode.QUERY_DATA_VERSION

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponseHeader(ResponseHeader):
    """True: the broker has to register again."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(RequestHeader):
    """The route of a topic."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterInfoRequestHeader(RequestHeader):
    """All clusters with their brokers."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicListFromNamesrvRequestHeader(RequestHeader):
    """The names of all topics."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(RequestHeader):
    """The names of a cluster's topics."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListFromNamesrvRequestHeader(RequestHeader):
    """The names of clusters and brokers, and the address of a broker that knows the other topics of the system."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(RequestHeader):
    """No more writes to a broker, in all routes."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(ResponseHeader):
    """The number of topics that have changed."""

    wipe_topic_count: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfigRequestHeader(RequestHeader):
    """A pair of a name space, for example of ORDER_TOPIC_CONFIG."""

    code = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigRequestHeader(RequestHeader):
    """One value of a name space."""

    code = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponseHeader(ResponseHeader):
    """The value."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(RequestHeader):
    """A pair that is to go."""

    code = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNamesrvConfigRequestHeader(RequestHeader):
    """The settings of a name server."""

    code = RequestCode.GET_NAMESRV_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(RequestHeader):
    """All pairs of a name space."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str
