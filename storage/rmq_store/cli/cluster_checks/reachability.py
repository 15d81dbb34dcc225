"""Name servers, routes, and whether each registered address can be reached from here.

Brokers that register an address of a container or of another network are RocketMQ's classic first failure. So an
address that does not answer is tried at the hosts of the name servers, and an address map is proposed if one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rmq_store.cli.checks import FAIL, OK, WARN, Finding
from rmq_store.cli.cluster_checks.processes import Process
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import StoreError
from rmq_store.protocol.bodies.routes import ClusterInfo
from rmq_store.protocol.errors import ResponseCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import SELF_TEST_TOPIC
from rmq_store.remoting.questions.brokers import ask_broker_config
from rmq_store.remoting.questions.name_servers import ask_clusters, ask_route
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings, parse_address

_ADDRESS: Final = "brokerIP1 (rmq broker run: --advertise)"
_AT_A_BROKER: Final = (
    f"is the process alive, and its address reachable from here? Else --address-map, or set {_ADDRESS}"
)
_AT_A_NAME_SERVER: Final = (
    "is the process alive, and is this its address, reachable from here? Its port is 9876 by default"
)
_PROXY: Final = (
    "RocketMQ 5's proxy, which serves clients: it lists no brokers (106) and tells none of their settings and figures"
)
_AT_A_PROXY: Final = (
    "nothing, if clients may reach the proxy only. To check brokers, give a name server, or let their operator run "
    "doctor there; settings are changed in their broker.conf, those of the proxy in its rmq-proxy.json"
)


def name_servers(cluster: Cluster) -> tuple[list[Finding], ClusterInfo | None]:
    """Ask each name server for the brokers, and compare what they say; the answer with the most processes counts. None:
    none tells them.
    """
    findings: list[Finding] = []
    tables: dict[str, ClusterInfo] = {}
    for address in cluster.name_servers.addresses():
        try:
            answer = cluster.client.call(address, ask_clusters())
        except StoreError as error:
            text = without_codes(str(error))
            fix = _fix_of_connection(text, cluster.settings, _AT_A_NAME_SERVER)
            findings.append(Finding("name server", FAIL, text, fix))
            continue
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and _tells_routes(cluster, address):
            findings.append(Finding("name server", WARN, f"{address}: {_PROXY}", _AT_A_PROXY))
            continue
        if answer.code != ResponseCode.SUCCESS:
            text = f"{address}: code {answer.code}: {answer.remark}"
            findings.append(Finding("name server", FAIL, text, "give the addresses of name servers, not of brokers"))
            continue
        tables[address] = info = ClusterInfo.decode(answer.body)
        findings.append(Finding("name server", OK, f"{address}: {_count(info)} processes of brokers"))
    if not tables:
        return findings, None
    info = max(tables.values(), key=_count)
    for address, one in tables.items():
        missing = sorted(_places(info) - _places(one))
        if missing:
            text = f"{address} does not know {', '.join(missing)}"
            fix = "every broker must register at all name servers (namesrvAddr); a restart of one takes 30 s to heal"
            findings.append(Finding("name server", WARN, text, fix))
    return findings, info


def _tells_routes(cluster: Cluster, address: str) -> bool:
    """Whether a peer that does not list brokers has routes, as a proxy; a broker has none."""
    try:
        answer = cluster.client.call(address, ask_route(SELF_TEST_TOPIC))
    except StoreError:
        return False
    return answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def masters(info: ClusterInfo) -> list[Finding]:
    """Check that each broker has a master."""
    if not info.broker_addr_table:
        return [Finding("routes", FAIL, "no broker is registered", "start brokers with namesrvAddr of these servers")]
    lost = [name for name, broker in sorted(info.broker_addr_table.items()) if 0 not in broker.broker_addrs]
    found = [
        Finding("routes", FAIL, f"{name} has no master: nothing is written there, and slaves serve reads at best",
                "start its master again, or make a slave the master (brokerId=0, brokerRole=ASYNC_MASTER)")
        for name in lost
    ]  # fmt: skip
    return found or [Finding("routes", OK, f"{len(info.broker_addr_table)} brokers, each with a master")]


def addresses(cluster: Cluster, processes: Sequence[Process]) -> list[Finding]:
    """Check that each registered address answers."""
    return [
        _unreachable(cluster, one) if one.error else Finding("address", OK, f"{one.name}: {one.address}")
        for one in processes
    ]


def _unreachable(cluster: Cluster, process: Process) -> Finding:
    settings = cluster.settings
    text = f"{process.name}: {process.error}"
    if process.address not in settings.address_map:
        port = parse_address(process.address).port
        for host in dict.fromkeys(parse_address(each).host for each in cluster.name_servers.addresses()):
            candidate = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if candidate != process.address and _answers(settings, process.address, candidate):
                pair = f"{process.address}={candidate}"
                fix = f"a broker answers at {candidate}: --address-map '{pair}' (Spark: addressMap), or set {_ADDRESS}"
                return Finding("address", FAIL, text, fix)
    return Finding("address", FAIL, text, _fix_of_connection(process.error, settings, _AT_A_BROKER))


def _answers(settings: ClusterSettings, registered: str, candidate: str) -> bool:
    mapped = {**settings.address_map, registered: candidate}
    with RemotingClient(replace(settings, address_map=mapped)) as client:
        try:
            client.call(registered, ask_broker_config())
        except StoreError:
            return False
    return True


def _fix_of_connection(error: str, settings: ClusterSettings, otherwise: str) -> str:
    if "certificate is not accepted for the name" in error:
        return "--tls-server-name with a name of the certificate, or one with this name (an IP address as IP SAN)"
    if "TLS" in error:
        return "compare --tls and the certificates with the server's tls.server.mode"
    if "connection was lost" in error and settings.tls is None:
        return "does the server want TLS (tls.server.mode=enforcing)? Then --tls; else look at its log"
    return otherwise


def _count(info: ClusterInfo) -> int:
    return len(_places(info))


def _places(info: ClusterInfo) -> set[str]:
    return {
        f"{name}:{broker_id}" for name, broker in info.broker_addr_table.items() for broker_id in broker.broker_addrs
    }
