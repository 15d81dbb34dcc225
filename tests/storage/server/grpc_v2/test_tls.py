"""gRPC over TLS, alone or beside a port in plain text: certificates, the port that routes name, what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import rocketmq

from helpers.grpc_stub import Stub
from rmq_store import StoreConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.errors import UsageError
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.tls import Certificate
from rmq_store.server.transport.tls import TlsFiles
from rmq_store.testing import RmqTestBroker

PATIENCE_S = 120

# Over TLS, as RocketMQ's users write it. Arguments: the address, the group, how many messages there will be.
CLIENT = """
import sys, rocketmq
address, group, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
configuration = rocketmq.ClientConfiguration(address, rocketmq.Credentials(), request_timeout=30)
producer = rocketmq.Producer(configuration, ("Orders",), tls_enable=True)
producer.startup()
message = rocketmq.Message()
message.topic, message.body = "Orders", b"over TLS"
producer.send(message)
everything = {"Orders": rocketmq.FilterExpression("*")}
consumer = rocketmq.SimpleConsumer(configuration, group, everything, 3, tls_enable=True)
consumer.startup()
bodies = []
while len(bodies) < count:
    for message in consumer.receive(8, 60):
        bodies.append(message.body.decode())
        consumer.ack(message)
print(*sorted(bodies), sep=", ")
consumer.shutdown()
producer.shutdown()
"""


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return Certificate.self_signed("127.0.0.1")


@pytest.fixture
def both(root: Path, small: StoreConfig, certificate: Certificate) -> Iterator[BrokerServer]:
    """A server with a plain port and one with TLS."""
    with BrokerServer(
        root, config=small, create=True, grpc_port=0, grpc_tls_port=0, grpc_certificate=certificate
    ) as server:
        yield server


def port_of(address: str | None) -> int:
    return int(str(address).rpartition(":")[2])


def callers(server: BrokerServer, certificate: Certificate) -> Iterator[tuple[str | None, Stub]]:
    """A client of each port, with the address that it must be told."""
    for told, credentials in (
        (server.grpc_address, None),
        (server.grpc_tls_address, grpc.ssl_channel_credentials(certificate.chain)),
    ):
        stub = Stub(f"127.0.0.1:{port_of(told)}", credentials=credentials)
        yield told, stub
        stub.close()


def named(queue: Any) -> str:
    """The address in a queue of a route or an assignment."""
    [address] = queue.broker.endpoints.addresses
    return f"{address.host}:{address.port}"


def test_routes_and_assignments_name_the_port_of_the_call(both: BrokerServer, certificate: Certificate) -> None:
    both.store.create_topic("Orders", 2)
    assert both.grpc_address != both.grpc_tls_address
    for told, stub in callers(both, certificate):
        assert stub.send("Orders", b"x").status.code == Code.OK
        assert [named(one) for one in stub.call("QueryRoute", topic={"name": "Orders"}).message_queues] == [told] * 2
        answer = stub.call("QueryAssignment", topic={"name": "Orders"}, group={"name": "cg"})
        assert [named(one.message_queue) for one in answer.assignments] == [told]


def test_an_advertised_host_has_the_port_of_the_call(root: Path, small: StoreConfig, certificate: Certificate) -> None:
    with BrokerServer(
        root, config=small, create=True, host="0.0.0.0", advertise="127.0.0.2:10911",
        grpc_port=0, grpc_tls_port=0, grpc_certificate=certificate,
    ) as server:  # fmt: skip
        for told, stub in callers(server, certificate):
            assert str(told).startswith("127.0.0.2:")
            assert named(stub.call("QueryRoute", topic={"name": "Orders"}).message_queues[0]) == told


@pytest.mark.usefixtures("client_loop")
def test_the_official_client_speaks_tls_beside_one_that_does_not(
    both: BrokerServer, certificate: Certificate, scratch: Path
) -> None:
    """Each of them dials what its route names: the other port would refuse it. gRPC reads its roots once in a process,
    so the client over TLS has one of its own.
    """
    both.store.create_topic("Orders", 4)
    for group in ("over TLS", "plain"):
        both.store.create_group(SubscriptionGroup(group.replace(" ", "_")))
        both.store.commit_offsets(group.replace(" ", "_"), {("Orders", queue_id): 0 for queue_id in range(4)})
    configuration = rocketmq.ClientConfiguration(both.grpc_address, rocketmq.Credentials(), request_timeout=30)
    with ExitStack() as ends:
        producer = rocketmq.Producer(configuration, ("Orders",))
        producer.startup()
        ends.callback(producer.shutdown)
        message = rocketmq.Message()
        message.topic, message.body = "Orders", b"plain"
        producer.send(message)

        (scratch / "chain.pem").write_bytes(certificate.chain)
        environment = {**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(scratch / "chain.pem")}
        command = [sys.executable, "-c", CLIENT, str(both.grpc_tls_address), "over_TLS", "2"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=scratch
        )
        assert done.stdout == "over TLS, plain\n", done.stderr

        consumer = rocketmq.SimpleConsumer(configuration, "plain", {"Orders": rocketmq.FilterExpression("*")}, 3)
        consumer.startup()
        ends.callback(consumer.shutdown)
        bodies: list[bytes] = []
        while len(bodies) < 2:
            bodies += [one.body for one in consumer.receive(8, 60)]
        assert sorted(bodies) == [b"over TLS", b"plain"]


def test_a_certificate_on_one_port_only_leaves_no_plain_one(root: Path, certificate: Certificate) -> None:
    for ports in ({"grpc_port": 0}, {"grpc_tls_port": 0}):
        with BrokerServer(root, create=True, grpc_certificate=certificate, **ports) as server:
            assert server.grpc_address == server.grpc_tls_address
            stub = Stub(str(server.grpc_tls_address))
            with pytest.raises(grpc.RpcError):
                stub.send("Orders", b"x")
            stub.close()
    with BrokerServer(root, grpc_port=0) as server:
        assert server.grpc_address is not None and server.grpc_tls_address is None


def test_a_port_that_is_taken_is_named_and_the_other_one_is_given_back(
    root: Path, small: StoreConfig, certificate: Certificate
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        taken_port, free_port = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        with pytest.raises(UsageError, match=f"cannot serve gRPC at 127.0.0.1:{taken_port}"):
            BrokerServer(
                root, config=small, create=True,
                grpc_port=free_port, grpc_tls_port=taken_port, grpc_certificate=certificate,
            )  # fmt: skip
    with BrokerServer(root, grpc_port=free_port) as server:
        assert server.grpc_address == f"127.0.0.1:{free_port}"


def test_ports_that_do_not_fit_are_refused(root: Path, certificate: Certificate) -> None:
    with pytest.raises(UsageError, match=r"a gRPC port for TLS needs a certificate: .*grpc_certificate"):
        BrokerServer(root, create=True, grpc_port=0, grpc_tls_port=0)
    with pytest.raises(UsageError, match="needs two ports: 8081 is given for both"):
        BrokerServer(root, create=True, grpc_port=8081, grpc_tls_port=8081, grpc_certificate=certificate)
    assert not root.exists()


def test_a_broker_for_tests_makes_its_certificate(scratch: Path, certificate: Certificate) -> None:
    with RmqTestBroker(scratch / "plain", grpc_port=0) as broker, pytest.raises(UsageError, match="grpc_tls_port=0"):
        _ = broker.grpc_tls_address
    with RmqTestBroker(scratch / "made", grpc_port=0, grpc_tls_port=0) as broker:
        stub = Stub(broker.grpc_address)
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
        host, _, port = broker.grpc_tls_address.rpartition(":")
        shown = subprocess.run(
            ["openssl", "s_client", "-connect", f"{host}:{port}"], input=b"", capture_output=True, check=False
        )
        assert b"subject=CN = rmq" in shown.stdout or b"subject=CN=rmq" in shown.stdout
    with RmqTestBroker(scratch / "given", grpc_tls_port=0, grpc_certificate=certificate) as broker:
        stub = Stub(broker.grpc_tls_address, credentials=grpc.ssl_channel_credentials(certificate.chain))
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()


def test_a_self_signed_certificate_serves_its_address(root: Path, small: StoreConfig, certificate: Certificate) -> None:
    with BrokerServer(root, config=small, create=True, grpc_port=0, grpc_certificate=certificate) as server:
        stub = Stub(str(server.grpc_address), credentials=grpc.ssl_channel_credentials(certificate.chain))
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
        for credentials in (None, grpc.ssl_channel_credentials()):  # plain text; a client that verifies
            other = Stub(str(server.grpc_address), credentials=credentials)
            with pytest.raises(grpc.RpcError) as caught:
                other.send("Orders", b"x")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            other.close()


def test_a_certificate_of_files(root: Path, small: StoreConfig, scratch: Path) -> None:
    made = Certificate.self_signed("127.0.0.1")
    chain, key = scratch / "chain.pem", scratch / "key.pem"
    chain.write_bytes(made.chain)
    key.write_bytes(made.key)
    assert Certificate.of_files(chain, key) == made
    with pytest.raises(UsageError, match=r"none\.pem: cannot read the certificate or its key"):
        Certificate.of_files(chain, scratch / "none.pem")
    with pytest.raises(UsageError, match="cannot serve gRPC"):
        BrokerServer(root, create=True, grpc_port=0, grpc_certificate=Certificate(made.chain, b"no key"))


def test_no_key_is_shown() -> None:
    certificate = Certificate(b"chain", b"hidden")
    assert "hidden" not in repr(certificate) and "hidden" not in str(certificate)


def test_without_openssl_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"openssl command, .*, is missing: install it, or give CERT,KEY"):
        Certificate.self_signed("127.0.0.1")


def test_openssl_that_fails_is_no_certificate() -> None:
    with pytest.raises(UsageError, match="openssl made no certificate"):
        Certificate.self_signed("no address")


def test_without_the_extra_the_error_names_it(root: Path) -> None:
    program = (
        "import sys; sys.modules['grpc'] = None\n"
        "from rmq_store.server.broker_server import BrokerServer\n"
        "try:\n    BrokerServer(sys.argv[1], create=True, grpc_port=0)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout == "UsageError gRPC needs grpcio and protobuf: pip install '.[grpc]' in a clone\n"


def test_no_port_takes_whom_the_port_beside_it_refuses(root: Path, scratch: Path, certificate: Certificate) -> None:
    chain, key = scratch / "chain.pem", scratch / "key.pem"
    chain.write_bytes(certificate.chain)
    key.write_bytes(certificate.key)
    with pytest.raises(UsageError, match="in plain text beside a port with TLS"):
        BrokerServer(root, create=True, grpc_port=0, tls=TlsFiles(chain, key))
    with pytest.raises(UsageError, match=r"in plain text beside a port with TLS .*: leave the plain one out"):
        BrokerServer(
            root, create=True, grpc_port=0, grpc_tls_port=0, grpc_certificate=certificate, tls=TlsFiles(chain, key)
        )
    with pytest.raises(UsageError, match="does not ask clients for certificates"):
        BrokerServer(root, create=True, grpc_port=0, grpc_certificate=certificate, tls=TlsFiles(chain, key, chain))
    assert not root.exists()  # nothing was made, and nothing listened
    with BrokerServer(root, create=True, grpc_port=0, grpc_certificate=certificate, tls=TlsFiles(chain, key)) as server:
        stub = Stub(str(server.grpc_address), credentials=grpc.ssl_channel_credentials(certificate.chain))
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
