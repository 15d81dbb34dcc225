"""The options that name a cluster of brokers and the way to it. Control plane, no I/O.

Secrets are never here: `accessKey`, `secretKey` and `securityToken` say where each process finds them, as `env:NAME` or
`file:PATH`. So plans, checkpoints and errors have nothing to hide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rmq.position.position import refuse

NAME_SERVER: Final = "nameServer"

CONNECTION: Final = frozenset((
    NAME_SERVER, "addressMap", "accessKey", "secretKey", "securityToken", "tls", "tlsCaFile", "tlsCertFile",
    "tlsKeyFile", "tlsVerify", "tlsServerName",
))  # fmt: skip
"""The options of the way to the brokers, whatever is asked for there."""

# Options that need another one beside them.
_NEEDS: Final[Mapping[str, str]] = {
    "accessKey": "secretKey",
    "secretKey": "accessKey",
    "securityToken": "accessKey",
    "tlsCaFile": "tls",
    "tlsCertFile": "tls",
    "tlsKeyFile": "tlsCertFile",
    "tlsVerify": "tls",
    "tlsServerName": "tls",
}

_PORT_MAX = 65535
# A host name, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"(?:[^\s:;,=/\[\]]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")

# Longer than a broker needs to begin again.
BROKER_AWAY_TIMEOUT_MS: Final = 180_000


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster of brokers. Fields are the options of these names; can be sent to tasks.

    `name_server` is addresses separated by ";", or the URL of an address server. `address_map` is pairs of a registered
    address and the one to be dialled for it. `access_key`, `secret_key` and `security_token` are references.
    `broker_away_timeout_ms`: so long what is planned waits for a broker that is away.
    """

    name_server: str
    address_map: tuple[tuple[str, str], ...] = ()
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_verify: bool = True
    tls_server_name: str = ""
    namespace: str = ""
    pull_group: str = ""
    broker_away_timeout_ms: int = BROKER_AWAY_TIMEOUT_MS


# How long a task waits, by default.
SETTLE_MS: Final = 3_000
SEND_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ClusterSinkOptions:
    """How rows are sent to a cluster. Fields are the options of these names, `settle_ms` is settleTime.

    `resend_unknown`: onUnknownOutcome=resend. `fail_on_weak_status`: onStoreStatus=fail.
    """

    replay_check: bool
    resend_unknown: bool = False
    marker_path: str = ""
    settle_ms: int = SETTLE_MS
    send_timeout_ms: int = SEND_TIMEOUT_MS
    create_topic: bool = True
    fail_on_weak_status: bool = False


def cluster_sink_options(values: Mapping[str, Any], *, is_stream: bool) -> ClusterSinkOptions:
    """How parsed options of a write send rows to a cluster.

    Raises:
        UsageError: options contradict each other.
    """
    is_repeatable = is_stream or "txnAppId" in values
    replay_check = values.get("replayCheck", is_repeatable)
    if replay_check and not is_repeatable:
        refuse("option replayCheck needs txnAppId and txnVersion in a batch write: they say which write is repeated")
    if replay_check and values.get("keepUniqKey"):
        refuse("option keepUniqKey needs replayCheck=false: the check knows rows by UNIQ_KEYs that it makes")
    if not replay_check:
        for name in ("markerPath", "settleTime"):
            if name in values:
                refuse(f"option {name} needs the replay check: see replayCheck")
        if values.get("onUnknownOutcome") == "check":
            refuse("option onUnknownOutcome=check needs the replay check: see replayCheck")
    return ClusterSinkOptions(
        replay_check=replay_check,
        resend_unknown=not replay_check or values.get("onUnknownOutcome") == "resend",
        marker_path=values.get("markerPath", ""),
        settle_ms=values.get("settleTime", SETTLE_MS),
        send_timeout_ms=values.get("sendTimeout", SEND_TIMEOUT_MS),
        create_topic=values.get("createTopic", True),
        fail_on_weak_status=values.get("onStoreStatus") == "fail",
    )


def one_of(*words: str) -> Callable[[str, str], str]:
    """A parser of an option that is one of some words."""

    def parse(text: str, name: str) -> str:
        value = next((word for word in words if word.lower() == text.strip().lower()), None)
        if value is None:
            refuse(f"option {name}: {text!r} is none of {', '.join(words)}")
        return value

    return parse


def cluster_options(values: Mapping[str, Any]) -> ClusterOptions:
    """The cluster that parsed options name; `nameServer` is one of them.

    Raises:
        UsageError: an option lacks the one that it belongs to.
    """
    for name, needed in _NEEDS.items():
        if name in values and not values.get(needed):
            refuse(f"option {name} needs the option {needed}" + ("=true" if needed == "tls" else ""))
    return ClusterOptions(
        name_server=values[NAME_SERVER],
        address_map=values.get("addressMap", ()),
        access_key=values.get("accessKey", ""),
        secret_key=values.get("secretKey", ""),
        security_token=values.get("securityToken", ""),
        tls=values.get("tls", False),
        tls_ca_file=values.get("tlsCaFile", ""),
        tls_cert_file=values.get("tlsCertFile", ""),
        tls_key_file=values.get("tlsKeyFile", ""),
        tls_verify=values.get("tlsVerify", True),
        tls_server_name=values.get("tlsServerName", ""),
        namespace=values.get("namespace", ""),
        pull_group=values.get("pullGroup", ""),
        broker_away_timeout_ms=values.get("brokerAwayTimeout", BROKER_AWAY_TIMEOUT_MS),
    )


def name_servers(text: str, name: str) -> str:
    """Addresses of name servers, separated by ";" or ","; or the http(s) URL of an address server.

    `http://host:port` is an address (`split_name_servers`).
    """
    from rmq_store.cluster import is_address_server, split_name_servers

    found = split_name_servers(text.strip().rstrip("/"))
    if not found:
        refuse(f"option {name} is empty")
    if len(found) == 1 and is_address_server(found[0]):
        return found[0]
    return ";".join(_address(address, name) for address in found)


def address_map(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Pairs `registered=reachable` of addresses, separated by ";" or ","."""
    pairs = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    result: dict[str, str] = {}
    for pair in pairs:
        registered, sign, reachable = pair.partition("=")
        if not sign:
            refuse(f"option {name}: {pair!r} is not a pair such as 10.0.0.3:10911=localhost:10911")
        if registered.strip() in result:
            refuse(f"option {name} names {registered.strip()} twice")
        result[_address(registered.strip(), name)] = _address(reachable.strip(), name)
    if not result:
        refuse(f"option {name} is empty")
    return tuple(result.items())


def broker_names(text: str, name: str) -> tuple[str, ...]:
    """Names of brokers, separated by "," or ";"."""
    from rmq_store.cluster import parse_broker_names
    from rmq_store.errors import UsageError

    try:
        return parse_broker_names(text)
    except UsageError as error:
        refuse(f"option {name}: {error}")


def reference(text: str, name: str) -> str:
    """A reference of a secret: `env:NAME` or `file:PATH`. No error repeats the text: it may be the secret."""
    value = text.strip()
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+", value) is None:
        refuse(
            f"option {name} must say where the secret is, as env:NAME or file:/path, and never be the secret itself: "
            "options are shown in plans and logs"
        )
    return value


def _address(text: str, name: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= _PORT_MAX:
        refuse(f"option {name}: {text!r} is not an address such as host:9876")
    return text
