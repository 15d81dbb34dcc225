"""The options of `rmq broker run` about users, administrators and TLS; `rmq namesrv run` has those of TLS, too."""


from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.server.transport.tls import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""The type of an option that names a file which is there."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The values of the options about TLS of a server."""

    cert: Path | None
    key: Path | None
    client_ca: Path | None

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return any((self.cert, self.key, self.client_ca))

    def files(self) -> TlsFiles | None:
        """The files of TLS; None without a certificate. UsageError: one of them is missing."""
        if not self.is_given:
            return None
        if self.cert is None or self.key is None:
            raise UsageError("TLS needs both --tls-cert and --tls-key")
        from rmq_store.server.transport.tls import TlsFiles

        return TlsFiles(self.cert, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class Access:
    """The values of the options. `admin`: changes of what exists are carried out."""

    acl: Path | None
    admin: bool
    tls: ServerTls

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return self.acl is not None or self.admin or self.tls.is_given


def access_options(command: F) -> F:
    """Add the options; the command gets them as its argument `access`."""

    @functools.wraps(command)
    def with_access(*args: Any, acl: Path | None, admin: bool, tls: ServerTls, **rest: Any) -> Any:
        return command(*args, access=Access(acl, admin, tls), **rest)

    made = tls_options(with_access)
    for option in reversed(_USERS):
        made = option(made)
    return made  # type: ignore[return-value]


def tls_options(command: F) -> F:
    """Add the options of TLS; the command gets them as its argument `tls`."""

    @functools.wraps(command)
    def with_tls(
        *args: Any, tls_cert: Path | None, tls_key: Path | None, tls_client_ca: Path | None, **rest: Any
    ) -> Any:
        return command(*args, tls=ServerTls(tls_cert, tls_key, tls_client_ca), **rest)

    for option in reversed(_TLS):
        with_tls = option(with_tls)
    return with_tls  # type: ignore[return-value]


_USERS: Final = (
    click.option(
        "--acl",
        metavar="FILE",
        type=FILE,
        help="Users and their rights, as TOML: docs/server.md has the form. Each request must be signed by one of "
        "them. It is read again when it changes.",
    ),
    click.option(
        "--admin",
        is_flag=True,
        help="Carry out requests that change or delete topics, groups and offsets that exist.",
    ),
)
_TLS: Final = (
    click.option(
        "--tls-cert",
        metavar="FILE",
        type=FILE,
        help="The server's certificate with its chain, as PEM. Clients without TLS are refused then.",
    ),
    click.option("--tls-key", metavar="FILE", type=FILE, help="The key of --tls-cert, as PEM, without a password."),
    click.option(
        "--tls-client-ca",
        metavar="FILE",
        type=FILE,
        help="Authorities, as PEM: clients must show a certificate that one of them has signed.",
    ),
)
