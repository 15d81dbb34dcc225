"""The options that name a cluster, and what no cluster can do."""

from __future__ import annotations

import pytest

from pyspark_rmq.options.cluster_options import ClusterOptions
from pyspark_rmq.options.option_table import OPTIONS, READ
from pyspark_rmq.options.options import check_options, report_options, sink_options, source_options
from pyspark_rmq.position.position import Position, Queue
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.errors import UsageError

NOW_MS = 1_700_000_000_000
BASE = {"nameServer": "ns1:9876", "subscribe": "T"}
KEYS = {"accessKey": "env:RMQ_ACCESS", "secretKey": "file:/run/secrets/rmq"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ns1:9876;ns2:9876", "ns1:9876;ns2:9876"),
        (" rmq://ns1:9876, ns2:9876 ,ns1:9876;", "ns1:9876;ns2:9876"),
        ("[::1]:9876", "[::1]:9876"),
        ("http://addresses:8080/rocketmq/nsaddr", "http://addresses:8080/rocketmq/nsaddr"),
        ("http://ns1:9876", "ns1:9876"),
        ("rmq://http://ns1:9876/", "ns1:9876"),
        ("https://ns1:9876;http://ns2:9876", "ns1:9876;ns2:9876"),
    ],
)
def test_name_servers_are_written_as_rocketmq_writes_them(text: str, expected: str) -> None:
    options = source_options(BASE | {"nameServer": text}, "stream read", NOW_MS)
    assert options.cluster == ClusterOptions(expected)
    assert (options.path, options.place) == ("", expected)
    assert sink_options({"nameServer": text, "topic": "T"}, "batch write").cluster == ClusterOptions(expected)


def test_a_cluster_is_a_value_of_all_its_options() -> None:
    given = KEYS | {
        "securityToken": "env:TOKEN",
        "addressMap": "10.0.0.3:10911=localhost:10911; 10.0.0.4:10911 = localhost:10921",
        "tls": "true",
        "tlsCaFile": "/c/ca.pem",
        "tlsCertFile": "/c/own.pem",
        "tlsKeyFile": "/c/own.key",
        "tlsVerify": "false",
        "tlsServerName": "brokers",
        "namespace": "tenant",
        "pullGroup": "readers",
    }
    cluster = source_options(BASE | given, "batch read", NOW_MS).cluster
    assert cluster == ClusterOptions(
        "ns1:9876",
        (("10.0.0.3:10911", "localhost:10911"), ("10.0.0.4:10911", "localhost:10921")),
        "env:RMQ_ACCESS", "file:/run/secrets/rmq", "env:TOKEN",
        True, "/c/ca.pem", "/c/own.pem", "/c/own.key", False, "brokers", "tenant", "readers",
    )  # fmt: skip
    assert hash(cluster), "a key of the pool"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nameServer": ""}, "option nameServer is empty"),
        ({"nameServer": "ns1"}, "option nameServer: 'ns1' is not an address such as host:9876"),
        ({"nameServer": "ns1:99999"}, "option nameServer: 'ns1:99999' is not an address"),
        ({"path": "/s"}, "option path is not possible with nameServer"),
        ({"addressMap": "a:1"}, "option addressMap: 'a:1' is not a pair"),
        ({"addressMap": "a:1=b"}, "option addressMap: 'b' is not an address"),
        ({"addressMap": "a:1=b:1;a:1=c:1"}, "option addressMap names a:1 twice"),
        ({"accessKey": "env:A"}, "option accessKey needs the option secretKey"),
        ({"secretKey": "env:A"}, "option secretKey needs the option accessKey"),
        ({"securityToken": "env:A"}, "option securityToken needs the option accessKey"),
        ({"tlsCaFile": "/c"}, "option tlsCaFile needs the option tls=true"),
        ({"tls": "true", "tlsKeyFile": "/c"}, "option tlsKeyFile needs the option tlsCertFile"),
        ({"maxBytesPerTrigger": "5"}, "option maxBytesPerTrigger is not possible with nameServer.*maxOffsetsPerTr"),
        ({"storePathCommitLog": "/l"}, "option storePathCommitLog is not possible with nameServer"),
        ({"brokerName": "b"}, "option brokerName is not possible with nameServer"),
        ({"group": "g", "enableLmq": "true"}, "option enableLmq is not possible with nameServer"),
        ({"startingOffsets": '{"T":{"broker-a:x":1}}'}, "'broker-a:x' is not a queue id"),
        ({"assign": '{"T":["0"]}'}, "'0' is neither an integer nor a broker and a number"),
    ],
)
def test_what_no_cluster_can_do_is_refused_with_a_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_options(BASE | options, "stream read", NOW_MS)


@pytest.mark.parametrize("name", ["dataLoss", "brokerWaits"])
def test_a_cluster_has_no_reports(name: str) -> None:
    with pytest.raises(UsageError, match=f"option {name} is not possible with nameServer"):
        report_options({"nameServer": "ns1:9876", name: "true"})
    with pytest.raises(UsageError, match="option createStore is not possible with nameServer"):
        sink_options({"nameServer": "ns1:9876", "createStore": "true"}, "stream write")


@pytest.mark.parametrize("name", ["accessKey", "secretKey", "securityToken"])
@pytest.mark.parametrize("secret", ["s3cr3t", "env:", "env:s3cr3t key", "file:s3cr3t", "env s3cr3t"])
def test_a_secret_in_an_option_is_refused_and_not_repeated(name: str, secret: str) -> None:
    with pytest.raises(UsageError, match=rf"option {name} must say where the secret is, as env:NAME") as caught:
        source_options(BASE | KEYS | {name: secret}, "batch read", NOW_MS)
    assert "s3cr3t" not in str(caught.value)


def test_required_brokers_are_names() -> None:
    given = BASE | {"requiredBrokers": " broker-b;broker-a, broker-b "}
    for use in sorted(READ):
        assert source_options(given, use, NOW_MS).required_brokers == ("broker-b", "broker-a")
    for text, why in [("", "no broker is named"), (" , ", "no broker is named"), ("a:10911", "'a:10911' is an address"),
                      ("broker-a:0", "or a queue"), ("broker a", "'broker a' is no name"), ("a\x00", "is no name")]:
        with pytest.raises(UsageError, match=f"option requiredBrokers: .*{why}"):
            source_options(BASE | {"requiredBrokers": text}, "batch read", NOW_MS)
    with pytest.raises(UsageError, match="requiredBrokers is not possible for a stream write"):
        sink_options({"nameServer": "ns1:9876", "topic": "T", "requiredBrokers": "a"}, "stream write")
    assert source_options(BASE, "stream read", NOW_MS).required_brokers == ()


def test_older_messages_of_late_queues_are_skipped_or_read() -> None:
    assert source_options(BASE, "stream read", NOW_MS).skip_older
    assert not source_options(BASE | {"onLateQueue": "Read"}, "stream read", NOW_MS).skip_older
    with pytest.raises(UsageError, match="option onLateQueue: 'all' is none of skip, read"):
        source_options(BASE | {"onLateQueue": "all"}, "stream read", NOW_MS)
    with pytest.raises(UsageError, match="onLateQueue is not possible for a batch read"):
        source_options(BASE | {"onLateQueue": "read"}, "batch read", NOW_MS)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.cluster == "only"])
def test_an_option_of_clusters_needs_one(option) -> None:  # type: ignore[no-untyped-def]
    if option.name == "nameServer":
        return
    value = {
        "addressMap": "a:1=b:1", "tls": "true", "tlsVerify": "true", "replayCheck": "true", "createTopic": "true",
        "onUnknownOutcome": "check", "onStoreStatus": "log", "settleTime": "1s", "sendTimeout": "1s",
        "onLateQueue": "read", "onBrokerAway": "wait", "brokerAwayTimeout": "1m",
    }.get(option.name, "/x")  # fmt: skip
    value = "env:X" if "env:" in option.kind else "g" if option.name == "pullGroup" else value
    with pytest.raises(UsageError, match=f"option {option.name} needs the option nameServer"):
        if "batch read" in option.uses:
            source_options({"path": "/s", "subscribe": "T", option.name: value}, "batch read", NOW_MS)
        elif "stream read" in option.uses:
            source_options({"path": "/s", "subscribe": "T", option.name: value}, "stream read", NOW_MS)
        else:
            sink_options({"path": "/s", option.name: value}, "stream write")


def test_each_option_says_what_it_is_with_a_cluster() -> None:
    for option in OPTIONS:
        kind, _, sentence = option.cluster.partition(": ")
        assert kind in ("same", "only") if not sentence else kind in ("differs", "refused")


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"T":{"broker-a:0":1}}'},
        {"endingOffsetsByTimestamp": '{"T":{"broker-a:0":1}}'},
        {"subscribe": None, "assign": '{"T":[0,"broker-a:0"]}'},
    ],
)
def test_queues_of_a_store_have_no_broker(options: dict[str, str | None]) -> None:
    given = {name: text for name, text in ({"path": "/s", "subscribe": "T"} | options).items() if text is not None}
    with pytest.raises(UsageError, match="queues of a store have numbers, 'broker-a:0' is one of a cluster"):
        source_options(given, "batch read", NOW_MS)
    with_cluster = {name: text for name, text in given.items() if name != "path"} | {"nameServer": "ns1:9876"}
    check_options(with_cluster, sorted(READ), NOW_MS)


def test_queues_of_a_cluster_have_their_broker_in_front() -> None:
    options = source_options(BASE | {"startingOffsets": '{"T":{"broker-a:0":23,"1":-2}}'}, "batch read", NOW_MS)
    assert options.starting == Position("offsets", {Queue("T", BrokerQueueId("broker-a", 0)): 23, Queue("T", 1): -2})
