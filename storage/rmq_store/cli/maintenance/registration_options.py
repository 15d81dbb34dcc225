"""The options of `rmq broker run` about the name servers with which it registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NameServers:
    """The values of the options; the keys of signatures are references."""

    addresses: str
    access_key: str
    secret_key: str
    tls: bool
    ca_file: str
    cert_file: str
    key_file: str
    tls_name: str

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return bool(self.addresses or self._has_keys or self.tls or self._has_tls_files)

    @property
    def _has_keys(self) -> bool:
        return bool(self.access_key or self.secret_key)

    @property
    def _has_tls_files(self) -> bool:
        return any((self.ca_file, self.cert_file, self.key_file, self.tls_name))

    def settings(self) -> str | ClusterSettings:
        """A server's argument; "" without a name server.

        Raises:
            UsageError: keys or TLS without a name server, options of TLS without TLS, or no references.
        """
        if self._has_tls_files and not self.tls:
            raise UsageError("--name-server-ca-file and its like are about TLS to name servers: say --name-server-tls")
        if not self._has_keys and not self.tls:
            return self.addresses
        if not self.addresses:
            raise UsageError(
                "--access-key, --secret-key and --name-server-tls are about name servers: say --name-server"
            )
        from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings

        tls = None
        if self.tls:
            tls = TlsSettings(
                ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file, server_name=self.tls_name
            )
        return ClusterSettings.of_text(
            self.addresses, access_key=self.access_key, secret_key=self.secret_key, tls=tls
        )


def registration_options(command: F) -> F:
    """Add the options; the command gets them as its argument `name_servers`."""

    @functools.wraps(command)
    def with_name_servers(
        *args: Any,
        register_with: str,
        register_access_key: str,
        register_secret_key: str,
        register_tls: bool,
        register_ca_file: str,
        register_cert_file: str,
        register_key_file: str,
        register_tls_name: str,
        **rest: Any,
    ) -> Any:
        given = NameServers(
            register_with, register_access_key, register_secret_key,
            register_tls, register_ca_file, register_cert_file, register_key_file, register_tls_name,
        )  # fmt: skip
        return command(*args, name_servers=given, **rest)

    for option in reversed(_OPTIONS):
        with_name_servers = option(with_name_servers)
    return with_name_servers  # type: ignore[return-value]


_OPTIONS: Final = (
    click.option(
        "--name-server",
        "register_with",  # `name_server` would name a cluster as the target of the command
        metavar="ADDRESSES",
        default="",
        help="With --listen: also register with these name servers, `ns1:9876;ns2:9876`.",
    ),
    click.option(
        "--access-key",
        "register_access_key",
        metavar="REFERENCE",
        default="",
        help="The access key that signs what --name-server is told, as env:NAME or file:PATH; never the key itself.",
    ),
    click.option(
        "--secret-key",
        "register_secret_key",
        metavar="REFERENCE",
        default="",
        help="Its secret key, as env:NAME or file:PATH.",
    ),
    click.option(
        "--name-server-tls",
        "register_tls",
        is_flag=True,
        help="Register over TLS. The name server's certificate is checked.",
    ),
    click.option(
        "--name-server-ca-file",
        "register_ca_file",
        metavar="FILE",
        default="",
        help="Certificates (PEM) to trust at name servers instead of the system's.",
    ),
    click.option(
        "--name-server-cert-file",
        "register_cert_file",
        metavar="FILE",
        default="",
        help="The certificate (PEM) that is shown to name servers.",
    ),
    click.option(
        "--name-server-key-file",
        "register_key_file",
        metavar="FILE",
        default="",
        help="Its key (PEM), without a password.",
    ),
    click.option(
        "--name-server-tls-name",
        "register_tls_name",
        metavar="NAME",
        default="",
        help="The name that certificates of name servers must have, instead of the host.",
    ),
)
