"""`rmq lag`, `rmq top`, and all that goes on until somebody ends it: in real pseudo-terminals where that matters."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Message, Store, SubscriptionGroup
from rmq_store.cli.monitoring import top as top_module
from rmq_store.cli.shared.formatting import Rates, bytes_text, duration_text, rate_text
from rmq_store.cli.shared.output import tell
from rmq_store.cli.target.lag_lines import LagGauge
from rmq_store.cli.target.rows import Total
from rmq_store.cli.target.store.view import StoreView

from .conftest import mind_ctrl_c

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_AGE = re.compile(r"[0-9]+ [dhms] [0-9]+ [hms]")
# Only the terminal that a session controls sends it Ctrl-C.
_OWN_TERMINAL = (
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from rmq_store.cli import main; main()"
)
_ALTERNATE, _BACK = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    """A store whose clock the test moves: 10 messages in 2 queues, of which cg has consumed 4."""
    now = [1_795_220_515_000]
    with Store.open(scratch / "store", create=True, clock=lambda: now[0]) as opened:
        opened.now = now  # type: ignore[attr-defined]
        opened.create_topic("Orders", 2)
        opened.create_group(SubscriptionGroup("cg"))
        for number in range(10):
            opened.send(Message("Orders", b"x", queue_id=number % 2))
        opened.commit_offsets("cg", {("Orders", 0): 3, ("Orders", 1): 1})
        yield opened


class Terminal:
    """A command in a pseudo-terminal; `until` reads what it was sent up to a text."""

    def __init__(self, root: Path, *arguments: str, columns: int = 100) -> None:
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        roots = os.pathsep.join(path for path in sys.path if path)
        environment = {"PATH": os.defpath, "PYTHONPATH": roots, "RMQ_STORE": str(root), "TERM": "xterm"}
        environment["LANG"] = "C.UTF-8"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *arguments],
            stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
        )  # fmt: skip
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.text = ""

    def until(self, words: str) -> str:
        start = len(self.text)
        while words not in _CONTROL.sub("", self.text[start:]):
            self.text += os.read(self._controller, 65536).decode(errors="replace")
        return _CONTROL.sub("", self.text[start:])

    def press(self, keys: bytes) -> None:
        os.write(self._controller, keys)

    def end(self) -> int:
        code = self.process.wait(timeout=60)
        assert termios.tcgetattr(self._terminal) == self.before  # echo and lines are as they were
        os.set_blocking(self._controller, False)
        try:
            while chunk := os.read(self._controller, 65536):
                self.text += chunk.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        os.close(self._terminal)
        os.close(self._controller)
        return code


# ---- terminals


def test_top_is_drawn_again_until_q_and_leaves_the_screen_as_it_was(store: Store) -> None:
    terminal = Terminal(store.path, "top", "--every", "0.05")
    first = terminal.until("q: quit")
    assert _ALTERNATE in terminal.text
    assert "Orders" in first
    assert "cg" in first
    terminal.until("q: quit")
    store.send(Message("Orders", b"x"))
    terminal.until("  11  ")
    terminal.press(b"xq")
    assert terminal.end() == 0
    assert terminal.text.rstrip().endswith((_BACK, "\x1b[?25h"))
    assert "q" not in terminal.text.rpartition(_BACK)[2].replace("\x1b[?25h", "")


def test_lag_watch_shows_rates_and_ends_well_at_ctrl_c(store: Store) -> None:
    terminal = Terminal(store.path, "lag", "cg", "--watch", "0.05")
    assert "RATE" in terminal.until("ETA")
    terminal.until("ETA")
    store.commit_offsets("cg", {("Orders", 0): 5, ("Orders", 1): 5})
    terminal.until("0.0 s")  # caught up
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert _BACK in terminal.text
    assert "Aborted" not in terminal.text


def test_tail_in_a_terminal_has_colours_and_ends_well_at_ctrl_c(store: Store) -> None:
    terminal = Terminal(store.path, "tail", "-f", "Orders", "-n", "1")
    terminal.until("1:4  -  -  x")
    assert "\x1b[2m2026-11-21T" in terminal.text
    store.send(Message("Orders", b"evil \x1b[2J", queue_id=0))
    terminal.until("0:5  -  -  evil \\x1b[2J")
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert "Aborted" not in terminal.text


# ---- pipes


@pytest.mark.parametrize(
    ("name", "arguments"), [("lag", ["lag"]), ("lag-group", ["lag", "cg_partial", "cg_orders"])]
)
def test_the_text_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert _AGE.sub("AGE", result.stdout) == (EXPECTED / f"{name}.txt").read_text()


def test_lag_is_that_of_the_manifest(run: Run, golden: Path) -> None:
    lines = json.loads(run("lag", "--queues", "--json").stdout)
    groups = json.loads((golden / "manifest.json").read_text())["groups"]
    wanted = {name: group["totalLag"] for name, group in groups.items() if group["totalLag"] is not None}
    shown = {name: sum(line["lag"] for line in lines if line["group"] == name) for name in wanted}
    assert {name: lag for name, lag in shown.items() if lag} == {name: lag for name, lag in wanted.items() if lag}
    assert any(shown.values())


def test_groups_and_lag_show_what_waits_also_of_a_group_that_has_committed_nothing(run: Run, scratch: Path) -> None:
    root = scratch / "store"
    with Store.open(root, create=True) as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"x"))
        for group in ("g", "g", "h"):
            store.retry.send_back(group, sent.commit_log_offset)
        store.send(Message("T", b"later", delay_level=9))
        store.commit_offsets("h", {("T", 0): 1})

    def shown(*arguments: str) -> Any:
        return json.loads(run(*arguments, "--json", store=root).stdout)

    assert {group["group"]: group["waiting"] for group in shown("groups")} == {"g": 2, "h": 1}
    lines = {(line["group"], line["topic"]): line["waiting"] for line in shown("lag")}
    assert lines == {("g", "%RETRY%g"): 2, ("h", "%RETRY%h"): 1, ("h", "T"): 1}
    assert [line["waiting"] for line in shown("lag", "g")] == [2]


def test_rate_and_eta_come_from_two_looks(store: Store) -> None:
    gauge = LagGauge()

    def look() -> list[tuple[object, ...]]:
        view = StoreView(store, tell)
        with view.poll():
            return [line[2:] for line in view.lags(["cg"], gauge, per_queue=True)]

    assert look() == [
        (0, Total(3), Total(5), Total(2), Total(0), None, None, 0),
        (1, Total(1), Total(5), Total(4), Total(0), None, None, None),
    ]
    store.now[0] += 2000  # type: ignore[attr-defined]
    store.commit_offsets("cg", {("Orders", 1): 3})
    still, moving = look()
    assert (still[5], still[6]) == (0.0, None)  # it does not move, so it will never catch up
    assert (moving[3], moving[4], moving[5], moving[6]) == (Total(2), Total(2000), 1.0, 2000.0)
    store.now[0] += 1000  # type: ignore[attr-defined]
    store.commit_offsets("cg", {("Orders", 1): 5})
    assert look()[1][3:7] == (Total(0), Total(None), 2.0, 0)


def test_a_group_that_does_not_exist_is_one_line_with_the_nearest(run: Run) -> None:
    result = run("lag", "cg_order")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "'cg_orders'" in result.stderr


@pytest.mark.parametrize("every", [[], ["0.05"]])
def test_watching_in_a_pipe_is_a_line_of_json_per_look(store: Store, every: list[str]) -> None:
    """Every two seconds if nobody says otherwise: that is never waited for here."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(store.path)}
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "lag", "--watch", *every, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, preexec_fn=mind_ctrl_c
    ) as process:
        assert process.stdout
        assert process.stderr
        looks = [json.loads(process.stdout.readline()) for _ in range(2 if every else 1)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert [(look[0]["lag"], look[0]["rate"]) for look in looks] == [(6, None), (6, 0.0)][: len(looks)]


def test_top_counts_what_comes_in_and_out_between_two_looks(store: Store) -> None:
    look = top_module._Sampler(StoreView(store, tell), 1)
    first = look.take()
    assert (first["bytesPerSecond"], first["topics"][0]["inPerSecond"]) == (None, None)
    store.now[0] += 2000  # type: ignore[attr-defined]
    store.send_all([Message("Orders", b"x" * 1000)] * 6)
    store.commit_offsets("cg", {("Orders", 0): 5})
    found = look.take()
    assert found["topics"] == [{"topic": "Orders", "queues": 2, "messages": Total(16), "inPerSecond": 3.0}]
    assert found["bytesPerSecond"] == (found["logEnd"] - first["logEnd"]) / 2
    (group,) = found["groups"]
    assert (group["group"], group["lag"], group["outPerSecond"], group["dead"]) == ("cg", Total(10), 1.0, Total(0))
    store.flush()
    assert look.take()["notFlushedBytes"] == 0


def test_top_in_a_pipe_prints_once(run: Run, store: Store) -> None:
    lines = run("top", "--every", "0.01", store=store.path).stdout.splitlines()
    assert lines[0] == str(store.path)
    assert re.fullmatch(r"log [0-9.]+ KiB, 0 B/s; disk [0-9]+ % in use; not flushed: .*", lines[1])
    assert lines[3].split() == ["TOPIC", "QUEUES", "MESSAGES", "IN/S"]
    assert ["Orders", "2", "10", "0"] in [line.split() for line in lines]
    assert ["cg", "6"] in [line.split()[:2] for line in lines if line]
    assert json.loads(run("top", "--every", "0.01", "--json", store=store.path).stdout)["notFlushedBytes"] is not None


def test_nobody_writes_is_not_nothing_to_flush(run: Run) -> None:
    assert "not flushed: no writer" in run("top", "--every", "0.01").stdout


@pytest.mark.parametrize(
    "command",
    ["tail", "send", "consume", "lag", "top", "doctor", "dlq list", "dlq show", "dlq redrive", "dlq export"],
)
def test_every_command_has_help_with_an_example_the_store_option_and_json(run: Run, command: str) -> None:
    text = run(*command.split(), "--help").stdout
    assert re.search(rf"Examples?:\n    rmq {command} ", text)
    assert "--store PATH" in text
    assert "--json" in text


# ---- figures


def test_rates_need_two_looks_and_a_clock_that_moved() -> None:
    rates = Rates()
    assert rates.sample(1000, {"a": 5}) == {}
    assert rates.sample(1000, {"a": 6}) == {}
    assert rates.sample(500, {"a": 7}) == {}
    assert rates.sample(1500, {"a": 9, "new": 100}) == {"a": 2.0}


def test_figures_as_text() -> None:
    assert [rate_text(rate) for rate in (None, 0.0, 0.25, 99.94, 1234.5)] == ["-", "0", "0.2", "99.9", "1234"]
    durations = (None, -5, 400, 12_000, 200_000, 18_120_000, 273_600_000)
    assert [duration_text(ms) for ms in durations] == [
        "-", "0.0 s", "0.4 s", "12 s", "3 m 20 s", "5 h 2 m", "3 d 4 h",
    ]  # fmt: skip
    assert [bytes_text(size) for size in (0, 1023, 1536, 3 << 30, 1 << 50)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB", "1024.0 TiB",
    ]  # fmt: skip
