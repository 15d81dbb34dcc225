"""Kills one after another in one life of a query: each batch meets one, comes again, and is counted in its topics."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fault_proxy import FaultProxy, Loss
from helpers.cluster.kills.plan import BEFORE, COMMITTED, DROPPED, MIDDLE, SENT, Kill
from helpers.cluster.kills.results import Result
from helpers.cluster.kills.session import Session
from rmq_store.client.delivery.request import single_request
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.text.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

BROKER: Final = "broker-a"
QUEUES: Final = 3
ROWS: Final = 400
ROW_BYTES: Final = 4_000
"""So that each of the two tasks of a batch makes two requests."""
SENDS_BEFORE_THE_MIDDLE: Final = 2
PATIENCE_S: Final = 600.0
_FOREIGN_PAUSE_S: Final = 0.1
_WAITING: Final = (MessageQueue(SCHEDULE_TOPIC, BROKER, 0), MessageQueue(TIMER_TOPIC, BROKER, 0))
"""Where rows of the first delay level wait, and those with a deliver time."""


class Chain:
    """A query of one kind, its topics, and a foreign producer beside it. `sink` are further options of the sink."""

    def __init__(
        self, cluster: RocketmqCluster, query: str, directory: Path, topic: str, sink: Mapping[str, str] | None = None
    ) -> None:
        self._cluster = cluster
        self._query = query
        self._shared = directory
        directory.mkdir(parents=True)
        self._topics = [f"{topic}-0", f"{topic}-1"] if query == "topics by column" else [topic]
        self._topic = topic
        self._queue_count = QUEUES
        self._proxy = FaultProxy(cluster.address())
        self._sink = {
            "nameServer": cluster.name_server,
            "addressMap": f"{cluster.address()}={self._proxy.address}",
            "settleTime": "1200ms",
            "sendTimeout": "40s",
            "brokerAwayTimeout": "40s",
            **(sink or {}),
        }
        self._ours = Cluster(ClusterSettings(name_servers=cluster.name_servers, timeout_ms=5_000))
        self._session: Session | None = None
        self._batch = -1
        self.patience_s = PATIENCE_S
        self._expected: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()
        self._read_ends: dict[MessageQueue, int] = {}
        self._ends = threading.Event()
        self._foreign = threading.Thread(target=self._send_foreign, daemon=True)

    def __enter__(self) -> Self:
        for topic in self._topics:
            self._cluster.create_topic(topic, QUEUES)
        (self._shared / "in").mkdir()
        self._foreign.start()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._stop()
        self._foreign.join(60)
        self._proxy.close()
        self._ours.close()
        if error is not None:
            error.add_note(self.log())

    def log(self) -> str:
        """The end of what the driver said."""
        return "\n".join((self._shared / "log").read_text(errors="replace").splitlines()[-60:])

    def use_row_numbers(self) -> None:
        """Let the sink make keys of row numbers: a control that must fail."""
        (self._shared / "row-numbers").touch()
        self.patience_s = 60.0

    # -- a kill -----------------------------------------------------------------------------------------------------

    def run(self, kill: Kill) -> Result:
        """Let the next batch meet a kill, and wait until it has come again and is committed."""
        began = time.monotonic()
        self._batch += 1
        self._arm(kill)
        self._give_rows()
        self._await(self._is_reached(kill.point), f"{kill}: the point is not reached")
        self._strike(kill)
        self._await(self._is_committed, f"{kill}: batch {self._batch} does not come again")
        lost, duplicated, redelivered = self.look()
        reports = self.reports()
        return Result(
            kill.version, kill.victim, kill.point, kill.query, ROWS,
            max((one["skipped"] + one["found"] for one in reports), default=0), lost, duplicated,
            sum(one["late"] for one in reports), redelivered, round(time.monotonic() - began, 1),
        )  # fmt: skip

    def _arm(self, kill: Kill) -> None:
        point = kill.point
        (self._shared / "reached").unlink(missing_ok=True)
        self._lost_before, self._held_before = self._proxy.lost, self._proxy.held
        if point == BEFORE:
            self._proxy.hold_requests(RequestCode.SEND_BATCH_MESSAGE)
        elif point == DROPPED:
            self._proxy.lose_answers(RequestCode.SEND_BATCH_MESSAGE, count=1, as_=Loss.SILENCE)
        elif point == MIDDLE:
            self._proxy.hold_requests(RequestCode.SEND_BATCH_MESSAGE, after=SENDS_BEFORE_THE_MIDDLE)
            if kill.victim == "broker":  # the tasks live on, so their commit fails for the batch to come again
                _write(self._shared / "arm", f"{self._batch} {SENT}")
                (self._shared / "go").touch()
        else:
            _write(self._shared / "arm", f"{self._batch} {point}")

    def _is_reached(self, point: str) -> Callable[[], bool]:
        if point in (BEFORE, MIDDLE):
            return lambda: self._proxy.held > self._held_before
        if point == DROPPED:
            return lambda: self._proxy.lost > self._lost_before
        return (self._shared / "reached").exists

    def _strike(self, kill: Kill) -> None:
        if kill.victim == "driver":
            self._stop()
            self._calm()
            self._add_queue()
            self._start()
            return
        self._proxy.cut_off()
        self._cluster.broker(BROKER).kill()
        self._calm()
        self._cluster.heal()
        self._add_queue()
        self._proxy.restore()
        if kill.point in (SENT, COMMITTED):
            (self._shared / "go").touch()

    def _calm(self) -> None:
        self._proxy.hold_no_requests()
        self._proxy.keep_answers()
        self._proxy.reset()

    def _add_queue(self) -> None:
        if self._query == "a queue is added":
            self._queue_count += 1
            self._cluster.create_topic(self._topic, self._queue_count)

    def _start(self) -> None:
        for name in ("arm", "reached", "go"):
            (self._shared / name).unlink(missing_ok=True)
        has_timers = not self._cluster.version.startswith("4.")
        given = {"query": self._query, "topic": self._topic, "has_timers": has_timers, "sink": self._sink}
        self._session = Session(json.dumps(given), self._shared)

    def _stop(self) -> None:
        if self._session is not None:
            self._session.kill()
            self._session = None

    # -- rows and what became of them ---------------------------------------------------------------------------------

    def _give_rows(self) -> None:
        # Some rows are equal: an eighth is there twice.
        texts = [f"{self._topic}:{self._batch}:{number % (ROWS * 7 // 8)}:" for number in range(ROWS)]
        self._expected.update(texts)
        lines = "".join(f"{text:x<{ROW_BYTES}}\n" for text in texts)
        _write(self._shared / "in" / f"{self._batch}.txt", lines)

    def _is_committed(self) -> bool:
        if self._query != "failing tasks":
            return (self._shared / "checkpoint" / "commits" / str(self._batch)).exists()
        with contextlib.suppress(FileNotFoundError):
            return int((self._shared / "done").read_text()) >= self._batch
        return False

    def reports(self) -> list[dict[str, Any]]:
        """What the commits of the last batch have told."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._shared / "reports").read_text().splitlines()
            return [one for one in map(json.loads, lines) if one["batch"] == self._batch]
        return []

    def look(self) -> tuple[int, int, int]:
        """How many rows of all batches are lost, stored twice, and delivered twice by a broker that holds them once."""
        until = time.monotonic() + 30
        while (self._read() or self._stored != self._expected) and time.monotonic() < until:
            if not self._expected - self._stored and self._query != "delayed rows":
                break
            time.sleep(0.3)
        lost = (self._expected - self._stored).total()
        more = self._stored - self._expected
        redelivered = self._held_once(more) if more and self._query == "delayed rows" else 0
        # The next batch begins with what should be there.
        self._stored = self._expected.copy()
        return lost, more.total() - redelivered, redelivered

    def _read(self) -> int:
        queues = [MessageQueue(topic, BROKER, number) for topic in self._topics for number in range(self._queue_count)]
        found = 0
        for queue, limits in queue_ranges(self._ours, queues).items():
            start = self._read_ends.get(queue, 0)
            for body in self._bodies(queue, start, limits.max_offset):
                if not body.startswith(b"foreign"):
                    self._stored[body.rstrip(b"x").decode()] += 1
                    found += 1
            self._read_ends[queue] = max(start, limits.max_offset)
        return found

    def _bodies(self, queue: MessageQueue, start: int, end: int) -> Iterator[bytes]:
        if start < end:
            request = AnswerRequest(BROKER, queue.topic, queue.queue_id, ("body",))
            for batch in answer_batches(read_range(self._ours, queue, start, end), request):
                yield from batch.column("body").to_pylist()

    def _held_once(self, more: Counter[str]) -> int:
        """How many of the rows that are there too often were sent no more often than they should be: all copies of a
        delayed row come from one message that waits for its time.
        """
        held = Counter[str]()
        for queue in _WAITING:
            with contextlib.suppress(MQBrokerError):  # a broker of 4.x has no timers
                limits = queue_ranges(self._ours, [queue])[queue]
                held.update(body.rstrip(b"x").decode() for body in self._bodies(queue, *limits))
        return sum(count for text, count in more.items() if held[text] == self._expected[text])

    # -- waiting, and others -----------------------------------------------------------------------------------------

    def _await(self, fulfilled: Callable[[], bool], complaint: str) -> None:
        until = time.monotonic() + self.patience_s
        while not fulfilled():
            assert self._session is not None and self._session.runs(), f"{complaint}: the driver has ended"
            assert time.monotonic() < until, complaint
            time.sleep(0.02)

    def _send_foreign(self) -> None:
        """Messages of another program in all queues, some with equal bodies."""
        number = 0
        with Cluster(ClusterSettings(name_servers=self._cluster.name_servers)) as theirs:
            while not self._ends.wait(_FOREIGN_PAUSE_S):
                number += 1
                queue = MessageQueue(self._topics[number % len(self._topics)], BROKER, number % QUEUES)
                properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
                command = single_request(
                    theirs, queue, b"foreign %d" % (number % 7), properties,
                    group="foreign", born_ms=int(time.time() * 1000),
                )  # fmt: skip
                with contextlib.suppress(RemotingError, MQBrokerError):
                    theirs.submit_broker(BROKER, command).result()


def _write(file: Path, text: str) -> None:
    """All at once: whoever looks sees nothing or everything."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_text(text)
    hidden.rename(file)


