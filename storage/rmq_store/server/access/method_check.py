"""Decides whether a call over gRPC may be carried out: by its signature, and by its sender's rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from rmq_store.clock import system_clock
from rmq_store.errors import StoreError
from rmq_store.server.access.method_rights import METHOD_RIGHTS
from rmq_store.server.access.mqv2_signature import APART_S_MAX, AUTHORIZATION, DATE_TIME, Mqv2Signature
from rmq_store.server.access.refusals import NoAccessError, RefusalLog
from rmq_store.server.access.users import Users
from rmq_store.server.requests.request_needs import Need

NOBODY: Final = ""
"""The access key of all callers where there are no users."""


class NotSignedError(StoreError):
    """The sender's fault: the call is not signed, wrongly, or with a time that is far from the server's. `user` is the
    access key that it names, "" if it names none.
    """

    def __init__(self, user: str, reason: str) -> None:
        super().__init__(reason)
        self.user = user


class MethodCheck:
    """`users` is None where everybody may ask. `clock`: milliseconds of the machine's time, with which the times of
    signatures are compared. Safe for threads.
    """

    def __init__(self, users: Users | None, clock: Callable[[], int] = system_clock) -> None:
        self._users = users
        self._clock = clock
        self._refusals = RefusalLog()

    def signer(self, metadata: Mapping[str, str]) -> str:
        """The access key of the user who has signed a call; NOBODY where there are no users.

        Raises:
            NotSignedError: nobody has, or the signature is wrong or old.
        """
        if self._users is None:
            return NOBODY
        signature = Mqv2Signature.of(metadata)
        if signature is None:
            text = f"the call is not signed, and this broker asks for it: {AUTHORIZATION}, {DATE_TIME}"
            raise NotSignedError("", text)
        user = self._users.signer(signature.access_key, signature.is_signed_with)
        if user is None:
            raise NotSignedError(signature.access_key, "check signature failed: no such access key, or another secret")
        now_ms = self._clock()
        if not signature.is_near(now_ms):
            now = datetime.fromtimestamp(now_ms // 1000, UTC)
            raise NotSignedError(
                user.access_key,
                f"{DATE_TIME} {signature.date_time[:64]!r} is more than {APART_S_MAX // 60} minutes from the time of "
                f"this broker, {now:%Y%m%dT%H%M%SZ}: set the clock. If the client signs its local time, and its time "
                "zone is not that of the broker, run it with TZ=UTC",
            )
        return user.access_key

    def __call__(self, access_key: str, method: str, request: Any) -> None:
        """Return if the user may make this call. It is asked again for a call that has waited: rights change.

        Raises:
            NoAccessError: as `require`, or the method has no row in the table of rights.
            NotSignedError: as `require`.
            UsageError: the request names too many topics.
        """
        needs_of = METHOD_RIGHTS.get(method)
        if self._users is not None and needs_of is None:
            raise NoAccessError(access_key, f"{method} has no declared right")
        if needs_of is not None:
            self.require(access_key, needs_of(request))

    def require(self, access_key: str, needs: Iterable[Need]) -> None:
        """Return if the user has these rights now, or there are no users.

        Raises:
            NoAccessError: the remark says which one is missing.
            NotSignedError: the user is not in the file of users any more.
        """
        if self._users is None:
            return
        user = self._users.find(access_key)
        if user is None:
            raise NotSignedError(access_key, "there is no such access key any more")
        for need in () if user.is_admin else needs:
            if not user.may(need):
                raise NoAccessError(access_key, f"no permission: {need} is missing")

    def tell(self, error: Exception, method: str, peer: str) -> None:
        """Let the log have the reason of a refused call; any other error is none of it. `peer`: as gRPC names it,
        `ipv4:127.0.0.1:41026` or `ipv6:%5B::1%5D:41026`.
        """
        if isinstance(error, NoAccessError | NotSignedError):
            reason = error.remark if isinstance(error, NoAccessError) else str(error)
            self._refusals.tell(unquote(peer).partition(":")[2], error.user, method, reason)
