"""Loads pandas when the first client of a server is there."""

from __future__ import annotations

import threading


class WarmUp:
    """Lets pyarrow load pandas, as it does when it first makes an array of a list, in a thread of its own: not while
    the first batch of a client waits, and not before a client is there. It takes half a second of a processor, which
    many tests never need.
    """

    def __init__(self) -> None:
        self.is_begun = False

    def begin(self) -> None:
        """Begin, the first time. Does not wait."""
        if not self.is_begun:
            self.is_begun = True
            threading.Thread(target=_make_an_array, name="rmq-broker-warm-up", daemon=True).start()


def _make_an_array() -> None:
    import pyarrow as pa

    pa.array([b""])
