"""Settings of a cluster: addresses, references of secrets, TLS. They pickle, and hold no secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple, Self

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

SCHEME: Final = "rmq://"
_REFERENCES: Final = ("env:", "file:")
_PORT_MAX: Final = 65535
_HOST_MAX: Final = 255
_TIMEOUT_MS_MAX: Final = 3_600_000
_SHOWN: Final = 80
_URL: Final = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


class Address(NamedTuple):
    """A host, without the brackets of IPv6, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port` or `[ipv6]:port`.

    Raises:
        UsageError: it is none.
    """
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # No user, path or other part: nothing but a name or an address is ever given to the resolver.
    plain = host.isascii() and all(letter.isalnum() or letter in "-._:%" for letter in host)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= len(str(_PORT_MAX)) else 0
    if not host or len(host) > _HOST_MAX or not plain or not 0 < number <= _PORT_MAX:
        raise UsageError(f"{text[:_SHOWN]!r} is no address; it has the form host:port, for example 10.0.0.3:10911")
    return Address(host, number)


def is_address_server(name_server: str) -> bool:
    """Return whether it is the URL of a page that lists name servers, and not the address of one."""
    return _URL.fullmatch(name_server) is not None


def split_name_servers(text: str) -> tuple[str, ...]:
    """Read `ns1:9876;ns2:9876`; commas separate as well, and `rmq://` may stand before it. Addresses are not checked.

    `http://host:port` is an address, as for Java's and Go's clients: some providers hand it out so. A URL with a path
    stays one: it is an address server. https says nothing about TLS, which has settings of its own.
    """
    names = (name.strip() for name in text.strip().removeprefix(SCHEME).replace(",", ";").split(";"))
    return _without_schemes(name for name in names if name)


def _without_schemes(name_servers: Iterable[str]) -> tuple[str, ...]:
    """The list without repetitions, and each `http://host:port` as `host:port`."""
    return tuple(dict.fromkeys(map(_without_scheme, name_servers)))


def _without_scheme(name_server: str) -> str:
    url = _URL.fullmatch(name_server)
    if url is None or url[2] not in ("", "/"):
        return name_server
    # A host without a port is no name server: the page at its root lists them.
    return url[1] if re.search(r":[0-9]+\Z", url[1]) else name_server


def parse_address_map(text: str) -> dict[str, str]:
    """Read `10.0.0.3:10911=localhost:10911,10.0.0.4:10911=localhost:10921`; semicolons separate as well.

    Raises:
        UsageError: a pair is malformed, or an address has two targets.
    """
    found: dict[str, str] = {}
    for pair in text.replace(";", ",").split(","):
        if not pair.strip():
            continue
        registered, equals, target = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair.strip()[:_SHOWN]!r} in an address map has no '='; a pair is registered=reachable")
        key, value = str(parse_address(registered)), str(parse_address(target))
        if found.setdefault(key, value) != value:
            raise UsageError(f"the address map has two targets for {key}")
    return found


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS to all servers of a cluster. Files are read by the process that connects.

    `ca_file`: certificates that are trusted, instead of the system's. `cert_file`, `key_file`: the client's own
    certificate, in PEM; a key with a password is refused. The verified name is `server_name`, if it is given, else the
    host of the address that the server registered, also where an address map names another one to connect to.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str = ""

    def __post_init__(self) -> None:
        """Raises: UsageError: a key without a certificate."""
        if self.key_file and not self.cert_file:
            raise UsageError("TLS: a key without a certificate; give both files")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster as a client sees it.

    `name_servers`: addresses (`split_name_servers` has their spellings), or one http(s) URL that lists them.
    `address_map`: registered address -> address to
    connect to. `access_key`, `secret_key`, `security_token`: references, `env:NAME` or `file:PATH`, which each process
    resolves for itself. `timeout_ms` is the time of an ordinary call.
    """

    name_servers: tuple[str, ...]
    address_map: Mapping[str, str] = field(default_factory=dict, hash=False)
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: TlsSettings | None = None
    namespace: str = ""
    timeout_ms: int = 3000
    connect_timeout_ms: int = 3000
    idle_close_ms: int = 120_000

    def __post_init__(self) -> None:
        """Raises: UsageError: no name server, a malformed address, or a secret instead of its reference."""
        if not self.name_servers:
            raise UsageError("no name server; give at least one address, for example ns1:9876")
        object.__setattr__(self, "name_servers", _without_schemes(self.name_servers))
        for name_server in self.name_servers:
            if not is_address_server(name_server):
                parse_address(name_server)
            elif len(self.name_servers) > 1:
                raise UsageError("the URL of an address server stands alone, without other name servers")
        for registered, target in self.address_map.items():
            parse_address(registered)
            parse_address(target)
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if value and not (value.startswith(_REFERENCES) and value.partition(":")[2]):
                # The value may be the secret itself: it is not shown.
                raise UsageError(f"{name} is a reference, env:NAME or file:PATH, and never the secret itself")
        if bool(self.access_key) != bool(self.secret_key):
            raise UsageError("an access key and a secret key belong together; one of the two is missing")
        if self.security_token and not self.access_key:
            raise UsageError("a security token without an access key")
        for name in ("timeout_ms", "connect_timeout_ms", "idle_close_ms"):
            if not 0 < getattr(self, name) <= _TIMEOUT_MS_MAX:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be in [1, {_TIMEOUT_MS_MAX}]")

    @classmethod
    def of_text(cls, text: str, **rest: Any) -> Self:
        """Read a text as `rmq://ns1:9876;ns2:9876` (`split_name_servers`).

        Raises:
            UsageError: see the class.
        """
        return cls(name_servers=split_name_servers(text), **rest)

    def target_of(self, address: str) -> Address:
        """Return where to connect for a registered address.

        Raises:
            UsageError: the address is malformed.
        """
        registered = parse_address(address)
        mapped = self.address_map.get(address) or self.address_map.get(str(registered))
        return parse_address(mapped) if mapped else registered
