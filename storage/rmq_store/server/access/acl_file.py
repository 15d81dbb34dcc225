"""The file of users: TOML, because the standard library reads it, and it can neither name classes nor run anything.

    [[user]]
    access_key = "orders-service"
    secret_key = "env:ORDERS_SECRET"          # or "file:/run/secrets/orders"
    topics = { "Orders*" = "PUB", "Bills" = "PUB|SUB" }
    groups = { "billing" = "SUB" }

    [[user]]
    access_key = "operator"
    secret_key = "file:/run/secrets/operator"
    admin = true

A secret may stand in the file itself if nobody but its owner can read it (mode 0600).
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rmq_store.errors import UsageError
from rmq_store.remoting.transport.secrets import resolve
from rmq_store.server.access.rights import Patterns, User, parse_rights

_FILE_BYTES_MAX: Final = 1 << 20
_REFERENCES: Final = ("env:", "file:")
# PlainPermissionManager.java refuses secrets of 6 characters and less.
_SECRET_CHARACTERS_MIN: Final = 7
_KEYS: Final = {"access_key": str, "secret_key": str, "topics": dict, "groups": dict, "admin": bool}


def read_users(path: Path) -> dict[str, User]:
    """The users by access key, with their secrets resolved.

    Raises:
        UsageError: the file cannot be read, others than its owner may change it, a value is wrong, or a secret is
            missing. Names the file and the user, and shows no secret.
    """
    text, is_private = _read(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: no TOML: {error}") from None
    entries = table.pop("user", [])
    if table or not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: an access file has tables [[user]], at least one, and nothing else")
    users: dict[str, User] = {}
    for number, entry in enumerate(entries, 1):
        try:
            user = _user(entry, is_private=is_private)
        except UsageError as error:
            raise UsageError(f"{path}: user {number}: {error}") from None
        if user.access_key in users:
            raise UsageError(f"{path}: user {number}: its access key is that of another user, too")
        users[user.access_key] = user
    return users


def files_of_secrets(path: Path) -> list[Path]:
    """The files whose change is a change of the users: the file itself, and those that its secrets refer to. Only the
    file itself if it cannot be read.
    """
    try:
        entries = tomllib.loads(_read(path)[0])["user"]
        references = [entry["secret_key"] for entry in entries]
    except (UsageError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return [path]
    return [path, *(Path(one.removeprefix("file:")) for one in references if str(one).startswith("file:"))]


def _read(path: Path) -> tuple[str, bool]:
    """The text, and whether only the owner can read it. Both are of the same file, whatever replaces it meanwhile."""
    try:
        # A FIFO would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path}: no regular file")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UsageError(f"{path}: others than its owner may write to it; run chmod go-w on it")
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise UsageError(f"{path}: larger than {_FILE_BYTES_MAX >> 20} MiB")
        return data.decode(), not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # The error of the decoder would show the bytes.
        raise UsageError(f"{path}: no UTF-8") from None


def _user(entry: Any, *, is_private: bool) -> User:
    if not isinstance(entry, dict):
        raise UsageError("no table")
    for key, value in entry.items():
        if not isinstance(value, _KEYS.get(key, ())):
            known = ", ".join(_KEYS)
            raise UsageError(f"{key[:80]!r} is no key of a user, or has a value of another type; keys are {known}")
    access_key = entry.get("access_key", "")
    if not access_key:
        raise UsageError("no access_key")
    is_admin = entry.get("admin", False)
    if is_admin and ("topics" in entry or "groups" in entry):
        raise UsageError("admin = true has every right: leave out topics and groups, or admin")
    secret = _secret(entry.get("secret_key", ""), is_private=is_private)
    topics, groups = (_patterns(entry.get(key, {})) for key in ("topics", "groups"))
    return User(access_key, secret, topics, groups, is_admin=is_admin)


def _secret(text: str, *, is_private: bool) -> str:
    if text.startswith(_REFERENCES):
        secret = resolve(text, "secret_key")
    elif not is_private:
        raise UsageError(
            "secret_key is no reference, env:NAME or file:PATH. A secret may stand in the file itself only if nobody "
            "but its owner can read it: run chmod 600 on it"
        )
    else:
        secret = text
    if len(secret) < _SECRET_CHARACTERS_MIN:
        raise UsageError(f"secret_key is shorter than {_SECRET_CHARACTERS_MIN} characters, or missing")
    return secret


def _patterns(table: Mapping[str, Any]) -> Patterns:
    if not all(isinstance(rights, str) for rights in table.values()):
        raise UsageError("the rights of a pattern are a text, for example 'PUB|SUB'")
    return Patterns({pattern: parse_rights(rights) for pattern, rights in table.items()})
