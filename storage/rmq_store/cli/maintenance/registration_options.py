"""The options of `rmq broker run` about the name servers with which it registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NameServers:
    """The values of the options; the keys are references."""

    addresses: str
    access_key: str
    secret_key: str

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return any((self.addresses, self.access_key, self.secret_key))

    def settings(self) -> str | ClusterSettings:
        """A server's argument; "" without a name server. UsageError: keys without a name server, or no references."""
        if not self.access_key and not self.secret_key:
            return self.addresses
        if not self.addresses:
            raise UsageError("--access-key and --secret-key sign what name servers are told: say --name-server")
        from rmq_store.remoting.transport.settings import ClusterSettings

        return ClusterSettings.of_text(self.addresses, access_key=self.access_key, secret_key=self.secret_key)


def registration_options(command: F) -> F:
    """Add the options; the command gets them as its argument `name_servers`."""

    @functools.wraps(command)
    def with_name_servers(
        *args: Any, register_with: str, register_access_key: str, register_secret_key: str, **rest: Any
    ) -> Any:
        given = NameServers(register_with, register_access_key, register_secret_key)
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
)
