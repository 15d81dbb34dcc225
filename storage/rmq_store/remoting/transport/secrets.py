"""Secrets by reference: resolved late, in the process that signs, and shown nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

from rmq_store.errors import UsageError
from rmq_store.remoting.transport.settings import ClusterSettings

_FILE_BYTES_MAX: Final = 1 << 16


def resolve(reference: str, name: str) -> str:
    """Return the secret behind `env:NAME` or `file:PATH`, without line ends around it; "" for an empty reference.

    Raises:
        UsageError: there is no such variable or file, or it is empty. `name` says which setting is meant.
    """
    kind, _, place = reference.partition(":")
    if not reference:
        return ""
    if kind == "env":
        found = os.environ.get(place, "")
    else:
        try:
            with Path(place).open("rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
            found = data.decode() if len(data) <= _FILE_BYTES_MAX else ""
        except OSError as error:
            raise UsageError(f"{name}: cannot read {reference}: {error.strerror}") from None
        except UnicodeDecodeError:
            # The error of the decoder would show the bytes.
            raise UsageError(f"{name}: {reference} is not UTF-8") from None
    found = found.strip("\r\n")
    if not found:
        where = "this process has no such variable, or it is empty" if kind == "env" else "empty, or larger than 64 KiB"
        raise UsageError(f"{name}: nothing at {reference}: {where}")
    return found


class Credentials:
    """Resolved secrets. They have no text and do not pickle."""

    __slots__ = ("access_key", "secret_key", "security_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str) -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.security_token = security_token

    @classmethod
    def of(cls, settings: ClusterSettings) -> Credentials | None:
        """Resolve the references; None if there are none.

        Raises:
            UsageError: see `resolve`.
        """
        if not settings.access_key:
            return None
        return cls(
            resolve(settings.access_key, "access key"),
            resolve(settings.secret_key, "secret key"),
            resolve(settings.security_token, "security token"),
        )

    def __repr__(self) -> str:
        return "Credentials(***)"

    def __reduce__(self) -> NoReturn:
        raise UsageError("secrets are never pickled; pickle the settings, which have references")
