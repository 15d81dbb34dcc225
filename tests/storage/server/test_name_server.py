"""A name server alone, and stores that register with it."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.patient import PATIENT
from rmq_store import Store, StoreConfig, UsageError
from rmq_store.client import LitePullConsumer, Message, Producer
from rmq_store.protocol.bodies import compressed_registration
from rmq_store.protocol.bodies.routes import BrokerData, KVTable, TopicRouteData
from rmq_store.protocol.bodies.topics import DataVersion
from rmq_store.protocol.errors import RemotingCommandError, ResponseCode
from rmq_store.protocol.wire.admin_headers import DeleteTopicFromNamesrvRequestHeader
from rmq_store.protocol.wire.command import LanguageCode, RemotingCommand
from rmq_store.protocol.wire.header_fields import RequestHeader, request
from rmq_store.protocol.wire.name_server_headers import (
    DeleteKVConfigRequestHeader,
    GetAllTopicListFromNamesrvRequestHeader,
    GetBrokerClusterInfoRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server import registration
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server import kv_configs, route_table
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.testing.broker import wait_until

NAMESPACE = kv_configs.ORDER_TOPIC_CONFIG


ELSEWHERE = "127.0.0.1:9"


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    with NameServer() as name_server:
        yield name_server


@pytest.fixture
def other() -> Iterator[NameServer]:
    with NameServer() as name_server:
        yield name_server


@pytest.fixture
def client(name_server: NameServer) -> Iterator[RemotingClient]:
    with RemotingClient(ClusterSettings.of_text(name_server.address)) as client:
        yield client


def ask(client: RemotingClient, header: RequestHeader, body: bytes = b"") -> RemotingCommand:
    return client.call(client.settings.name_servers[0], request(header, body))


def addresses(name_server: NameServer, topic: str = "Orders") -> list[str]:
    """The masters that have a topic."""
    route = name_server.routes.route(topic)
    return [one.broker_addrs[0] for one in route.broker_datas] if route is not None else []


def test_a_store_is_found_by_way_of_every_name_server_until_it_stops(
    scratch: Path, small: StoreConfig, name_server: NameServer, other: NameServer
) -> None:
    both = f"{name_server.address};{other.address}"
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=both) as server:
        assert addresses(name_server, "TBW102") == addresses(other, "TBW102") == [server.address]
        with Producer("pg", f"rmq://{other.address}", config=PATIENT) as producer:
            producer.send(Message("Orders", b"a"))
        # The new topic is registered at once, and not only after 30 s.
        wait_until(lambda: addresses(name_server) == addresses(other) == [server.address])
        with LitePullConsumer("cg", f"rmq://{name_server.address}") as consumer:
            consumer.subscribe("Orders")
            consumer.start()
            found: list[bytes] = []
            wait_until(lambda: found.extend(one.body for one in consumer.poll(100)) or found == [b"a"])
    assert addresses(name_server, "TBW102") == addresses(other) == []
    assert name_server.routes.clusters().broker_addr_table == {}


def test_a_stopped_name_server_keeps_nobody_from_the_others(
    scratch: Path, small: StoreConfig, other: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    gone = NameServer()
    gone.close()
    with caplog.at_level(logging.WARNING):
        both = f"{gone.address};{other.address}"
        with BrokerServer(scratch / "store", config=small, create=True, name_servers=both) as server:
            assert addresses(other, "TBW102") == [server.address]
    silent = [record.getMessage() for record in caplog.records if gone.address in record.getMessage()]
    assert silent and "is not registered with name server" in silent[0]


def test_a_name_server_that_answers_nonsense_keeps_nobody_from_the_others(
    scratch: Path, small: StoreConfig, name_server: NameServer, other: NameServer,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    nonsense = SimpleNamespace(encode=lambda **_: b"}")
    monkeypatch.setattr(name_server.routes, "clusters", lambda: nonsense)
    both = f"{name_server.address};{other.address}"
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=both) as server:
        assert addresses(other, "TBW102") == [server.address]
        assert addresses(name_server, "TBW102") == []
    assert f"is not registered with name server {name_server.address}" in caplog.text


def test_a_name_that_is_known_with_another_address_is_refused(
    scratch: Path, small: StoreConfig, name_server: NameServer
) -> None:
    with BrokerServer(scratch / "first", config=small, create=True, name_servers=name_server.address) as first:
        with pytest.raises(UsageError, match=f"knows the broker rmq-embedded with the address {first.address}"):
            BrokerServer(scratch / "second", config=small, create=True, name_servers=name_server.address)
        assert addresses(name_server, "TBW102") == [first.address]
        with Store.open(scratch / "second") as second:  # clients of this store find nothing at the refused address
            assert second.config.broker_host == StoreConfig().broker_host
    BrokerServer(scratch / "second", name_servers=name_server.address).close()  # nothing is left open by a refusal


@pytest.fixture
def taken(
    scratch: Path, small: StoreConfig, name_server: NameServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[BrokerServer]:  # fmt: skip
    """A server whose name belongs to another broker, as when the name server was away while that one began. RocketMQ's
    name server believes the last that registers.
    """
    monkeypatch.setattr(registration, "_PERIOD_S", 0.0)
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=name_server.address) as server:
        other = BrokerData(cluster="c", broker_name="rmq-embedded", broker_addrs={0: ELSEWHERE})
        name_server.routes.unregister("rmq-embedded", 0, server.address)
        name_server.routes.register(other, 0, ELSEWHERE, {})
        wait_until(lambda: f"it knows the broker rmq-embedded with the address {ELSEWHERE}" in caplog.text)
        yield server


def test_a_name_that_another_broker_has_taken_is_left_to_it_until_it_leaves(
    taken: BrokerServer, name_server: NameServer
) -> None:
    assert name_server.routes.clusters().broker_addr_table["rmq-embedded"].broker_addrs == {0: ELSEWHERE}
    name_server.routes.unregister("rmq-embedded", 0, ELSEWHERE)
    wait_until(lambda: addresses(name_server, "TBW102") == [taken.address])


def test_a_server_that_stops_takes_nobody_else_out_of_the_routes(
    taken: BrokerServer, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's name server of 4.9 removes the id of the name, whatever its address."""
    left: list[tuple[object, ...]] = []
    monkeypatch.setattr(name_server.routes, "unregister", lambda *arguments: left.append(arguments))
    taken.close()
    assert left == []


def test_a_store_registers_again_before_it_expires(
    scratch: Path, small: StoreConfig, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_PERIOD_S", 0.0)
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=name_server.address) as server:
        name_server.routes.unregister("rmq-embedded", 0, server.address)
        wait_until(lambda: addresses(name_server, "TBW102") == [server.address])


def test_clients_are_told_the_advertised_address(scratch: Path, small: StoreConfig, name_server: NameServer) -> None:
    address = "192.0.2.7:10911"
    root, ns = scratch / "store", name_server.address
    with BrokerServer(root, config=small, create=True, host="0.0.0.0", advertise=address, name_servers=ns) as server:
        assert server.address == address == server.store.config.broker_host
        assert addresses(name_server, "TBW102") == [address]
    for wrong in ("0.0.0.0:1", "192.0.2.7:0", "[::]:1", "broker:10911"):
        with pytest.raises(UsageError, match=r"ip:port|IP address"):
            BrokerServer(scratch / "other", create=True, advertise=wrong)
    assert not (scratch / "other").exists()


def test_an_address_server_is_no_name_server(scratch: Path, small: StoreConfig) -> None:
    with pytest.raises(UsageError, match="address server"):
        BrokerServer(scratch / "store", config=small, create=True, name_servers="http://ns/rocketmq/nsaddr")


def test_a_server_registers_with_a_name_server_that_is_given_as_a_url(
    scratch: Path, small: StoreConfig, name_server: NameServer
) -> None:
    url = f"http://{name_server.address}"
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=url) as server:
        assert addresses(name_server, "TBW102") == [server.address]


def test_pairs_are_kept_and_the_order_of_a_topic_is_in_its_route(
    scratch: Path, small: StoreConfig, name_server: NameServer, client: RemotingClient
) -> None:
    assert ask(client, GetKVConfigRequestHeader(namespace=NAMESPACE, key="Orders")).code == ResponseCode.QUERY_NOT_FOUND
    ask(client, PutKVConfigRequestHeader(namespace=NAMESPACE, key="TBW102", value="rmq-embedded:3"))
    answer = ask(client, GetKVConfigRequestHeader(namespace=NAMESPACE, key="TBW102"))
    assert GetKVConfigResponseHeader.from_ext(answer.ext_fields).value == "rmq-embedded:3"
    pairs = ask(client, GetKVListByNamespaceRequestHeader(namespace=NAMESPACE))
    assert KVTable.decode(pairs.body).table == {"TBW102": "rmq-embedded:3"}
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=name_server.address):
        route = ask(client, GetRouteInfoRequestHeader(topic="TBW102"))
        assert TopicRouteData.decode(route.body).order_topic_conf == "rmq-embedded:3"
    ask(client, DeleteKVConfigRequestHeader(namespace=NAMESPACE, key="TBW102"))
    assert ask(client, GetKVListByNamespaceRequestHeader(namespace=NAMESPACE)).code == ResponseCode.QUERY_NOT_FOUND


def test_pairs_have_a_limit(client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_configs, "CHARACTERS_MAX", 20)
    put = PutKVConfigRequestHeader(namespace="n", key="k", value="x" * 18)
    assert ask(client, put).code == ask(client, put).code == 0  # the same pair again
    more = ask(client, PutKVConfigRequestHeader(namespace="n", key="l", value=""))
    assert more.code == ResponseCode.SYSTEM_ERROR and "20 characters" in str(more.remark)
    ask(client, DeleteKVConfigRequestHeader(namespace="n", key="k"))
    assert ask(client, PutKVConfigRequestHeader(namespace="n", key="l", value="x")).code == 0


def test_a_broker_is_asked_to_register_only_if_its_topics_have_changed(
    scratch: Path, small: StoreConfig, name_server: NameServer, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def question(address: str, version: DataVersion) -> tuple[bool, bytes]:
        header = QueryDataVersionRequestHeader(
            broker_name="rmq-embedded", broker_addr=address, cluster_name="DefaultCluster", broker_id=0
        )
        answer = ask(client, header, version.encode())
        return QueryDataVersionResponseHeader.from_ext(answer.ext_fields).changed, answer.body

    with BrokerServer(scratch / "store", config=small, create=True, name_servers=name_server.address) as server:
        changed, body = question(server.address, DataVersion(counter=99))
        assert changed
        registered = DataVersion.decode(body)
        assert registered.counter == 1
        assert question("192.0.2.1:1", registered) == (True, b"")
        begin_s = route_table.real_time.monotonic()
        monkeypatch.setattr(route_table.real_time, "monotonic", lambda: begin_s + 119)
        assert question(server.address, registered) == (False, body)
        monkeypatch.setattr(route_table.real_time, "monotonic", lambda: begin_s + 238)
        assert addresses(name_server, "TBW102") == [server.address]  # the question has kept it alive


def compressed(topics: list[str], *, count: int | None = None) -> bytes:
    """A body as RegisterBrokerBody.java writes it with compressedRegister=true."""

    def text(value: str) -> bytes:
        return len(value.encode()).to_bytes(4, "big") + value.encode()

    number = (len(topics) if count is None else count).to_bytes(4, "big", signed=True)
    parts = [text('{"counter":3,"stateVersion":0,"timestamp":1}'), number, *map(text, topics), text("[]"), bytes(4)]
    return zlib.compress(b"".join(parts), 9)


def registration_of(body: bytes, *, crc32: int | None = None) -> RemotingCommand:
    header = RegisterBrokerRequestHeader(
        broker_name="java", broker_addr="192.0.2.1:10911", cluster_name="c1", ha_server_addr="192.0.2.1:10912",
        broker_id=0, compressed=True, body_crc32=zlib.crc32(body) & 0x7FFFFFFF if crc32 is None else crc32,
    )  # fmt: skip
    return request(header, body)


def test_a_compressed_registration_of_a_java_broker_is_read(name_server: NameServer, client: RemotingClient) -> None:
    body = compressed(["Orders 4 2 6 SINGLE_TAG {}", "Bills 1 1 4 MULTI_TAG "])
    answer = client.call(name_server.address, registration_of(body))
    assert answer.code == 0, answer.remark
    route = name_server.routes.route("Orders")
    assert route is not None
    queues = route.queue_datas[0]
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 2, 6)
    assert name_server.routes.topics() == ["Bills", "Orders"]


def test_a_java_broker_that_registers_a_changed_topic_keeps_its_others(
    name_server: NameServer, client: RemotingClient
) -> None:
    """BrokerController#registerIncrementBrokerData: each topic that is made or changed is registered alone. Topics go
    with a registration that has all others.
    """

    def register(*topics: str) -> list[str]:
        command = registration_of(compressed([f"{topic} 4 4 6 SINGLE_TAG" for topic in topics]))
        command.language = LanguageCode.JAVA
        assert client.call(name_server.address, command).code == 0
        return name_server.routes.topics()

    assert register("SELF_TEST_TOPIC", "Orders", "Bills") == ["Bills", "Orders", "SELF_TEST_TOPIC"]
    assert register("New") == ["Bills", "New", "Orders", "SELF_TEST_TOPIC"]
    assert register("Orders") == ["Bills", "New", "Orders", "SELF_TEST_TOPIC"]
    assert register("SELF_TEST_TOPIC", "New") == ["New", "SELF_TEST_TOPIC"]


def test_a_topic_is_deleted_in_one_cluster(server: BrokerServer, client: RemotingClient) -> None:
    """RouteInfoManager#deleteTopic: mqadmin deleteTopic -c names the cluster, and others still have the topic."""
    for cluster in ("c1", "c2"):
        command = registration_of(compressed(["Orders 4 4 6 SINGLE_TAG"]))
        command.ext_fields |= {"clusterName": cluster, "brokerName": cluster, "brokerAddr": f"192.0.2.1:{cluster[1]}"}
        assert client.call(server.address, command).code == 0

    def delete(cluster: str | None) -> set[str]:
        ask_server = request(DeleteTopicFromNamesrvRequestHeader(topic="Orders", cluster_name=cluster))
        assert client.call(server.address, ask_server).code == 0
        route = server.routes.route("Orders")
        return {one.broker_name for one in route.broker_datas} if route is not None else set()

    assert delete("c3") == {"c1", "c2"}
    assert delete("c1") == {"c2"}
    assert delete(None) == set()


def test_a_slave_is_told_where_it_copies_the_log_of_its_master(
    name_server: NameServer, client: RemotingClient
) -> None:
    """RouteInfoManager#registerBroker, BrokerController#handleRegisterBrokerResult."""

    def register(broker_id: int) -> dict[str, str]:
        command = registration_of(compressed([]))
        command.ext_fields |= {
            "brokerId": str(broker_id), "brokerAddr": f"192.0.2.{broker_id}:1", "haServerAddr": f"192.0.2.{broker_id}:2"
        }  # fmt: skip
        answer = client.call(name_server.address, command)
        assert answer.code == 0, answer.remark
        return dict(answer.ext_fields)

    assert register(1) == register(0) == {}
    assert register(1) == {"masterAddr": "192.0.2.0:1", "haServerAddr": "192.0.2.0:2"}


@pytest.mark.parametrize(
    "body",
    [
        b"no zlib",
        compressed(["Orders 4 2 6 SINGLE_TAG"])[:-3],
        compressed(["Orders 4 2"]),
        compressed(["Orders four 2 6 SINGLE_TAG"]),
        compressed(["Orders 4 2 6 SINGLE_TAG"], count=9),
        compressed([], count=-1),
        zlib.compress(b"\x7f\xff\xff\xff{}"),
        zlib.compress(b"\0\0"),
    ],
)
def test_a_broken_registration_is_refused(name_server: NameServer, client: RemotingClient, body: bytes) -> None:
    answer = client.call(name_server.address, registration_of(body))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "registration" in str(answer.remark)
    assert name_server.routes.topics() == []


def test_a_registration_with_another_checksum_is_refused(name_server: NameServer, client: RemotingClient) -> None:
    answer = client.call(name_server.address, registration_of(compressed(["Orders 4 2 6 SINGLE_TAG"]), crc32=1))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "CRC" in str(answer.remark)


def test_a_registration_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_registration, "BODY_BYTES_MAX", 1000)
    with pytest.raises(RemotingCommandError, match="more than 1000 bytes"):
        compressed_registration.decode_compressed_registration(zlib.compress(bytes(1 << 20)))


def test_a_registration_says_how_many_topics_it_has_before_they_are_read() -> None:
    with pytest.raises(RemotingCommandError, match="has 100001 topics, at most 100000"):
        compressed_registration.decode_compressed_registration(compressed([], count=100_001))


USERS = """
[[user]]
access_key = "broker"
secret_key = "secret-of-broker"
admin = true

[[user]]
access_key = "client"
secret_key = "secret-of-client"
topics = { "*" = "PUB|SUB" }
"""


@pytest.fixture
def keys(scratch: Path) -> Callable[[str], dict[str, str]]:
    """References of a user's keys."""

    def of(name: str) -> dict[str, str]:
        if not name:
            return {}
        for file, text in ((f"{name}.access", name), (f"{name}.secret", f"secret-of-{name}")):
            (scratch / file).write_text(text)
        return {"access_key": f"file:{scratch}/{name}.access", "secret_key": f"file:{scratch}/{name}.secret"}

    return of


@pytest.fixture
def guarded(scratch: Path) -> Iterator[NameServer]:
    (scratch / "acl.toml").write_text(USERS)
    (scratch / "acl.toml").chmod(0o600)
    with NameServer(acl_file=scratch / "acl.toml") as name_server:
        yield name_server


REGISTER = RegisterBrokerRequestHeader(
    broker_name="broker-x", broker_addr="10.0.0.1:10911", cluster_name="C", ha_server_addr="10.0.0.1:10912", broker_id=0
)
UNREGISTER = UnRegisterBrokerRequestHeader(
    broker_name="broker-x", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
)
PUT = PutKVConfigRequestHeader(namespace="n", key="k", value="v")


@pytest.mark.parametrize(
    ("header", "who"),
    [
        (REGISTER, "broker"),
        (UNREGISTER, "broker"),
        (
            QueryDataVersionRequestHeader(
                broker_name="broker-x", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
            ),
            "broker",
        ),
        (PUT, "broker"),
        (DeleteKVConfigRequestHeader(namespace="n", key="k"), "broker"),
        (GetKVConfigRequestHeader(namespace="n", key="k"), "client"),
        (GetKVListByNamespaceRequestHeader(namespace="n"), "client"),
        (GetRouteInfoRequestHeader(topic="Orders"), "client"),
        (GetBrokerClusterInfoRequestHeader(), "client"),
        (GetAllTopicListFromNamesrvRequestHeader(), "client"),
        (GetTopicsByClusterRequestHeader(cluster="C"), "client"),
    ],
)
def test_routes_are_changed_by_administrators_and_asked_for_by_users(
    guarded: NameServer, keys: Callable[[str], dict[str, str]], header: RequestHeader, who: str
) -> None:
    names = ["", "client", "broker"]
    body = DataVersion().encode() if isinstance(header, QueryDataVersionRequestHeader) else b"{}"
    for name in names:
        with RemotingClient(ClusterSettings.of_text(guarded.address, **keys(name))) as client:
            answer = ask(client, header, body)
        is_refused = names.index(name) < names.index(who)
        assert (answer.code == ResponseCode.NO_PERMISSION) is is_refused, (name, answer.code, answer.remark)
        assert "secret-of" not in (answer.remark or "")


def test_a_store_registers_with_its_keys_and_not_without(
    scratch: Path, small: StoreConfig, guarded: NameServer, keys: Callable[[str], dict[str, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for name in ("", "client"):
        settings = ClusterSettings.of_text(guarded.address, **keys(name))
        with BrokerServer(scratch / f"store{name}", config=small, create=True, name_servers=settings):
            assert addresses(guarded, "TBW102") == []
        assert any("is not registered" in record.message and "16" in record.message for record in caplog.records)
        caplog.clear()
    settings = ClusterSettings.of_text(guarded.address, **keys("broker"))
    with BrokerServer(scratch / "store", config=small, create=True, name_servers=settings) as server:
        assert addresses(guarded, "TBW102") == [server.address]
    assert addresses(guarded, "TBW102") == []


def test_a_changed_file_of_users_counts_at_a_name_server(
    scratch: Path, guarded: NameServer, keys: Callable[[str], dict[str, str]]
) -> None:
    with RemotingClient(ClusterSettings.of_text(guarded.address, **keys("client"))) as client:
        assert ask(client, PUT).code == ResponseCode.NO_PERMISSION
        (scratch / "acl.toml").write_text(USERS.replace('topics = { "*" = "PUB|SUB" }', "admin = true"))
        wait_until(lambda: ask(client, PUT).code == ResponseCode.SUCCESS)
