"""Redis before the database: it saves work, and decides nothing (H04 of docs/conformance.md).

    key    <prefix><group>:<message id>
    value  p:<token>    a worker has it; ends with its lease, which that worker renews
           d            done; set after the database has committed

A key is given back by compare-and-delete, so nobody deletes the key of a later worker. Whatever Redis does (it is
unavailable, restarted, flushed, read only, slow, or wrong), the answer is at most "not known": the database decides.
After an error Redis is not asked for a while, so that not each message waits for a time-out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.reliable.database.engine import resolve_reference
from rmq_store.reliable.database.inserting import chunks
from rmq_store.reliable.database.leases import HORIZON_FACTOR

if TYPE_CHECKING:
    import redis

T = TypeVar("T")

SOCKET_TIMEOUT_S: Final = 0.2
PAUSES: Final = Backoff(first_ms=1_000, max_ms=30_000)

# Nothing that comes from a message is part of a script.
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RENEW: Final = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
)
_DONE: Final = b"d"

_log = logging.getLogger(__name__)


class Known(StrEnum):
    """The answer of Redis about a message. UNKNOWN: only the database can tell. The database is asked in any case."""

    OURS = "ours"
    PROCESSING = "processing"
    DONE = "done"
    UNKNOWN = "unknown"


class RedisFilter:
    """The keys of one group. `lease_ms`: life of the key of a message that a worker has. `done_ttl_ms`: life of the key
    of a message that is done. `on_outage` is called once each time Redis begins to fail. Safe for threads.
    """

    def __init__(
        self,
        client: redis.Redis,
        group: str,
        *,
        prefix: str,
        lease_ms: int,
        done_ttl_ms: int,
        on_outage: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = real_time.monotonic,
    ) -> None:
        import redis

        self._client = client
        self._prefix = f"{prefix}{group}:"
        self._group = group
        self._lease_ms = lease_ms
        self._done_ttl_ms = done_ttl_ms
        self._on_outage = on_outage
        self._monotonic = monotonic
        # A socket that is closed behind the client's back is an OSError or a ValueError.
        self._errors = (redis.RedisError, OSError, ValueError)
        self._wrong_type = redis.ResponseError
        self._lock = threading.Lock()
        self._failures = 0
        self._silent_until_s = 0.0

    def claim(self, message_ids: Sequence[str], token: str) -> dict[str, Known]:
        """SET NX for each id: `token` holds those that are OURS now, until the lease ends."""
        found = dict.fromkeys(message_ids, Known.UNKNOWN)
        value = f"p:{token}"
        for some in chunks(found):
            answers = self._ask(some, lambda pipe, key: pipe.set(key, value, nx=True, px=self._lease_ms))
            taken = [one for one, answer in zip(some, answers, strict=False) if answer is None]
            found.update((one, Known.OURS) for one, answer in zip(some, answers, strict=False) if answer)
            values = self._ask(taken, lambda pipe, key: pipe.get(key))
            ends = self._ask(taken, lambda pipe, key: pipe.pttl(key)) if values else []
            for one, held, ttl_ms in zip(taken, values, ends, strict=False):
                found[one] = _known(held, ttl_ms, HORIZON_FACTOR * self._lease_ms)
        return found

    def renew(self, message_ids: Iterable[str], token: str) -> None:
        """Extend the keys of `token` by another lease."""
        for some in chunks(list(message_ids)):
            self._ask(some, lambda pipe, key: pipe.eval(_RENEW, 1, key, f"p:{token}", self._lease_ms))

    def done(self, message_ids: Iterable[str]) -> None:
        """Record that the database has committed these messages."""
        for some in chunks(list(message_ids)):
            self._ask(some, lambda pipe, key: pipe.set(key, _DONE, px=self._done_ttl_ms))

    def release(self, message_ids: Iterable[str], token: str) -> None:
        """Delete the keys of `token`."""
        for some in chunks(list(message_ids)):
            self._ask(some, lambda pipe, key: pipe.eval(_RELEASE, 1, key, f"p:{token}"))

    def _ask(self, message_ids: Sequence[str], command: Callable[[Any, str], object]) -> list[Any]:
        """The answers, one for each id; [] if Redis does not answer. An answer may be an error of one key."""
        if not message_ids or self._monotonic() < self._silent_until_s:
            return []
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for message_id in message_ids:
                    command(pipe, self._prefix + message_id)
                answers = pipe.execute(raise_on_error=False)
            for answer in answers:
                # Somebody else's key of this name, a list say, is no outage.
                if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
                    raise answer
        except self._errors as error:
            self._failed(error)
            return []
        self._answered()
        return answers

    def _failed(self, error: Exception) -> None:
        with self._lock:
            is_new = not self._failures
            self._failures += 1
            self._silent_until_s = self._monotonic() + PAUSES.wait_s(self._failures)
        if is_new:
            self._on_outage()
            _log.warning(
                "group %s: Redis fails (%s: %s); the database alone decides until it answers again",
                self._group, type(error).__name__, error,
            )  # fmt: skip

    def _answered(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0
            _log.info("group %s: Redis answers again", self._group)


def open_client(reference: str) -> redis.Redis:
    """A client that waits at most 0.2 s, and does not retry by itself.

    `reference`: a URL, `env:NAME` or `file:/path`.

    Raises:
        UsageError: the reference cannot be resolved, or the URL is invalid. The error text never has the URL.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from rmq_store.errors import UsageError

    url = resolve_reference(reference, "redis")
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise UsageError("redis: this is no URL, such as redis://host:6379/0 or rediss://user@host/0") from error


def _known(value: object, ttl_ms: object, ttl_ms_max: int) -> Known:
    text = value.encode() if isinstance(value, str) else value
    if text == _DONE:
        return Known.DONE
    # A key that has no end, or one far away, is not of a worker: it would hold the message back for ever.
    if isinstance(text, bytes) and text.startswith(b"p:") and isinstance(ttl_ms, int) and 0 < ttl_ms <= ttl_ms_max:
        return Known.PROCESSING
    return Known.UNKNOWN
