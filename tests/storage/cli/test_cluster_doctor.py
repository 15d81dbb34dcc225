"""`rmq doctor` over a cluster: every finding on stub brokers that have the defect, each with a fix."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.proxy import SimulatedProxy
from rmq_store.cli import commands
from rmq_store.cli.cluster_checks.brokers import clock, settings
from rmq_store.cli.cluster_checks.processes import Process
from rmq_store.protocol.bodies.routes import BrokerData, ClusterInfo, KVTable
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.remoting.questions.brokers import read_broker_config

SETTINGS = "brokerRole=ASYNC_MASTER\nautoCreateTopicEnable=false\nenablePropertyFilter=true\ntimerWheelEnable=true\n"


def properties(text: str) -> dict[str, str]:
    return read_broker_config(RemotingCommand(0, {}, text.encode()), "a")


def tell(broker: SimulatedBroker, *, version: int = 413, text: str = SETTINGS, **figures: str) -> None:
    """Answer 26 and 28, as a broker of this version."""
    now_ms = time.time_ns() // 1_000_000
    table = {
        "brokerVersionDesc": "V5_0_0", "bootTimestamp": str(now_ms - 60_000), "commitLogDiskRatio": "0.25",
        "runtime": "[ 0 days, 0 hours, 1 minutes, 0 seconds ]", "sendThreadPoolQueueHeadWaitTimeMills": "0", **figures,
    }  # fmt: skip
    broker._answerers[26] = lambda _: (0, {}, text.encode())
    broker._answerers[28] = lambda _: (0, {}, KVTable(table=table).encode())
    real = broker.server.handler

    def with_version(connection: Any, request: RemotingCommand) -> Any:
        code, fields, body = broker._reply(request)
        broker.calls[request.code] += 1
        remark = {16: "no right for this\nat AuthProcessor", 1: "AclException: no right"}.get(code)
        answer = response_to(request, code, remark, fields, body)
        answer.version = version
        return encode_command(answer)

    assert real is not None
    broker.server.handler = with_version


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=5)
        for broker in cluster.brokers.values():
            tell(broker)
        yield cluster


def doctor(
    cluster: SimulatedCluster, *arguments: str, exit_code: int = 0, others: str = ""
) -> list[dict[str, str]]:
    result = CliRunner().invoke(
        commands, ["-n", cluster.name_server + others, "doctor", "--json", "--timeout", "20", *arguments],
        env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq", catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == exit_code, result.output
    findings: list[dict[str, str]] = json.loads(result.stdout)
    assert all(bool(one["fix"]) == (one["status"] != "OK") for one in findings)
    return findings


def bad(findings: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(one["check"], one["status"], one["text"]) for one in findings if one["status"] != "OK"]


def test_a_cluster_that_is_well_has_no_fixes_and_is_not_changed(cluster: SimulatedCluster) -> None:
    findings = doctor(cluster, "--topic", "Orders", "--group", "cg")
    assert bad(findings) == []
    assert {one["check"] for one in findings} >= {"name server", "routes", "address", "version", "clock", "rights"}
    for broker in cluster.brokers.values():
        assert [queue.end for queue in broker.queues.topics["Orders"].values()] == [5, 5]
        assert set(broker.calls) == {26, 28, 202, 11, 310, 14}


def test_an_address_that_cannot_be_reached_gets_an_address_map_if_a_broker_is_there(
    cluster: SimulatedCluster,
) -> None:
    """As a broker in a container does, it registers an address that exists in its own network only."""
    first, second = cluster.brokers.values()
    away = f"127.255.255.255:{second.server.port}"
    info = ClusterInfo(
        broker_addr_table={
            first.name: BrokerData(cluster="c", broker_name=first.name, broker_addrs={0: first.address}),
            second.name: BrokerData(cluster="c", broker_name=second.name, broker_addrs={0: away}),
        },
        cluster_addr_table={"c": (first.name, second.name)},
    )
    cluster._answerers[106] = lambda _: (0, {}, info.encode())
    findings = doctor(cluster, exit_code=1)
    (finding,) = [one for one in findings if one["status"] == "FAIL"]
    assert finding["check"] == "address"
    pair = f"{away}=127.0.0.1:{second.server.port}"
    assert f"--address-map '{pair}'" in finding["fix"]
    assert bad(doctor(cluster, "--address-map", pair)) == []


def test_a_dead_broker_and_a_lost_master_are_failures(cluster: SimulatedCluster) -> None:
    first, second = cluster.brokers.values()
    second.stop()
    assert [(check, status) for check, status, _ in bad(doctor(cluster, exit_code=1))] == [("address", "FAIL")]
    info = ClusterInfo(
        broker_addr_table={first.name: BrokerData(cluster="c", broker_name=first.name, broker_addrs={1: first.address})}
    )
    cluster._answerers[106] = lambda _: (0, {}, info.encode())
    ((check, status, text),) = bad(doctor(cluster, exit_code=1))
    assert (check, status) == ("routes", "FAIL")
    assert "has no master" in text


def test_name_servers_that_do_not_answer_or_know_less(cluster: SimulatedCluster) -> None:
    with SimulatedCluster(brokers=0) as other:
        findings = doctor(cluster, others=f";{other.name_server}")
        ((check, status, text),) = bad(findings)
        assert (check, status, text.split()[0]) == ("name server", "WARN", other.name_server)
        gone = other.name_server
    ((check, status, text),) = bad(doctor(cluster, others=f";{gone}", exit_code=1))
    assert (check, status) == ("name server", "FAIL")


def test_rights_are_named_for_source_sink_and_group(cluster: SimulatedCluster) -> None:
    first, second = cluster.brokers.values()
    first.refuse(202, 16)
    first.refuse(310, 16)
    second.refuse(11, 1)
    second.refuse(14, 16)
    second.refuse(28, 16)
    findings = doctor(cluster, "--topic", "Orders", "--group", "cg", "--pull-group", "pg", exit_code=1)
    fixes = [one["fix"] for one in findings if one["check"] == "rights" and one["status"] == "FAIL"]
    assert fixes == [
        "grant Get (4.9: SUB) on topic Orders",
        "grant Pub (4.9: PUB) on topic Orders",
        "grant Sub (4.9: SUB) on topic Orders and group pg",
        "grant Sub (4.9: SUB) on topic Orders and group cg",
        "grant Sub (4.9: SUB) on topic %RETRY%cg and group cg",
    ]
    (warning,) = [one for one in findings if one["status"] == "WARN"]
    assert warning["text"] == "broker-001 (master) tells no settings or figures: code 16: no right for this"
    ((check, _, text),) = bad(doctor(cluster, "--topic", "Odrers", exit_code=1))[-1:]
    assert (check, text) == ("topic", "no broker has a topic 'Odrers'")


def test_versions_disks_load_and_clocks(cluster: SimulatedCluster) -> None:
    first, second = cluster.brokers.values()
    slow = {"sendThreadPoolQueueHeadWaitTimeMills": "900"}
    tell(first, version=385, commitLogDiskRatio="0.95", brokerVersionDesc="V4_8_0", **slow)
    tell(second, commitLogDiskRatio="0.8", bootTimestamp=str(time.time_ns() // 1_000_000 + 60_000))
    found = [(check, status) for check, status, _ in bad(doctor(cluster, exit_code=1))]
    assert found == [
        ("version", "WARN"), ("disk", "FAIL"), ("flow control", "WARN"), ("clock", "WARN"), ("disk", "WARN"),
        ("versions", "WARN"),
    ]  # fmt: skip


@pytest.mark.parametrize(("skew_s", "status", "words"), [
    (0, "OK", "as here"), (3, "OK", "as here"), (120, "WARN", "120 s ahead of"), (-120, "WARN", "s behind"),
])  # fmt: skip
def test_a_clock_is_the_sum_of_start_and_run_time(skew_s: int, status: str, words: str) -> None:
    figures = {
        "bootTimestamp": str(1_000_000_000_000 + skew_s * 1000),
        "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
    }
    now_ms = 1_000_000_000_000 + (86_400 + 7_200 + 180 + 4) * 1000
    process = Process("a", 0, "h:1", figures=figures, asked_ms=now_ms, answered_ms=now_ms)
    finding = clock(process)
    assert finding.status == status
    assert words in finding.text


@pytest.mark.parametrize(("broker_id", "version", "line", "words"), [
    (1, 473, "slaveReadEnable=false", "slaveReadEnable=false"),
    (0, 473, "brokerRole=SYNC_MASTER\ninSyncReplicas=1", "SYNC_MASTER with inSyncReplicas=1"),
    (0, 407, "autoCreateTopicEnable=true", "autoCreateTopicEnable=true"),
    (0, 473, "timerWheelEnable=false", "timerWheelEnable=false"),
])  # fmt: skip
def test_settings_with_a_consequence_are_told_with_their_change(
    broker_id: int, version: int, line: str, words: str
) -> None:
    (finding,) = settings(Process("a", broker_id, "h:1", version=version, settings=properties(line)))
    assert (finding.status, bool(finding.fix)) == ("WARN", True)
    assert words in finding.text
    others = "slaveReadEnable=true\nbrokerRole=SYNC_MASTER\ninSyncReplicas=2\nautoCreateTopicEnable=false"
    assert list(settings(Process("a", broker_id, "h:1", version=version, settings=properties(others)))) == []


def test_the_table_for_people_has_fixes(cluster: SimulatedCluster, tmp_path: Path) -> None:
    for broker in cluster.brokers.values():
        tell(broker, text=SETTINGS.replace("autoCreateTopicEnable=false", "autoCreateTopicEnable=true"))
    result = CliRunner().invoke(commands, ["-n", cluster.name_server, "doctor"], prog_name="rmq")
    assert result.exit_code == 0
    assert result.stdout.count("fix: rmq -n ... updateBrokerConfig") == 2
    assert CliRunner().invoke(commands, ["-n", cluster.name_server, "doctor", "--group", "cg"]).exit_code == 2


def test_a_served_store_is_not_told_to_take_a_change_that_it_refuses(cluster: SimulatedCluster) -> None:
    """`rmq broker run`: a version of 4.9 with timers and POP, and settings with which a store was made."""
    first, second = cluster.brokers.values()
    open_to_all = SETTINGS.replace("autoCreateTopicEnable=false", "autoCreateTopicEnable=true")
    tell(first, version=408, text=open_to_all, timerMessages="true")
    tell(second, version=473)
    (finding,) = (one for one in doctor(cluster) if one["status"] != "OK")
    assert (finding["check"], "updateBrokerConfig" in finding["fix"]) == ("settings", False)
    assert "rmq init --config" in finding["fix"] and "--acl" in finding["fix"]
    tell(first, version=408)
    assert [one[0] for one in bad(doctor(cluster))] == ["versions"], "a broker of 4.9 beside one of 5.x is told"


def test_at_a_proxy_doctor_says_what_it_is_and_checks_rights_by_routes(cluster: SimulatedCluster) -> None:
    proxy = SimulatedProxy(cluster)
    line = ["-n", proxy.address, "doctor", "--json", "--topic", "Orders", "--group", "cg"]
    result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq")
    proxy.server.stop()
    assert result.exit_code == 0, result.output
    findings = json.loads(result.stdout)
    assert [(one["check"], one["status"]) for one in findings][:2] == [("name server", "WARN"), ("topic", "OK")]
    assert "RocketMQ 5's proxy" in findings[0]["text"] and "106" in findings[0]["text"]
    assert "operator" in findings[0]["fix"] and "rmq-proxy.json" in findings[0]["fix"]
    assert "updateBrokerConfig" not in result.stdout and "not of brokers" not in result.stdout
    assert {one["check"] for one in findings[2:]} == {"rights"}


def test_the_address_of_a_broker_is_still_none_of_a_name_server(cluster: SimulatedCluster) -> None:
    line = ["-n", cluster.brokers["broker-000"].address, "doctor", "--topic", "Orders"]
    result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq")
    assert result.exit_code == 1
    assert "give the addresses of name servers, not of brokers" in result.stdout
