"""Each known weakness of similar programs has a row in SECURITY.md, and the tests that it names exist.

The other tests here are of rules that forbid: no other port, no list of addresses, no CORS, no weak library.
"""

from __future__ import annotations

import ast
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rmq_store.client import ResponseCode
from rmq_store.errors import UsageError
from rmq_store.protocol.wire import signature
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.access import mqv2_signature
from rmq_store.server.access.acl_file import read_users
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from security.conftest import TINY, fill

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "SECURITY.md"
HEADING = "## Known weaknesses of similar programs"
ROWS = (
    "CVE-2023-33246", "CVE-2023-37582", "CVE-2024-23321", "CVE-2019-17572", "apache/rocketmq#3016",
    "apache/rocketmq#9446", "RIP-68", "defaults of TLS", "rocketmq-dashboard#2320", "rocketmq-dashboard#2337",
    "rocketmq-rust#7415", "kafka-python#3019", "configBlackList", "default: addresses", "default: changes",
    "default: new topics", "default: sizes", "default: secrets",
)  # fmt: skip
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(page: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each row below the heading: its first cell, and the tests of its last one."""
    section = page.split(HEADING)[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not line.startswith(("|---", "| where ")):
            yield cells[0], _TEST.findall(cells[-1])


def complaints(page: str) -> list[str]:
    """Rows without a test, and tests that do not exist."""
    found = []
    for row, tests in rows(page):
        if not tests:
            found.append(f"{row}: no test")
        for path, name in tests:
            file = TESTS / path
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            nodes = ast.walk(ast.parse(text))
            if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in nodes):
                found.append(f"{row}: {path}::{name} is no test")
    return found


def test_every_row_names_tests_that_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row, _ in rows(page)] == list(ROWS)
    assert complaints(page) == []


def test_a_row_without_a_test_is_found() -> None:
    page = f"""{HEADING}

| where | weakness | rule here | tests |
|---|---|---|---|
| a | b | c | none |
| d | e | f | `security/test_rows.py::test_gone`, `security/gone.py::test_x` |

## Another section
"""
    assert complaints(page) == [
        "a: no test", "d: security/test_rows.py::test_gone is no test", "d: security/gone.py::test_x is no test",
    ]  # fmt: skip


# -- no port of HA ----------------------------------------------------------------------------------------------------

LISTENING = "0A"


def listening_ports() -> set[int]:
    """The TCP ports at which this process listens."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(entry.readlink()))
        except OSError:
            continue  # closed meanwhile
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def port_of(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


def test_a_server_listens_at_the_ports_that_it_was_given_and_at_no_other(tmp_path: Path) -> None:
    """RocketMQ's broker has a port for slaves (10912) and one for a faster way in (10909), without any signature."""
    before = listening_ports()
    with BrokerServer(tmp_path / "store", config=TINY, create=True, grpc_port=0) as broker, NameServer() as names:
        given = {port_of(broker.address), port_of(broker.grpc_address), port_of(names.address), broker.vip_port}
        assert listening_ports() - before == given
    assert listening_ports() <= before


# -- no list of addresses ---------------------------------------------------------------------------------------------

USER = '[[user]]\naccess_key = "orders"\nsecret_key = "kept-out-of-all"\n'


@pytest.mark.parametrize(
    "text",
    [
        f'{USER}white_remote_address = "127.0.0.1"\n',
        f'{USER}whiteRemoteAddress = "*"\n',
        f'global_white_remote_addresses = ["127.0.0.1"]\n{USER}',
        f'globalWhiteRemoteAddresses = ["*.*.*.*"]\n{USER}',
    ],
)
def test_no_address_replaces_a_signature(tmp_path: Path, text: str) -> None:
    path = tmp_path / "acl.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError):
        read_users(path)
    path.write_text(USER)
    with (
        BrokerServer(tmp_path / "store", config=TINY, create=True, acl_file=path) as server,
        Cluster(ClusterSettings.of_text(server.address)) as cluster,
    ):
        answer = cluster.client.call(server.address, RemotingCommand(206), 30_000)
    assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("module", [signature, mqv2_signature], ids=["remoting", "gRPC"])
def test_signatures_are_compared_in_constant_time(module: object) -> None:
    """`==` ends at the first byte that differs, so that its time tells how many were right."""
    name = "is_signed_with"
    tree = ast.parse(Path(str(vars(module)["__file__"])).read_text(encoding="utf-8"))
    (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in called
    assert not [node for node in ast.walk(function) if isinstance(node, ast.Compare)]


# -- no CORS ----------------------------------------------------------------------------------------------------------


def test_no_answer_of_the_metrics_lets_a_page_of_another_site_read_it(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    code = "from rmq_store.cli import main; main()"
    words = [sys.executable, "-u", "-c", code, "metrics", "--listen", "127.0.0.1:0", "--store", tmp_path / "store"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)/metrics", process.stdout.readline())
        assert found
        for method, status in (("GET", 200), ("HEAD", 200), ("OPTIONS", 501), ("POST", 501), ("PUT", 501)):
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
            asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
            connection.request(method, "/metrics", headers=asked)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            assert answer.status == status
            assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control-")]
        process.send_signal(signal.SIGTERM)


# -- libraries --------------------------------------------------------------------------------------------------------

# #3019: frames without a limit; #3026: any number of rounds of SCRAM. 3.0.12 is known to have both mended.
REFUSED = ("1.4.7", "2.0.2", "2.3.1", "2.3.2", "3.0.0", "3.0.11")
TAKEN = ("3.0.12", "3.1.0")


def test_no_version_of_kafka_python_with_a_known_weakness_is_installed() -> None:
    tree = ast.parse((TESTS.parent / "setup.py").read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    (asked,) = [Requirement(text) for text in texts if text.startswith("kafka-python")]
    assert [version for version in REFUSED if version in asked.specifier] == []
    assert all(version in asked.specifier for version in TAKEN)
    assert "crc32c" in asked.extras  # the checksum of a batch, in C
