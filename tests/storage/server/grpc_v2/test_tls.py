"""The gRPC port over TLS: a throw-away certificate, files, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from helpers.grpc_stub import Stub
from rmq_store import StoreConfig
from rmq_store.errors import UsageError
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.tls import Certificate
from rmq_store.server.transport.tls import TlsFiles


def test_a_self_signed_certificate_serves_its_address(root: Path, small: StoreConfig) -> None:
    certificate = Certificate.self_signed("127.0.0.1")
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
    assert done.stdout == "UsageError gRPC needs grpcio and protobuf: pip install 'pyspark-rmq[grpc]'\n"


def test_no_port_takes_whom_the_port_beside_it_refuses(root: Path, scratch: Path) -> None:
    certificate = Certificate.self_signed("127.0.0.1")
    chain, key = scratch / "chain.pem", scratch / "key.pem"
    chain.write_bytes(certificate.chain)
    key.write_bytes(certificate.key)
    with pytest.raises(UsageError, match="in plain text beside a port with TLS"):
        BrokerServer(root, create=True, grpc_port=0, tls=TlsFiles(chain, key))
    with pytest.raises(UsageError, match="does not ask clients for certificates"):
        BrokerServer(root, create=True, grpc_port=0, grpc_certificate=certificate, tls=TlsFiles(chain, key, chain))
    assert not root.exists()  # nothing was made, and nothing listened
    with BrokerServer(root, create=True, grpc_port=0, grpc_certificate=certificate, tls=TlsFiles(chain, key)) as server:
        stub = Stub(str(server.grpc_address), credentials=grpc.ssl_channel_credentials(certificate.chain))
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
