"""What a hostile client of a served store can do: nothing but be refused."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.cluster.security import Tls
from rmq_store import Message
from rmq_store.client import ResponseCode
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.host import Host
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.protocol.wire.signature import sign
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.server.transport.tls import TlsFiles
from security.conftest import TINY

SECRETS = {"orders": "secret-of-orders", "billing": "secret-of-billing"}
ROOT_SECRET = "secret-of-root"
ACL = f"""
[[user]]
access_key = "orders"
secret_key = "{SECRETS["orders"]}"
topics = {{ "Orders" = "PUB" }}
[[user]]
access_key = "billing"
secret_key = "{SECRETS["billing"]}"
topics = {{ "Orders" = "SUB" }}
groups = {{ "billing" = "SUB" }}
"""
SEND = {"a": "pg", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
FRAME_BYTES_MAX = 1 << 24
HEADER_BYTES = 88  # of a record, with addresses of IPv4
# RequestCode.java. Accounts of ACL 1.0 (50, 51, 53: change, delete, addresses that need no signature; 52, 54: versions,
# and all accounts with their secret keys, CVE-2024-23321); users and rights of ACL 2.0 (3001 to 3010); settings of
# controllers (1010).
ACCESS_CODES = (50, 51, 52, 53, 54, 1010, *range(3001, 3011))
CHANGES_OF_SETTINGS = (25, 318, 1009)
UNKNOWN = (0, -1, 9, 999, 2001, 32_768, 200_999, (1 << 31) - 1)


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "acl.toml"
    path.write_text(ACL)
    path.chmod(0o600)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "store", config=TINY, create=True, admin=True) as server:
        yield server


@pytest.fixture
def guarded(tmp_path: Path, acl: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "store", config=TINY, create=True, acl_file=acl) as server:
        yield server


def call(server: BrokerServer, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:
        return cluster.client.call(server.address, RemotingCommand(code, ext or {}, body), 30_000)


def connected(server: BrokerServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ends(connection: socket.socket) -> bytes:
    """What the server sends before it ends the connection."""
    try:
        return b"".join(iter(lambda: connection.recv(4096), b""))
    except ConnectionError:
        return b""


# -- requests ---------------------------------------------------------------------------------------------------------


Address = Callable[[str], str]


@pytest.fixture
def address(tmp_path: Path, acl: Path) -> Iterator[Address]:
    """Starts a server of a kind: a broker for which all changes are carried out, a name server, or one with users."""
    with ExitStack() as ends:

        def start(kind: str) -> str:
            acl.write_text(f'{ACL}[[user]]\naccess_key = "root"\nsecret_key = "{ROOT_SECRET}"\nadmin = true\n')
            users = acl if "users" in kind else None
            if kind.startswith("broker"):
                root = tmp_path / "store"
                broker = BrokerServer(root, config=TINY, create=True, admin=True, acl_file=users)
                return ends.enter_context(broker).address
            return ends.enter_context(NameServer(acl_file=users)).address

        yield start


KINDS = ("broker", "broker with users", "name server", "name server with users")


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_and_forbidden_requests_are_refused_even_for_administrators(address: Address, kind: str) -> None:
    """25, 318 and 1009 have changed settings that start programs and write files: CVE-2023-33246, CVE-2023-37582."""
    server = address(kind)
    sent = {"username": "orders", "accessKey": "orders", "aclFileFullPath": "/etc/passwd"}
    body = b"brokerConfigPath=/tmp/x\nconfigStorePath=/tmp/x\nrocketmqHome=/tmp\nfilterServerNums=1"
    with Cluster(ClusterSettings.of_text(server)) as cluster:
        for code in (*UNKNOWN, *ACCESS_CODES, *CHANGES_OF_SETTINGS):
            never = code in CHANGES_OF_SETTINGS
            expected = ResponseCode.NO_PERMISSION if never else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            for user, secret in (("", ""), ("orders", SECRETS["orders"]), ("root", ROOT_SECRET)):
                ext = sign(sent, body, user, secret) if user else sent
                answer = cluster.client.call(server, RemotingCommand(code, ext, body), 30_000)
                assert (answer.code, answer.body) == (expected, b""), (code, user)
                shown = f"{answer.remark} {answer.ext_fields}"
                assert not [one for one in (*SECRETS.values(), ROOT_SECRET) if one in shown], (code, user)
            if never:
                assert "CVE-2023-33246" in (answer.remark or ""), code  # the administrator learns why


def test_the_settings_of_a_store_are_for_administrators_and_name_no_secret(guarded: BrokerServer, acl: Path) -> None:
    """CVE-2024-23321 was settings with secrets, which every user could ask for."""
    code = int(RequestCode.GET_BROKER_CONFIG)
    for ext in ({}, sign({}, b"", "orders", SECRETS["orders"])):
        answer = call(guarded, code, ext)
        assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    acl.write_text(ACL + f'[[user]]\naccess_key = "root"\nsecret_key = "{ROOT_SECRET}"\nadmin = true\n')
    answer = call_until_known(guarded, code, sign({}, b"", "root", ROOT_SECRET))
    assert b"brokerName=" in answer.body
    assert [word for word in (*SECRETS.values(), ROOT_SECRET, str(acl), "acl") if word.encode() in answer.body] == []


def call_until_known(server: BrokerServer, code: int, ext: dict[str, str]) -> RemotingCommand:
    """Ask until the server has read its file of users again."""
    end_s = time.monotonic() + 30
    while (answer := call(server, code, ext)).code == ResponseCode.NO_PERMISSION and time.monotonic() < end_s:
        time.sleep(0.05)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_signature_counts_for_its_key_its_fields_and_its_body_only(guarded: BrokerServer) -> None:
    good = sign(SEND, b"paid", "orders", SECRETS["orders"])
    assert call(guarded, 310, good, b"paid").code == ResponseCode.SUCCESS
    stored = guarded.store.log_range()
    for ext, body in (
        (good, b"paid twice"),
        (good | {"b": "Bills"}, b"paid"),
        (good | {"i": "KEYS\x01k"}, b"paid"),
        (good | {"AccessKey": "billing"}, b"paid"),
        (good | {"AccessKey": "nobody"}, b"paid"),
        (good | {"AccessKey": ""}, b"paid"),
        (good | {"Signature": ""}, b"paid"),
        (good | {"Signature": good["Signature"].lower()}, b"paid"),
        (good | {"Signature": "\ud800"}, b"paid"),
        ({name: value for name, value in good.items() if name != "Signature"}, b"paid"),
        (SEND, b"paid"),
        (sign(SEND, b"paid", "orders", SECRETS["billing"]), b"paid"),
        (sign(SEND, b"paid", "billing", SECRETS["billing"]), b"paid"),
        (sign(SEND, b"paid", "orders", ""), b"paid"),
        (sign(SEND, b"paid", "nobody", "nobody"), b"paid"),
    ):
        assert call(guarded, 310, ext, body).code == ResponseCode.NO_PERMISSION, ext
    assert guarded.store.log_range() == stored


def test_a_one_way_request_without_a_right_changes_nothing(guarded: BrokerServer) -> None:
    ext = {"consumerGroup": "billing", "topic": "Orders", "queueId": "0", "commitOffset": "7"}
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:
        cluster.client.call_oneway(guarded.address, RemotingCommand(15, ext))
        # Behind it, on the same connection and in the same pool.
        for _ in range(4):
            cluster.client.call(guarded.address, RemotingCommand(14, ext), 30_000)
    guarded._offsets.write()
    assert guarded.store.committed_offsets("billing") == {}


def test_a_half_message_inside_a_body_ends_no_transaction(server: BrokerServer) -> None:
    store, host = server.store, Host.parse("127.0.0.1:10911")
    store.create_topic("Orders", 1)
    half = store.transactions.prepare(Message("Orders", b"of another"), 0, "pg_other")
    place = store.log_range()[1] + HEADER_BYTES
    forged = encode_frame(
        topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"", properties=encode_properties({"PGROUP": "pg_mine"}), queue_id=0,
        queue_offset=half.queue_offset, commit_log_offset=place, born_timestamp_ms=1, born_host=host,
        store_timestamp_ms=1, store_host=host, crc_property=True,
    )  # fmt: skip
    assert call(server, 310, SEND, forged).code == ResponseCode.SUCCESS
    assert store.message_at(place).topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    end = {
        "producerGroup": "pg_mine", "tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(place),
        "msgId": "x",
    }  # fmt: skip
    for outcome in ("8", "12"):
        assert call(server, 37, end | {"commitOrRollback": outcome}).code == ResponseCode.SYSTEM_ERROR
    assert [one.group for one in store.transactions.pending()] == ["pg_other"]


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">i", FRAME_BYTES_MAX + 1),
        struct.pack(">i", (1 << 31) - 1),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">ii", 100, 1 << 20),
        struct.pack(">ii", 100, 7 << 24),
        struct.pack(">ii", 1 << 20, (256 << 10) + 1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_frame_that_breaks_the_rules_ends_its_connection_and_no_other(server: BrokerServer, head: bytes) -> None:
    with connected(server) as other, connected(server) as hostile:
        hostile.sendall(head + bytes(200))
        assert ends(hostile) == b""
        other.sendall(encode_command(RemotingCommand(206), 1 << 20))
        assert other.recv(4096)


def test_an_oversized_heartbeat_makes_no_member_and_no_file(server: BrokerServer) -> None:
    def beat(groups: int, topics: int) -> bytes:
        wanted = [{"topic": f"T{number}", "subString": "*"} for number in range(topics)]
        data = [{"groupName": f"g{number}", "subscriptionDataSet": wanted} for number in range(groups)]
        return json.dumps({"clientID": "c", "consumerDataSet": data}).encode()

    for groups, topics in ((1001, 0), (1, 1001), (40, 40)):
        answer = call(server, 34, {}, beat(groups, topics))
        assert answer.code == ResponseCode.SYSTEM_ERROR and "at most 1000" in (answer.remark or "")
    for body in (b"[" * 100_000, b'{"clientID":' * 50_000, b"", b"\xff" * 1000, b"null"):
        assert call(server, 34, {}, body).code == ResponseCode.SYSTEM_ERROR
    assert not [group for group in server.store.groups() if group.startswith("g")]


# -- transport --------------------------------------------------------------------------------------------------------


def test_no_client_talks_a_server_with_a_certificate_out_of_tls(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    files = TlsFiles(tls.path / "server.pem", tls.path / "server.key")
    with BrokerServer(tmp_path / "store", config=TINY, create=True, tls=files) as server:
        for data in (encode_command(RemotingCommand(206), 1 << 20), b"STARTTLS\r\n", bytes(64)):
            with connected(server) as plain:
                plain.sendall(data)
                assert b"topicList" not in ends(plain)


def test_slow_and_half_open_clients_cost_the_others_nothing(server: BrokerServer) -> None:
    frame = encode_command(RemotingCommand(310, SEND, bytes(1000)), 1 << 20)
    with ExitStack() as parts:
        for number in range(60):
            slow = parts.enter_context(connected(server))
            slow.sendall(frame[: number * len(frame) // 60])
        assert call(server, 310, SEND, b"x").code == ResponseCode.SUCCESS
    assert server.store.queue_range("Orders", 0).max_offset == 1


def test_the_server_dials_no_address_that_a_registration_names(server: BrokerServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        address = f"127.0.0.1:{bait.getsockname()[1]}"
        ext = {
            "brokerName": "bait", "brokerAddr": address, "clusterName": "c", "haServerAddr": address, "brokerId": "0",
        }  # fmt: skip
        topic = {"topicName": "Baited", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        wrapper = {"dataVersion": {}, "topicConfigTable": {"Baited": topic}}
        body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": [address]}).encode()
        with Cluster(ClusterSettings.of_text(server.address)) as cluster:
            for code, fields in ((103, ext), (105, {"topic": "Baited"}), (106, {}), (206, {}), (104, ext)):
                command = RemotingCommand(code, fields, body if code == 103 else b"")
                assert cluster.client.call(server.address, command, 30_000).code == ResponseCode.SUCCESS, code
        server.close()  # whatever it would have done is done
        bait.setblocking(False)
        with pytest.raises(BlockingIOError):
            bait.accept()


def test_a_registration_without_an_administrators_signature_changes_no_route(tmp_path: Path, acl: Path) -> None:
    ext = {"brokerName": "b", "brokerAddr": "10.6.6.6:1", "clusterName": "c", "haServerAddr": "x:2", "brokerId": "0"}
    topic = {"topicName": "Orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    wrapper = {"dataVersion": {}, "topicConfigTable": {"Orders": topic}}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    signed = sign(ext, body, "root", ROOT_SECRET)
    acl.write_text(f'{ACL}[[user]]\naccess_key = "root"\nsecret_key = "{ROOT_SECRET}"\nadmin = true\n')
    with NameServer(acl_file=acl) as server, Cluster(ClusterSettings.of_text(server.address)) as cluster:
        for fields, sent in (
            (ext, body),
            (sign(ext, body, "orders", SECRETS["orders"]), body),
            (sign(ext, body, "root", SECRETS["orders"]), body),
            (signed | {"brokerAddr": "10.6.6.7:1"}, body),
            (signed, body.replace(b"Orders", b"Bills")),
        ):
            cluster.client.call_oneway(server.address, RemotingCommand(103, fields, sent))
            answer = cluster.client.call(server.address, RemotingCommand(103, fields, sent), 30_000)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert all(secret not in str(answer) for secret in (*SECRETS.values(), ROOT_SECRET))
            assert server.routes.topics() == []
        assert cluster.client.call(server.address, RemotingCommand(103, signed, body), 30_000).code == 0
        assert "Orders" in server.routes.topics()
