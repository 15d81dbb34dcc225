"""Clients that send to a master all the time, whatever happens to it, and know what it answered."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Final, Self

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.waiting import until

QUEUES: Final = 2
SENDERS: Final = 3
PATIENCE_S: Final = 600.0
_EVERY_S: Final = 0.03
_AGAIN_S: Final = 0.05
_TIMEOUT_S: Final = 6.0
_BODY_BYTES: Final = (20, 200, 6000)


class Senders:
    """A context manager. Each of several clients sends one message after another, and sends one again that was not
    answered, as producers do.

    `acknowledged`: what was answered with 0, by the start of the bodies: `name`, sender and number. `codes` counts the
    answers. `repeated`: messages that were sent more than once.
    """

    def __init__(self, address: str, topic: str, name: str = "") -> None:
        self.acknowledged: set[bytes] = set()
        self.codes: Counter[int] = Counter()
        self.repeated = 0
        self._address = address
        self._topic = topic
        self._name = name.encode()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(SENDERS)]

    def await_acknowledged(self, more: int, complaint: str) -> None:
        """Until so many more messages are answered with 0. Raises `ServerError`."""
        wanted = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= wanted, f"{complaint}: {self.codes}", PATIENCE_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, sender: int) -> None:
        chance, number, tries = random.Random(sender), 0, 0
        while not self._over.is_set():
            try:
                with Connection(self._address, timeout_s=_TIMEOUT_S) as master:
                    while not self._over.wait(_EVERY_S):
                        body = b"%s/%d/%d;" % (self._name, sender, number)
                        body += b"x" * chance.choice(_BODY_BYTES)
                        tries += 1
                        code = requests.send(master, self._topic, chance.randrange(QUEUES), body).code
                        if code == 0:
                            self.acknowledged.add(body[: body.index(b";")])
                        self.codes[code] += 1
                        self.repeated += tries > 1
                        number, tries = number + 1, 0
            except OSError:  # whether it was stored is not known
                time.sleep(_AGAIN_S)
