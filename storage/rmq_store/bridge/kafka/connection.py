"""Connection options for Kafka: addresses, TLS and SASL. A list names the options that go to kafka-python unchanged.

    connection = KafkaConnection(("kafka-1:9092", "kafka-2:9092"), {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "mirror",
        "sasl_plain_password": "file:/run/secrets/kafka",
        "ssl_cafile": "/etc/kafka/ca.pem",
    })

Secrets are references, `env:NAME` or `file:/path` (its first line), and are read when a client is made; nothing prints
them. The mirror itself sets how it reads and writes (isolation, offsets, commits, retries): these are no options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from rmq_store.errors import UsageError, did_you_mean
from rmq_store.lazy.dataclasses import dataclass

CLIENT_ID: Final = "pyspark-rmq-mirror"

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "GSSAPI", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512")

SECRETS: Final = ("sasl_plain_password", "ssl_password", "sasl_oauth_token")
"""Options that must be references. `sasl_oauth_token` is ours: kafka-python takes an object that gives tokens."""

_TEXTS: Final = (
    "client_id", "client_rack", "client_dns_lookup", "proxy_url", "security_protocol", "ssl_cafile", "ssl_certfile",
    "ssl_keyfile", "ssl_crlfile", "ssl_ciphers", "sasl_mechanism", "sasl_plain_username", "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
)  # fmt: skip
_FLAGS: Final = ("ssl_check_hostname",)
_NUMBERS: Final = (
    "request_timeout_ms", "bootstrap_timeout_ms", "connections_max_idle_ms", "metadata_max_age_ms",
    "reconnect_backoff_ms", "reconnect_backoff_max_ms", "retry_backoff_ms", "receive_buffer_bytes",
    "send_buffer_bytes",
)  # fmt: skip
OPTIONS: Final = tuple(sorted((*_TEXTS, *_FLAGS, *_NUMBERS, *SECRETS)))
"""All that may be given, by kafka-python's names."""

# kafka-python's administration client does not know these.
_NOT_OF_ADMINISTRATION: Final = ("client_rack", "ssl_ciphers")


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Addresses (`host:port`) and options. Values are texts, as on a command line, or have the option's own type.

    Raises (when constructed):
        UsageError: no address, an unknown option (the message suggests the nearest name), a malformed value, a secret
            that is no reference.
    """

    bootstrap_servers: tuple[str, ...]
    options: Mapping[str, str | int | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        servers = tuple(part.strip() for given in self.bootstrap_servers for part in given.split(",") if part.strip())
        if not servers:
            raise UsageError("bootstrap servers: at least one address, such as kafka-1:9092, is needed")
        for server in servers:
            _check_address(server)
        object.__setattr__(self, "bootstrap_servers", servers)
        object.__setattr__(self, "options", {name: _checked(name, value) for name, value in self.options.items()})

    def __repr__(self) -> str:
        return f"KafkaConnection({', '.join(self.bootstrap_servers)})"

    @property
    def authenticates(self) -> bool:
        """True if the options name a user (SASL)."""
        return str(self.options.get("security_protocol", "")).startswith("SASL_")

    def settings(self) -> dict[str, Any]:
        """The settings of every client of kafka-python. Reads the secrets; raises UsageError if one is missing."""
        settings: dict[str, Any] = {
            "bootstrap_servers": list(self.bootstrap_servers), "client_id": CLIENT_ID, **self.options,
        }  # fmt: skip
        for name in SECRETS:
            if name in settings:
                reference = settings.pop(name)
                if name == "sasl_oauth_token":
                    settings["sasl_oauth_token_provider"] = _tokens(reference)
                else:
                    settings[name] = secret(reference, name)
        return settings

    def administration_settings(self) -> dict[str, Any]:
        """The settings of an administration client. Raises as `settings`."""
        settings = self.settings()
        return {name: value for name, value in settings.items() if name not in _NOT_OF_ADMINISTRATION}


def secret(reference: str, what: str) -> str:
    """The secret that a reference names. Raises UsageError if it does not exist; the text never has the secret."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name, "")
        if not value:
            raise UsageError(f"{what}: the environment variable {name!r} is not set")
        return value
    assert kind == "file"
    try:
        value = Path(name).read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError as error:
        raise UsageError(f"{what}: {name}: {error.strerror}") from error
    except UnicodeDecodeError:
        # The error itself has the bytes.
        raise UsageError(f"{what}: {name} is no text") from None
    if not value:
        raise UsageError(f"{what}: the first line of {name} is empty")
    return value


def _check_address(server: str) -> None:
    host, _, port = server.rpartition(":")
    is_bare_ipv6 = ":" in host and not host.endswith("]")
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16
    if not host or is_bare_ipv6 or not is_port:
        raise UsageError(f"bootstrap servers: {server!r} is no address such as kafka-1:9092 or [::1]:9092")


def _checked(name: str, value: object) -> str | int | bool:
    if name in SECRETS:
        if not isinstance(value, str) or not value.startswith(("env:", "file:")):
            raise UsageError(f"{name}: env:NAME or file:/path is expected, not the secret itself")
        return value
    if name in _TEXTS:
        return _text(name, value)
    if name in _FLAGS:
        return _flag(name, value)
    if name in _NUMBERS:
        return _number(name, value)
    hint = did_you_mean(name, OPTIONS) or f"; known are {', '.join(OPTIONS)}"
    raise UsageError(f"unknown option of Kafka's client {name!r}{hint}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name}: a text is expected")
    known = {"security_protocol": SECURITY_PROTOCOLS, "sasl_mechanism": SASL_MECHANISMS}.get(name)
    if known is not None and value not in known:
        raise UsageError(f"{name}={value!r}: {', '.join(known)} are known")
    return value


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise UsageError(f"{name}={value!r}: true or false is expected")


def _number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}: a positive integer is expected")
    return value


def _tokens(reference: str) -> Any:
    """Gives the token anew each time when a connection needs it: tokens are replaced while a mirror runs."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return secret(reference, "sasl_oauth_token")

    return Tokens()
