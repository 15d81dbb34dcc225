"""A signal handler that calls a network client in the middle of a call of its own thread is served, or refused with
UsageError; it never waits for its own thread. docs/process-design.md lists the methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from helpers.interrupts import Signal
from rmq_store import Message, UsageError
from rmq_store.client import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Producer,
    RemoteBackend,
    SimpleConsumer,
)
from rmq_store.cluster import ClusterSettings
from rmq_store.server.scratch_store import SCRATCH_CONFIG
from rmq_store.testing.broker import RmqTestBroker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "process-design.md"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
HIDDEN = timedelta(minutes=5)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[], Any]]]:
    """By the names that the page has, clients of one broker that are used by turns."""
    with (
        RmqTestBroker(tmp_path_factory.mktemp("broker"), SCRATCH_CONFIG) as broker,
        closing(RemoteBackend(ClusterSettings.of_text(broker.address))) as backend,
        Producer("pg", backend) as producer,
    ):
        for number in range(5):
            producer.send(Message("T", b"%d" % number))
        config = LitePullConsumerConfig(consume_from_where=FIRST, pull_batch_size=1, auto_commit=False)
        pulling = LitePullConsumer("cg_pull", backend, config)
        pulling.subscribe("T")
        pulling.start(threads=False)
        while not pulling.poll(1_000):
            pass
        queue = pulling.assignment()[0]
        wanted = {"T": "*"}
        with SimpleConsumer(
            "cg_pop", backend, wanted, await_duration=timedelta(0), consume_from_where=FIRST
        ) as popping:

            def receive_and_ack() -> None:
                for message in popping.receive(1, HIDDEN):
                    popping.ack(message)

            yield {
                "Producer.send": lambda: producer.send(Message("T", b"one")),
                "Producer.send_batch": lambda: producer.send_batch([Message("T", b"one"), Message("T", b"two")]),
                "Producer.send_oneway": lambda: producer.send_oneway(Message("T", b"one")),
                "Producer.fetch_publish_message_queues": lambda: producer.fetch_publish_message_queues("T"),
                "SimpleConsumer.receive": lambda: popping.receive(1, HIDDEN),
                "SimpleConsumer.ack": receive_and_ack,
                "LitePullConsumer.commit": pulling.commit,
                "LitePullConsumer.committed": lambda: pulling.committed(queue),
                "LitePullConsumer.fetch_message_queues": lambda: pulling.fetch_message_queues("T"),
                "LitePullConsumer.seek": lambda: pulling.seek(queue, 0),
                "LitePullConsumer.offset_for_timestamp": lambda: pulling.offset_for_timestamp(queue, 0),
            }
        pulling.shutdown()


class Handler:
    """Makes the call, which is served, or refused because of the call that it came into."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.ended = False

    def __call__(self) -> None:
        try:
            self._call()
        except UsageError as error:
            assert "signal handler" in str(error)
        self.ended = True


def listed() -> list[str]:
    (row,) = re.findall(r"^\| clients of a cluster \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    return re.findall(r"`([A-Za-z]+\.[a-z_]+)`", row)


def test_the_page_lists_what_is_tried_here(calls: dict[str, Callable[[], Any]]) -> None:
    assert sorted(listed()) == sorted(calls)


@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("name", listed())
def test_a_call_within_a_call_is_served_or_refused(calls: dict[str, Callable[[], Any]], name: str, every: int) -> None:
    call = calls[name]
    call()
    tried = 0
    for k in count(1, every):
        handler = Handler(call)
        with Signal(k, handler) as signal:
            call()
        if not signal.came:
            break
        assert handler.ended
        tried += 1
    assert tried
