"""`rmq broker run`: delivers by itself, stops when asked, leaves the progress for a broker, and is quiet in a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import (
    CorruptionError,
    Message,
    RetentionPlan,
    RetentionReport,
    Store,
    StoreConfig,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
)
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.store.retention_plan import SegmentFate
from rmq_store.cli import commands
from rmq_store.cli.maintenance import broker
from rmq_store.cli.shared.stop_signal import StopSignal
from rmq_store.clock import ClockFile
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL

START_MS = 1_700_000_000_000


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    """A store with a clock for all processes, and one message that waits for ten seconds."""
    path = scratch / "store"
    with Store.open(path, create=True, config=small, clock=lambda: START_MS) as store:
        store.create_topic("T", queue_count=1)
        store.send(Message("T", b"a", properties={DELAY_TIME_LEVEL: "3"}))
    ClockFile.create(path / "pyrmq" / "clock", START_MS)
    return path


def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    roots = os.pathsep.join(path for path in sys.path if path)
    code = "from rmq_store.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", code, "broker", "run", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": roots}, **options)


def wait_for(condition: Any) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def delivered(root: Path) -> int:
    with Store.open(root, read_only=True) as store:
        return store.queue_range("T", 0).max_offset


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_delivers_until_it_is_stopped_and_says_nothing_in_a_pipe(root: Path, number: int) -> None:
    process = start(root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: (root / "abort").exists())
        ClockFile(root / "pyrmq" / "clock").advance(10_000)
        wait_for(lambda: delivered(root) == 1)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (0, b"", b"")
    assert DelayOffsetTable(root).all() == {3: 1}
    assert not (root / "abort").exists()  # a clean stop


def test_a_signal_in_the_middle_of_the_wait_for_it_is_heard() -> None:
    """At every line of `wait`, and of what it calls: a lock that both take would hang here."""

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:
        stop.ask(signal.SIGTERM, None)
        return interrupt

    with contextlib.closing(StopSignal()) as stop:
        assert not stop.wait(0)
        sys.settrace(interrupt)
        try:
            asked = stop.wait(30)
        finally:
            sys.settrace(None)
        assert asked
        assert stop.wait(0)
        for _ in range(70_000):  # more than a pipe holds
            stop.ask(signal.SIGTERM, None)
        assert stop.wait(30)


def test_a_terminal_gets_a_line(root: Path) -> None:
    controller, terminal = pty.openpty()
    process = start(root, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    received = b""
    try:
        while b"\n" not in received:
            received += os.read(controller, 65536)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    finally:
        process.kill()
        os.close(controller)
    line = received.decode().replace("\r\n", "\n").replace(str(root), "SCRATCH/store")
    assert line == (Path(__file__).parent / "expected" / "broker-run.txt").read_text(encoding="utf-8")
    assert process.returncode == 0


class Looks:
    """Stands in for a store: answers looks from a list, raising what is an error, and stops behind the last."""

    def __init__(self, answers: list[Any], stop: Any) -> None:
        self.path = Path("/store")
        self.schedule = self.retention = self
        self.config = StoreConfig()
        self.saves = 0
        self.passes = 0
        self.problem: Exception | None = None
        self.fates: tuple[SegmentFate, ...] = ()
        self._answers = iter(answers)
        self._stop = stop

    def deliver_due(self) -> Delivery:
        answer = next(self._answers, None)
        if answer is None:
            self._stop.is_set = True
            return Delivery(0, None)
        if isinstance(answer, Exception):
            raise answer
        return Delivery(answer, None)

    def save_progress(self) -> None:
        self.saves += 1

    def run(self) -> RetentionReport:
        """A pass of retention; the second one finds another process at it."""
        self.passes += 1
        if self.passes == 2:
            raise StoreLockedError("somebody else deletes")
        if self.problem:
            raise self.problem
        return RetentionReport(RetentionPlan("time", 1, 0, self.fates), tuple(fate.start for fate in self.fates[:2]))


class Stop:
    """An event whose waiting takes no time."""

    def __init__(self) -> None:
        self.is_set = False
        self.waits: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return self.is_set


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every look at the clock finds it four seconds further."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 4
        return now[0]

    monkeypatch.setattr(broker.real_time, "monotonic", monotonic)
    yield


def test_it_looks_every_100_ms_and_saves_the_progress_now_and_then() -> None:
    stop = Stop()
    looks = Looks([0, 5, 0], stop)
    broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]
    assert stop.waits == [0.0, 0.1, 0.1, 0.1, 0.1]
    assert looks.saves == 0


@pytest.mark.usefixtures("seconds")
def test_it_saves_the_progress_every_ten_seconds() -> None:
    stop = Stop()
    looks = Looks([0] * 8, stop)
    broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]
    assert 2 <= looks.saves <= 4


@pytest.mark.statement("G14")
@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize(("cleans", "passes"), [(True, range(5, 9)), (False, range(1))])
def test_it_deletes_after_a_minute_and_then_every_ten_seconds(
    cleans: bool, passes: range, capsys: pytest.CaptureFixture[str]
) -> None:
    """cleanResourceInterval: DefaultMessageStore#addScheduleTask. A look at the clock takes four seconds here."""
    stop = Stop()
    looks = Looks([0] * 14, stop)
    broker._run(looks, stop, cleans=False)  # type: ignore[arg-type]
    assert looks.passes == 0
    stop = Stop()
    looks = Looks([0] * 30, stop)
    broker._run(looks, stop, cleans=cleans)  # type: ignore[arg-type]
    assert looks.passes in passes
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("seconds")
def test_a_disk_too_full_for_deliveries_is_cleaned_nevertheless() -> None:
    stop = Stop()
    looks = Looks([StoreFullError("91 % full")] * 30, stop)
    broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]
    assert looks.passes >= 5


@pytest.mark.usefixtures("seconds")
def test_what_keeps_from_deleting_is_told_once_and_keeps_nobody_from_delivering(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = Stop()
    looks = Looks([0] * 30, stop)
    looks.problem = CorruptionError("consumequeue/T/0", 20, "no entry")
    broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]
    assert looks.passes >= 5
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.startswith("rmq: /store: no old messages are deleted: consumequeue/T/0: at byte 20: no entry")
    looks = Looks([0] * 30, stop := Stop())
    looks.problem = StoreFailedError("an fsync failed")
    with pytest.raises(StoreFailedError):
        broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]


@pytest.mark.usefixtures("seconds")
def test_what_is_deleted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    looks = Looks([0] * 15, stop)
    looks.fates = tuple(SegmentFate(start, start + 100, 0, True, "older than 72 h") for start in (0, 100, 200))
    broker._run(looks, stop, cleans=True)  # type: ignore[arg-type]
    assert looks.passes == 1
    assert capsys.readouterr().err == "rmq: /store: deleted bytes 0 to 200 of the log (2 files): older than 72 h\n"


def test_a_busy_store_is_tried_again_after_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    broker._run(Looks([StoreLockedError("busy\x1b[2J"), 1], stop), stop, cleans=True)  # type: ignore[arg-type]
    assert stop.waits == [0.0, 10.0, 0.1, 0.1]
    assert capsys.readouterr().err == "rmq: busy\\x1b[2J; trying again in 10 s\n"


def test_the_settings_of_a_brokers_store_come_from_its_broker_conf(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scratch / "store" / "commitlog").mkdir(parents=True)
    (scratch / "broker.conf").write_text("messageDelayLevel=7s 9s\n")
    monkeypatch.setattr(broker, "_run", lambda store, stop, cleans: None)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    arguments = ["broker", "run", str(scratch / "store"), "--config", str(scratch / "broker.conf")]
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    with Store.open(scratch / "store", read_only=True) as store:
        assert store.config.message_delay_level == "7s 9s"


def test_what_is_no_store_is_one_line(scratch: Path) -> None:
    result = CliRunner().invoke(commands, ["broker", "run", str(scratch)], catch_exceptions=False)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "no RocketMQ store" in result.stderr


def test_an_error_that_does_not_pass_ends_it() -> None:
    stop = Stop()
    with pytest.raises(StoreFailedError):
        broker._run(Looks([StoreFailedError("fsync")], stop), stop, cleans=True)  # type: ignore[arg-type]
