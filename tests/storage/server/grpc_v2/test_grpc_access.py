"""A store with users over gRPC: signatures, the rights that each method needs, and a file that changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rocketmq

from helpers.grpc_stub import DATE_TIME, Metadata, Stub, Talk, signed
from rmq_store import Message, StoreConfig
from rmq_store.protocol.bodies.clients import HeartbeatData, ProducerData
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.signature import sign
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.access import method_check
from rmq_store.server.access.method_check import MethodCheck, NotSignedError
from rmq_store.server.access.method_rights import METHOD_RIGHTS
from rmq_store.server.access.user_slots import UserSlots
from rmq_store.server.access.users import Users
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.definitions import SERVICE, message_class
from rmq_store.server.grpc_definitions.enums import ClientType, Code, MessageType
from rmq_store.server.grpc_v2 import clients, held_receives, messaging_service
from rmq_store.server.grpc_v2.held_receives import HeldReceives
from rmq_store.server.grpc_v2.messaging_service import MessagingService
from rmq_store.server.pop.held_pops import Share

SECRETS = {"operator": "secret-of-operator", "orders": "secret-of-orders", "billing": "secret-of-billing"}
FILE = f"""
[[user]]
access_key = "operator"
secret_key = "{SECRETS["operator"]}"
admin = true

[[user]]
access_key = "orders"
secret_key = "{SECRETS["orders"]}"
topics = {{ "Orders*" = "PUB" }}

[[user]]
access_key = "billing"
secret_key = "{SECRETS["billing"]}"
topics = {{ "Orders" = "SUB" }}
groups = {{ "billing" = "SUB" }}
"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PATIENCE_S = 60.0
ORDERS, BILLS, BILLING, OTHER = ({"name": name} for name in ("Orders", "Bills", "billing", "other"))
CONSUME = {"group": BILLING, "topic": ORDERS}
PUBLISHING = {"settings": {"publishing": {"topics": [ORDERS]}}}


def subscription(group: dict[str, str], *topics: dict[str, str]) -> dict[str, Any]:
    return {"settings": {"subscription": {"group": group, "subscriptions": [{"topic": topic} for topic in topics]}}}


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def replace_file(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    new.replace(path)


@pytest.fixture
def acl_file(scratch: Path) -> Path:
    replace_file(scratch / "acl.toml", FILE)
    return scratch / "acl.toml"


@pytest.fixture
def guarded(root: Path, small: StoreConfig, acl_file: Path) -> Iterator[BrokerServer]:
    with BrokerServer(root, config=small, create=True, acl_file=acl_file, grpc_port=0) as server:
        server.store.create_topic("Orders", 1)
        server.store.create_topic("Bills", 1)
        yield server


As = Callable[..., Stub]


@pytest.fixture
def as_user(guarded: BrokerServer) -> Iterator[As]:
    """A stub of a user."""
    with ExitStack() as ends:

        def as_user(user: str, client_id: str = "", *, metadata: Metadata | None = None) -> Stub:
            known = signed(user, SECRETS.get(user, "?")) if metadata is None else metadata
            stub = Stub(str(guarded.grpc_address), client_id or f"client-of-{user}", sign=known)
            ends.callback(stub.close)
            return stub

        yield as_user


# -- signatures -----------------------------------------------------------------------------------------------------


def checked(acl_file: Path, metadata: Metadata, now: datetime = NOON) -> str:
    return MethodCheck(Users(acl_file), lambda: int(now.timestamp() * 1000)).signer(dict(metadata))


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server whose time zone is nine hours ahead."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC-9")
        time.tzset()
        yield
    time.tzset()


def test_a_signature_names_its_user(acl_file: Path) -> None:
    now = NOON.strftime(DATE_TIME)
    date, (name, text) = signed("orders", SECRETS["orders"], now)
    assert checked(acl_file, (date, (name, text))) == "orders"
    digest = text.rpartition("=")[2]
    shapes = [text.replace(digest, digest.upper()), text.replace("=orders,", "=orders//Rocketmq,")]
    assert [checked(acl_file, (date, (name, shape))) for shape in shapes] == ["orders"] * 2


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="),),
        signed("", ""),
        signed("orders", SECRETS["orders"])[:1],
        signed("orders", SECRETS["orders"])[1:],
        (signed("orders", SECRETS["orders"])[0], ("authorization", "Bearer orders")),
        (("x-mq-date-time", "x"), ("authorization", "MQv2-HMAC-SHA256 Credential=orders, Signature=ab")),
    ],
)
def test_a_call_that_is_not_signed_is_refused(acl_file: Path, metadata: Metadata) -> None:
    with pytest.raises(NotSignedError, match="not signed"):
        checked(acl_file, metadata)


def test_a_wrong_secret_and_an_unknown_key_have_the_same_answer(acl_file: Path) -> None:
    now, answers = NOON.strftime(DATE_TIME), set()
    right = signed("orders", SECRETS["orders"], now)
    others = [
        signed("orders", SECRETS["billing"], now),
        signed("nobody", SECRETS["orders"], now),
        signed("nobody", "nobody", now),
        (right[0], ("authorization", right[1][1][:-1])),
        ((right[0][0], (NOON + timedelta(seconds=1)).strftime(DATE_TIME)), right[1]),
    ]
    for metadata in others:
        with pytest.raises(NotSignedError) as refused:
            checked(acl_file, metadata)
        answers.add(str(refused.value))
    assert answers == {"check signature failed: no such access key, or another secret"}


@pytest.mark.parametrize(
    ("date_time", "is_near"),
    [
        ("20260301T120000Z", True),
        ("20260301T114500Z", True),
        ("20260301T121500Z", True),
        ("20260301T114459Z", False),
        ("20260301T121501Z", False),
        ("20250301T120000Z", False),
        ("20260301T210000Z", False),  # nine hours ahead
        ("2026-03-01T21:00:00.123456789+09:00", True),
        ("2026-03-01T12:00:00+09:00", False),
        ("20260301T120000", False),  # of no time zone
        ("99990301T120000Z" * 100, False),
        ("00010101T000000Z", False),
        ("yesterday", False),
    ],
)
def test_a_signature_has_a_time_that_is_near(acl_file: Path, date_time: str, is_near: bool) -> None:
    metadata = signed("orders", SECRETS["orders"], date_time)
    if is_near:
        assert checked(acl_file, metadata) == "orders"
    else:
        with pytest.raises(NotSignedError, match=r"15 minutes from the time of this broker, 20260301T120000Z"):
            checked(acl_file, metadata)


@pytest.mark.usefixtures("tokyo")
def test_a_client_in_the_time_zone_of_the_server_may_sign_its_local_time(acl_file: Path) -> None:
    for date_time in ("20260301T210000Z", "20260301T120000Z"):
        assert checked(acl_file, signed("orders", SECRETS["orders"], date_time)) == "orders"
    for date_time in ("20260301T030000Z", "2026-03-01T21:00:00+08:00"):
        with pytest.raises(NotSignedError, match="TZ=UTC"):
            checked(acl_file, signed("orders", SECRETS["orders"], date_time))


def test_a_call_is_read_behind_its_signature_only(
    guarded: BrokerServer, as_user: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(context: Any) -> bytes:
        pytest.fail("a call of nobody was read")

    monkeypatch.setattr(messaging_service, "_content", read)
    stub = as_user("orders", metadata=())
    assert stub.send("Orders", bytes(8 << 20)).status.code == Code.UNAUTHORIZED
    for method in METHOD_RIGHTS.keys() - {"Telemetry", "ReceiveMessage"}:
        assert stub.call(method).status.code == Code.UNAUTHORIZED
    assert stub.receive("billing", "Orders")[0] == Code.UNAUTHORIZED
    talk = Talk(stub)
    talk.say(client_type=ClientType.PRODUCER, publishing={"topics": [ORDERS]})
    assert talk.hear().status.code == Code.UNAUTHORIZED and talk.ends()


def test_bytes_that_are_no_message_are_refused(as_user: As) -> None:
    stub = as_user("orders")
    caller = stub.channel.unary_unary(f"/{SERVICE}/SendMessage", None, message_class("SendMessageResponse").FromString)
    answer = caller(b"\x0a\xff", metadata=stub.metadata, timeout=PATIENCE_S)
    assert answer.status.code == Code.BAD_REQUEST and "no SendMessageRequest" in answer.status.message
    nothing = stub.channel.stream_unary(
        f"/{SERVICE}/SendMessage", None, message_class("SendMessageResponse").FromString
    )
    answer = nothing(iter(()), metadata=stub.metadata, timeout=PATIENCE_S)
    assert answer.status.code == Code.BAD_REQUEST and "no request" in answer.status.message


# -- rights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "fields", "user"),
    [
        ("SendMessage", {"messages": [{"topic": ORDERS}]}, "orders"),
        ("EndTransaction", {"topic": ORDERS}, "orders"),
        ("RecallMessage", {"topic": ORDERS}, "orders"),
        ("Telemetry", PUBLISHING, "orders"),
        ("Telemetry", subscription(BILLING, ORDERS), "billing"),
        ("Heartbeat", {"group": BILLING}, "billing"),
        ("NotifyClientTermination", {"group": BILLING}, "billing"),
        ("QueryAssignment", CONSUME, "billing"),
        ("ReceiveMessage", {"group": BILLING, "message_queue": {"topic": ORDERS}}, "billing"),
        ("ReceiveMessage", {"group": BILLING, "message_queue": {"topic": {"name": "%RETRY%billing"}}}, "billing"),
        ("AckMessage", CONSUME, "billing"),
        ("ChangeInvisibleDuration", CONSUME, "billing"),
        ("ForwardMessageToDeadLetterQueue", CONSUME, "billing"),
    ],
)
def test_a_call_needs_its_right(acl_file: Path, method: str, fields: dict[str, Any], user: str) -> None:
    check = MethodCheck(Users(acl_file))
    request = message_class("TelemetryCommand" if method == "Telemetry" else f"{method}Request")(**fields)
    check(user, method, request)
    check("operator", method, request)
    MethodCheck(None)("", method, request)
    with pytest.raises(MQBrokerError, match="is missing") as refused:
        check("billing" if user == "orders" else "orders", method, request)
    assert refused.value.response_code == ResponseCode.NO_PERMISSION
    with pytest.raises(NotSignedError):
        check("nobody", method, request)


@pytest.mark.parametrize(
    ("method", "fields", "user", "missing"),
    [
        ("SendMessage", {"messages": [{"topic": ORDERS}, {"topic": BILLS}]}, "orders", "PUB for the topic Bills"),
        ("SendMessage", {"messages": [{}]}, "orders", "PUB for the topic"),
        ("Telemetry", {"settings": {"publishing": {"topics": [ORDERS, BILLS]}}}, "orders", "PUB for the topic Bills"),
        ("Telemetry", subscription(BILLING, ORDERS, BILLS), "billing", "SUB for the topic Bills"),
        ("Telemetry", subscription(OTHER, ORDERS), "billing", "SUB for the group other"),
        ("Telemetry", subscription({}), "billing", "SUB for the group"),
        ("QueryAssignment", {"group": OTHER, "topic": ORDERS}, "billing", "SUB for the group other"),
        ("QueryAssignment", {"group": BILLING, "topic": BILLS}, "billing", "SUB for the topic Bills"),
        ("ReceiveMessage", {"group": OTHER, "message_queue": {"topic": ORDERS}}, "billing", "SUB for the group other"),
        ("ReceiveMessage", {"group": BILLING, "message_queue": {"topic": BILLS}}, "billing", "SUB for the topic Bills"),
        ("AckMessage", {"group": BILLING}, "billing", "SUB for the topic"),
        ("ForwardMessageToDeadLetterQueue", {"topic": ORDERS}, "billing", "SUB for the group"),
    ],
)
def test_each_of_several_rights_counts(
    acl_file: Path, method: str, fields: dict[str, Any], user: str, missing: str
) -> None:
    request = message_class("TelemetryCommand" if method == "Telemetry" else f"{method}Request")(**fields)
    with pytest.raises(MQBrokerError, match=f"{missing} is missing"):
        MethodCheck(Users(acl_file))(user, method, request)


def test_routes_and_producers_without_a_group_are_for_every_user(as_user: As) -> None:
    stub = as_user("billing")
    assert stub.call("QueryRoute", topic=BILLS).status.code == Code.OK
    for method in ("Heartbeat", "NotifyClientTermination"):
        assert stub.call(method).status.code == Code.OK


def test_each_method_has_a_right_and_one_without_is_refused(acl_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    any_part: Any = SimpleNamespace(**dict.fromkeys((
        "query_route", "query_assignment", "heartbeat", "terminate", "send", "ack", "change_invisible_duration",
        "forward_to_dead_letters", "end", "recall",
    )))  # fmt: skip
    handler = MessagingService(MethodCheck(None), any_part, any_part, any_part, any_part, any_part).handler()
    served = {name.rpartition("/")[2] for name in handler._method_handlers}
    assert served == METHOD_RIGHTS.keys()
    monkeypatch.setattr(method_check, "METHOD_RIGHTS", {})
    with pytest.raises(MQBrokerError, match="QueryRoute has no declared right"):
        MethodCheck(Users(acl_file))("operator", "QueryRoute", message_class("QueryRouteRequest")())


def test_a_request_names_so_many_topics_at_most(as_user: As) -> None:
    answer = as_user("orders").call("SendMessage", messages=[{"topic": ORDERS}] * 4097)
    assert answer.status.code == Code.BAD_REQUEST and "4097 topics" in answer.status.message


def test_what_a_user_may_not_do_is_not_done(guarded: BrokerServer, as_user: As) -> None:
    orders, billing, store = as_user("orders"), as_user("billing"), guarded.store
    assert billing.send("Orders", b"x").status.code == Code.FORBIDDEN
    assert billing.send("Orders", b"x", message_type=MessageType.TRANSACTION).status.code == Code.FORBIDDEN
    assert billing.call("EndTransaction", topic=ORDERS, transaction_id="0" * 32).status.code == Code.FORBIDDEN
    assert orders.receive("billing", "Orders")[0] == billing.receive("billing", "Bills")[0] == Code.FORBIDDEN
    assert billing.receive("other", "Orders")[0] == Code.FORBIDDEN
    assert billing.call("Heartbeat", group=OTHER).status.code == Code.FORBIDDEN
    assert store.log_range() == (0, 0) and store.transactions.pending() == [] and "other" not in store.groups()
    for stub, fields in ((billing, PUBLISHING), (orders, subscription(BILLING, ORDERS))):
        talk = Talk(stub)
        talk.say(**fields["settings"])
        assert talk.hear().status.code == Code.FORBIDDEN and talk.ends()
    assert not guarded._transactions.is_there("Orders") and "billing" not in store.groups()


def test_a_receipt_handle_is_worth_its_own_topic_and_group_only(guarded: BrokerServer, as_user: As) -> None:
    """The handles of a foreign topic, and of a foreign group, in the hands of a user who may read another one."""
    store, operator, billing = guarded.store, as_user("operator"), as_user("billing")
    handles = []
    for group, topic in (("billing", "Bills"), ("other", "Orders")):
        operator.receive(group, topic)  # the group starts here
        store.send(Message(topic, b"hidden"))
        code, [got] = operator.receive(group, topic, long_polling_timeout={"seconds": 20})
        assert code == Code.OK
        handles.append(got.system_properties.receipt_handle)
    billing.receive("billing", "Orders")
    for handle in handles:
        acked = billing.call("AckMessage", **CONSUME, entries=[{"receipt_handle": handle}])
        hidden = billing.call(
            "ChangeInvisibleDuration", **CONSUME, receipt_handle=handle, invisible_duration={"nanos": 1_000_000}
        )
        forwarded = billing.call("ForwardMessageToDeadLetterQueue", **CONSUME, receipt_handle=handle)
        assert {one.status.code for one in (acked, hidden, forwarded)} == {Code.INVALID_RECEIPT_HANDLE}
    foreign = {"group": BILLING, "topic": BILLS}
    assert billing.call("AckMessage", **foreign, entries=[{"receipt_handle": handles[0]}]).status.code == Code.FORBIDDEN
    answer = billing.call("ForwardMessageToDeadLetterQueue", **foreign, receipt_handle=handles[0])
    assert answer.status.code == Code.FORBIDDEN and store.find_topic("%DLQ%billing") is None
    # They are still what they were.
    assert operator.call("AckMessage", **foreign, entries=[{"receipt_handle": handles[0]}]).status.code == Code.OK
    at_other = {"group": OTHER, "topic": ORDERS}
    assert operator.call("AckMessage", **at_other, entries=[{"receipt_handle": handles[1]}]).status.code == Code.OK


def test_who_may_send_to_a_topic_has_its_transactions(guarded: BrokerServer, as_user: As) -> None:
    orders = as_user("orders")
    talk = Talk(orders)
    talk.say(client_type=ClientType.PRODUCER, publishing={"topics": [ORDERS]})
    assert talk.hear().status.code == Code.OK
    eventually(lambda: guarded._transactions.is_there("Orders"))
    [entry] = orders.send("Orders", b"tea", message_type=MessageType.TRANSACTION).entries
    names = {"message_id": entry.message_id, "transaction_id": entry.transaction_id, "resolution": 1}
    assert orders.call("EndTransaction", topic={"name": "Orders2"}, **names).status.code == Code.INVALID_TRANSACTION_ID
    assert orders.call("EndTransaction", topic=ORDERS, **names).status.code == Code.OK
    assert guarded.store.queue_range("Orders", 0).max_offset == 1
    talk.close()


# -- client ids -----------------------------------------------------------------------------------------------------


def test_nobody_takes_the_client_id_of_another_user(guarded: BrokerServer, as_user: As) -> None:
    orders, billing = as_user("orders", "c1"), as_user("billing", "c1")
    assert orders.call("Heartbeat").status.code == Code.OK
    assert billing.call("Heartbeat", group=BILLING).status.code == Code.FORBIDDEN
    assert billing.call("NotifyClientTermination").status.code == Code.FORBIDDEN
    assert billing.receive("billing", "Orders")[0] == Code.FORBIDDEN
    talk = Talk(billing)
    talk.say(**subscription(BILLING, ORDERS)["settings"])
    answer = talk.hear()
    assert answer.status.code == Code.FORBIDDEN and "another user" in answer.status.message and talk.ends()
    # It is free when its user has left.
    assert orders.call("NotifyClientTermination").status.code == Code.OK
    assert billing.call("Heartbeat", group=BILLING).status.code == Code.OK


def test_a_client_id_is_one_over_both_protocols(guarded: BrokerServer, as_user: As) -> None:
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:

        def beat(user: str, client_id: str) -> int:
            producers = (ProducerData(group_name="CLIENT_INNER_PRODUCER"),)
            body = HeartbeatData(client_id=client_id, producer_data_set=producers, consumer_data_set=()).encode()
            command = RemotingCommand(34, sign({}, body, user, SECRETS[user]), body)
            return cluster.client.call(guarded.address, command, 20_000).code

        assert beat("orders", "c1") == 0
        assert as_user("billing", "c1").call("Heartbeat").status.code == Code.FORBIDDEN
        assert as_user("orders", "c1").call("Heartbeat").status.code == Code.OK
        assert as_user("billing", "c2").call("Heartbeat").status.code == Code.OK
        assert beat("orders", "c2") == ResponseCode.NO_PERMISSION


def test_a_client_that_was_silent_gives_its_id_back(
    guarded: BrokerServer, as_user: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_EXPIRY_S", -1.0)
    monkeypatch.setattr(clients, "_LOOK_S", 0.01)
    root = guarded.store.path.parent / "second"
    with BrokerServer(root, create=True, acl_file=guarded.store.path.parent / "acl.toml", grpc_port=0) as second:
        stubs = [Stub(str(second.grpc_address), "c1", sign=signed(one, SECRETS[one])) for one in ("orders", "billing")]
        assert stubs[0].call("Heartbeat").status.code == Code.OK
        eventually(lambda: stubs[1].call("Heartbeat").status.code == Code.OK)
        for stub in stubs:
            stub.close()


# -- places ---------------------------------------------------------------------------------------------------------


def test_a_user_gets_half_of_the_places_and_nobody_all() -> None:
    slots = UserSlots()
    for user in ("a", "a"):
        assert slots.why_full(user, 4) is None
        slots.take(user)
    assert "user a has 2 of 4 places" in str(slots.why_full("a", 4)) and slots.why_full("", 4) is None
    for _ in range(2):
        slots.take("")
    assert slots.why_full("b", 4) == "all 4 places are taken"
    slots.give_back("a")
    assert slots.why_full("a", 4) is None


def test_one_user_leaves_places_for_the_clients_of_others(as_user: As, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 4)
    first, second, third = (as_user("orders", f"c{number}") for number in range(3))
    for stub in (first, second, first):
        assert stub.call("Heartbeat").status.code == Code.OK
    refused = third.call("Heartbeat").status
    assert refused.code == Code.TOO_MANY_REQUESTS and "user orders has 2 of 4" in refused.message
    assert as_user("billing").call("Heartbeat").status.code == Code.OK
    assert first.call("NotifyClientTermination").status.code == Code.OK
    assert third.call("Heartbeat").status.code == Code.OK


def test_one_user_leaves_places_for_the_consumers_of_others(as_user: As, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 4)
    operator, kind = as_user("operator"), ClientType.SIMPLE_CONSUMER
    codes = [
        operator.call("Heartbeat", client_type=kind, group={"name": group}).status.code
        for group in ("g1", "g2", "g1", "g3")
    ]
    assert codes == [Code.OK, Code.OK, Code.OK, Code.TOO_MANY_REQUESTS]
    assert as_user("billing").call("Heartbeat", client_type=kind, group=BILLING).status.code == Code.OK
    assert operator.call("NotifyClientTermination", group={"name": "g1"}).status.code == Code.OK
    assert operator.call("Heartbeat", client_type=kind, group={"name": "g3"}).status.code == Code.OK


def test_one_user_leaves_places_for_the_receives_of_others(
    guarded: BrokerServer, as_user: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_receives, "HELD_MAX", 2)
    waits = {"g": threading.Event(), "billing": threading.Event()}
    wait = HeldReceives.wait

    async def seen(self: HeldReceives, key: Share, until_s: float) -> None:
        waits[key.group].set()
        await wait(self, key, until_s)

    monkeypatch.setattr(HeldReceives, "wait", seen)
    long, operator, billing = {"seconds": 20}, as_user("operator"), as_user("billing")
    billing.receive("billing", "Orders")
    call = operator.receiving("g", "Orders", long_polling_timeout=long)
    assert waits["g"].wait(PATIENCE_S)
    assert operator.receive("g", "Orders", long_polling_timeout=long)[0] == Code.TOO_MANY_REQUESTS
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(billing.receive("billing", "Orders", long_polling_timeout=long)[0])
    )
    thread.start()
    assert waits["billing"].wait(PATIENCE_S)
    guarded.store.send(Message("Orders", b"x"))
    thread.join(PATIENCE_S)
    assert codes == [Code.OK]
    call.cancel()


# -- the file changes -----------------------------------------------------------------------------------------------


def test_a_changed_file_counts_for_the_next_call_and_for_one_that_waits(
    guarded: BrokerServer, as_user: As, acl_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_held, wait = threading.Event(), HeldReceives.wait

    async def seen(self: HeldReceives, key: Share, until_s: float) -> None:
        is_held.set()
        await wait(self, key, until_s)

    monkeypatch.setattr(HeldReceives, "wait", seen)
    orders, billing, codes = as_user("orders"), as_user("billing"), []
    assert orders.send("Orders", b"x").status.code == Code.OK
    billing.receive("billing", "Orders")
    waits = threading.Thread(
        target=lambda: codes.append(billing.receive("billing", "Orders", long_polling_timeout={"seconds": 20})[0])
    )
    waits.start()
    assert is_held.wait(PATIENCE_S)
    assert guarded._users is not None
    replace_file(acl_file, FILE.replace('"Orders" = "SUB"', '"Bills" = "SUB"').replace('"Orders*"', '"Other*"'))
    guarded._users.reload_if_changed()
    assert orders.send("Orders", b"x").status.code == Code.FORBIDDEN
    guarded.store.send(Message("Orders", b"not for billing"))
    waits.join(PATIENCE_S)
    assert codes == [Code.FORBIDDEN]
    code, [got] = as_user("operator").receive("billing", "Orders", long_polling_timeout={"seconds": 20})
    assert (code, got.body) == (Code.OK, b"not for billing")  # it waits for others
    replace_file(acl_file, FILE.replace('access_key = "orders"', 'access_key = "orders2"'))
    guarded._users.reload_if_changed()
    assert orders.send("Orders", b"x").status.code == Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("change", "code"),
    [(('"Orders*" = "PUB"', '"Other" = "PUB"'), Code.FORBIDDEN), (('"orders"', '"orders2"'), Code.UNAUTHORIZED)],
)
def test_a_producer_whose_rights_are_withdrawn_is_asked_no_more(
    root: Path, small: StoreConfig, acl_file: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], code: Code
) -> None:
    monkeypatch.setattr(clients, "_LOOK_S", 0.01)
    with BrokerServer(root, config=small, create=True, acl_file=acl_file, grpc_port=0) as server:
        stub = Stub(str(server.grpc_address), sign=signed("orders", SECRETS["orders"]))
        talk = Talk(stub)
        talk.say(client_type=ClientType.PRODUCER, publishing={"topics": [ORDERS]})
        assert talk.hear().status.code == Code.OK
        eventually(lambda: server._transactions.is_there("Orders"))
        replace_file(acl_file, FILE.replace(*change))
        assert talk.hear().status.code == code and talk.ends()
        assert not server._transactions.is_there("Orders")
        stub.close()


# -- the official client --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("client_loop")
def test_the_official_client_signs_its_calls(guarded: BrokerServer, caplog: pytest.LogCaptureFixture) -> None:
    def configuration(user: str, secret: str = "") -> Any:
        credentials = rocketmq.Credentials(user, secret or SECRETS[user])
        return rocketmq.ClientConfiguration(str(guarded.grpc_address), credentials, request_timeout=30)

    with ExitStack() as ends:

        def started(client: Any) -> Any:
            client.startup()
            ends.callback(client.shutdown)
            return client

        everything = {"Orders": rocketmq.FilterExpression("*")}
        consumer = started(rocketmq.SimpleConsumer(configuration("billing"), "billing", everything, 1))
        consumer.receive(1, 10)
        producer = started(rocketmq.Producer(configuration("orders"), ("Orders",)))
        message = rocketmq.Message()
        message.topic, message.body = "Orders", b"paid"
        producer.send(message)
        [got] = consumer.receive(5, 15)
        assert got.body == b"paid"
        consumer.ack(got)
        with pytest.raises(rocketmq.v5.exception.ForbiddenException, match="PUB for the topic Bills"):
            message.topic = "Bills"
            producer.send(message)
        stranger = rocketmq.Producer(configuration("orders", "another-secret"))
        with pytest.raises(Exception, match="failed to fetch"):
            started(stranger).send(message)
        assert "check signature failed" in caplog.text
