"""The name servers of a cluster: a shuffled list, one of them asked until it fails, then the next. One
that refuses, because it has just begun, stays the first, and the others are asked as well.

After none has answered, `may_answer` is False until one answers a probe, which goes to each of them beside all other
work. So those who know something already need not wait for a time limit again and again.

A list entry that is an HTTP address is the address server of RocketMQ: its page names the name servers, and is read
again every two minutes. Sources: NettyRemotingClient.java (getAndCreateNameserverChannel), TopAddressing.java,
MQClientInstance.java (fetchNameServerAddr).
"""

from __future__ import annotations

import logging
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import RemotingConnectError, RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import without_requests
from rmq_store.remoting.questions.name_servers import ask_clusters
from rmq_store.remoting.transport.settings import is_address_server, split_name_servers

if TYPE_CHECKING:
    from rmq_store.remoting.transport.client import RemotingClient

FETCH_EVERY_MS: Final = 120_000
FETCH_TIMEOUT_S: Final = 3.0
PAGE_BYTES_MAX: Final = 64 << 10
NO_OPINION_MS: Final = 30_000
"""So long a name server that has failed is asked only if no other answers."""
PROBING: Final = Backoff(first_ms=1000, max_ms=30_000)
PROBE_TIMEOUT_MS: Final = 3000
_NEXT_STEP: Final = "Is it the right address, and does a name server run there? `rmq doctor -n` with it names the fault"

_log = logging.getLogger(__name__)


def timer_ms() -> float:
    """A time in ms that never goes back."""
    return real_time.monotonic() * 1000


class Probes:
    """Requests to processes that have not answered, beside all other work: nobody waits for them. They leave after 1 s,
    2 s more, 4 s more, and so on, every 30 s at last; the next ones not before those on their way have ended.

    `send` sends one to each process that there is now; `counts` judges an answer. Times are in ms, of a clock that
    never goes back.
    """

    def __init__(
        self,
        send: Callable[[], list[Future[RemotingCommand]]],
        now_ms: float,
        counts: Callable[[RemotingCommand], bool] = lambda _: True,
    ) -> None:
        self._send = send
        self._counts = counts
        self._tries = 1
        self._due_ms = now_ms + PROBING.wait_ms(self._tries)
        self._sent: list[Future[RemotingCommand]] = []

    def are_answered(self, now_ms: float) -> bool:
        """Whether one of the last ones has an answer that counts. Those that are due leave here."""
        if not self._has_answer() and now_ms >= self._due_ms and all(probe.done() for probe in self._sent):
            self._sent = self._send()
            self._tries += 1
            self._due_ms = now_ms + PROBING.wait_ms(self._tries)
        return self._has_answer()

    def _has_answer(self) -> bool:
        return any(probe.done() and probe.exception() is None and self._counts(probe.result()) for probe in self._sent)

    def again(self) -> None:
        """A process has answered a probe, and no question behind it."""
        self._sent = []


class NameServers:
    """The name servers of a cluster. Safe for threads, which may ask different ones for a moment."""

    def __init__(
        self,
        given: Sequence[str],
        client: RemotingClient,
        *,
        shuffle: Callable[[list[str]], Any] = random.shuffle,
        fetch: Callable[[str], str] | None = None,
        timer: Callable[[], float] = timer_ms,
    ) -> None:
        if not given:
            raise UsageError("a cluster needs the address of a name server, as rmq://ns1:9876;ns2:9876")
        self._given = tuple(given)
        self._client = client
        self._shuffle = shuffle
        self._fetch = fetch or read_address_server
        self._timer = timer
        self._pages = tuple(address for address in self._given if is_address_server(address))
        self._fetched_at_ms: float | None = None
        self._addresses: tuple[str, ...] = ()
        self._chosen = 0
        self._failed_until_ms: dict[str, float] = {}
        # Since no name server has answered.
        self._probes: Probes | None = None
        if not self._pages:
            self._take(self._given)

    def addresses(self) -> tuple[str, ...]:
        """The name servers in the order in which they are asked. RemotingConnectError: the address server fails."""
        if self._pages and self._is_due():
            self._fetch_pages()
        return self._addresses

    def call(self, request: RemotingCommand, timeout_ms: int, ok: Collection[int] | None = None) -> RemotingCommand:
        """The last one of `ask`: an answer with a code in `ok`, or the refusal of all that have answered."""
        return self.ask(request, timeout_ms, ok)[-1]

    def ask(
        self, request: RemotingCommand, timeout_ms: int, ok: Collection[int] | None = None
    ) -> list[RemotingCommand]:
        """Ask one name server, after a failure or a refusal the next; `timeout_ms` is for each. An answer with a code
        in `ok` (None: any) is the last one; before it are the refusals. One that has just failed is not asked for a
        second opinion. Only for requests that may be repeated.

        Raises:
            RemotingConnectError: none could be reached. RemotingError: none has answered.
        """
        addresses = self.addresses()
        answers: list[RemotingCommand] = []
        failures: list[str] = []
        last: RemotingError | None = None
        reached = False
        first = self._chosen
        for step in range(len(addresses)):
            place = (first + step) % len(addresses)
            if answers and self._timer() < self._failed_until_ms.get(addresses[place], 0):
                continue
            try:
                answer = self._client.call(addresses[place], request, timeout_ms)
            except RemotingError as error:
                reached |= not isinstance(error, RemotingConnectError)
                failures.append(_failure(addresses[place], error))
                last = error
                self._failed_until_ms[addresses[place]] = self._timer() + NO_OPINION_MS
                continue
            if failures and not answers:
                _log.info("name server %s is asked from now on: %s", addresses[place], "; ".join(failures))
                self._chosen = place
            answers.append(answer)
            if ok is None or answer.code in ok:
                break
        if answers:
            self._probes = None
            return answers
        self._probes = self._probes or Probes(self._send_probes, self._timer())
        kind = RemotingError if reached else RemotingConnectError
        raise kind(f"no name server answers: {'; '.join(failures)}. {_NEXT_STEP}") from last

    def may_answer(self) -> bool:
        """Whether a question is worth its time limit: not from the moment at which no name server has answered, until
        one answers a probe. Probes that are due leave here; nobody waits for them.
        """
        if self._probes is not None and self._probes.are_answered(self._timer()):
            self._probes = None
        return self._probes is None

    def _send_probes(self) -> list[Future[RemotingCommand]]:
        return [self._client.submit(address, ask_clusters(), PROBE_TIMEOUT_MS) for address in self._addresses]

    def turn(self) -> None:
        """Ask the next one first from now on. Their tables may differ: one that has just begun, or that a broker does
        not reach, lacks brokers which others know.
        """
        self._chosen = (self._chosen + 1) % max(1, len(self.addresses()))

    def call_each(self, request: RemotingCommand, timeout_ms: int) -> dict[str, RemotingCommand]:
        """The answers of all name servers, by address: they keep their tables apart. RemotingError: one fails."""
        return {address: self._client.call(address, request, timeout_ms) for address in self.addresses()}

    def _is_due(self) -> bool:
        return self._fetched_at_ms is None or self._timer() - self._fetched_at_ms >= FETCH_EVERY_MS

    def _fetch_pages(self) -> None:
        found = [address for address in self._given if not is_address_server(address)]
        try:
            for page in self._pages:
                found += _addresses_of(self._fetch(page))
        except OSError as error:
            if not self._addresses:
                raise RemotingConnectError(f"the address server {page} does not answer: {error}") from error
            _log.warning("the address server %s does not answer, the known name servers stay: %s", page, error)
            found = list(self._addresses)
        if not found:
            raise RemotingConnectError(f"the address server {', '.join(self._pages)} names no name server")
        self._fetched_at_ms = self._timer()
        if set(found) != set(self._addresses):
            self._take(found)

    def _take(self, addresses: Sequence[str]) -> None:
        shuffled = list(dict.fromkeys(addresses))
        self._shuffle(shuffled)
        self._addresses, self._chosen = tuple(shuffled), 0


def read_address_server(url: str) -> str:
    """The page of an address server. OSError: it cannot be read, or is longer than any list."""
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
        page: bytes = answer.read(PAGE_BYTES_MAX + 1)
    if len(page) > PAGE_BYTES_MAX:
        raise OSError(f"the page has more than {PAGE_BYTES_MAX} bytes")
    return page.decode("utf-8", "replace")


def _addresses_of(page: str) -> tuple[str, ...]:
    return split_name_servers(page.replace("\n", ";"))


def _failure(address: str, error: RemotingError) -> str:
    """Why a name server has not answered; the transport's errors begin with the address."""
    text = without_requests(str(error))
    return text if text.startswith(address) else f"{address}: {text}"
