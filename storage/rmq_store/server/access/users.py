"""The users of an access file, as they are in the file now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmq_store.errors import UsageError
from rmq_store.server.access.acl_file import files_of_secrets, read_users
from rmq_store.server.access.rights import User

_log: Final = logging.getLogger(__name__)

# An unknown access key costs the time of a known one: its signature is compared with that of a key nobody has.
_NOBODYS_SECRET: Final = "nobody"


class Users:
    """The users by access key. Safe for threads.

    Raises:
        UsageError: as `read_users`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._state()
        self._users = read_users(path)

    def find(self, access_key: str) -> User | None:
        """The user with this access key."""
        return self._users.get(access_key)

    def signer(self, access_key: str, is_signed_with: Callable[[str], bool]) -> User | None:
        """The user with this access key, if a request is signed with his secret. `is_signed_with` tells whether it is
        signed with a secret; it is called for an unknown access key, too.
        """
        user = self._users.get(access_key)
        is_signed = is_signed_with(user.secret_key if user is not None else _NOBODYS_SECRET)
        return user if is_signed else None

    def reload_if_changed(self) -> None:
        """Read the file anew if it, or the file of a secret, has changed. A file that is wrong is logged once, and the
        users stay as they were.
        """
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._users = read_users(self._path)
        except UsageError as error:
            _log.error("the users and rights stay as they were: %s", error)
            return
        _log.info("%s: %d users are known now", self._path, len(self._users))

    def _state(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_stamp(path) for path in files_of_secrets(self._path))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
