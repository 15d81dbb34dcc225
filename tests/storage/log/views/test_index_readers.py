"""Readers of the index beside an append, at each of its operations, and after a kill at any of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from rmq_store import Store
from rmq_store.files import durable

if TYPE_CHECKING:
    from .conftest import Lab

# Killing at every operation would take too long.
STRIDE = 11


def found(lab: Lab, store: Store) -> list[int]:
    """The numbers of all messages that are found by a key of their own, sorted."""
    keys = [f"K{number}" for number in range(lab.written)]
    return sorted(
        int(row["key"][1:]) for topic in ("Alpha", "Beta") for row in store.query.find(topic, keys).to_pylist()
    )


@pytest.mark.usefixtures("memory_too")
def test_a_reader_finds_the_visible_messages_at_every_moment_of_an_append(lab: Lab) -> None:
    with lab.open() as store, lab.open(read_only=True) as reader:
        store.append(lab.batch(30))
        looked = 0
        inside = False

        def look(operation: str, path: str) -> None:
            nonlocal inside, looked
            if not inside:
                inside = True  # a reader opens files itself
                try:
                    assert found(lab, reader) == lab.numbers(reader)
                finally:
                    inside = False
                looked += 1

        for count in (1, 40):  # the second one rolls the index
            durable.hook = look
            store.append(lab.batch(count))
            durable.hook = None
        assert looked > 20
        assert len(list((lab.root / "index").iterdir())) > 2


@pytest.mark.usefixtures("memory_too")
def test_after_a_kill_at_any_moment_a_reader_finds_the_visible_messages(lab: Lab, fail_at: Callable[..., Any]) -> None:
    with lab.open() as store:
        store.append(lab.batch(30))
    for k in range(1, 400, STRIDE):

        def work(store: Store, k: int = k) -> None:
            fail_at(k, lambda: os.kill(os.getpid(), signal.SIGKILL))
            store.append(lab.batch(25))

        lab.written = 30
        lab.crash(work)
        lab.written = 55
        with lab.open(read_only=True) as reader:
            visible = lab.numbers(reader)
            assert found(lab, reader) == visible
        with lab.open() as store:
            assert found(lab, store) == lab.numbers(store) == visible
        if len(visible) == 55:
            break
        assert visible == list(range(30))
    assert len(visible) == 55, "the append has more operations than were tried"
    assert k > 2 * STRIDE
