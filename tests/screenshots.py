"""Writes the pictures of terminals that the README shows: `python tests/screenshots.py`, into docs/images.

Each picture is what the command printed on a pseudo-terminal, drawn by rich. The text of a picture is
compared with what the command prints now (tests/test_screenshots.py).

    trace.svg   `rmq trace` of one order in examples/data, the store of a real broker
    top.svg     `rmq top` of a small store, whose clock stands still except where this script moves it
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from rmq_store import ClockFile, Message, Store, SubscriptionGroup

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SHOWN_STORE = "/data/store"

_LINES = 20
_HOME = "\x1b[H"
# All control sequences but those that set colours and styles.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# The space on the disk is that of the machine on which the command ran.
_DISK = re.compile(r"disk \d+ % in use")
# rich's own font comes from a server on the network: no picture of ours asks one.
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)
_NOW_MS = 1_795_220_515_000
# Topic -> number of its queues.
_TOPICS = {"Orders": 4, "Payments": 4, "Audit": 1}


class _Terminal:
    """`rmq` on a pseudo-terminal."""

    def __init__(self, columns: int, *words: str) -> None:
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
        roots = os.pathsep.join(str(ROOT / root) for root in ("storage", "connector"))
        environment = {"PATH": os.defpath, "PYTHONPATH": roots, "TERM": "xterm", "LANG": "C.UTF-8"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rmq_store.cli import main; main()", *words],
            stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)

    def until(self, words: str) -> str:
        """Read up to `words`."""
        text = ""
        while words not in text:
            text += os.read(self._controller, 65536).decode()
        return text

    def press(self, keys: bytes) -> None:
        os.write(self._controller, keys)

    def rest(self) -> str:
        """Read up to the end of the command, which must succeed."""
        text = b""
        try:
            while chunk := os.read(self._controller, 65536):
                text += chunk
        except OSError:  # Linux says so at the end of a terminal
            pass
        os.close(self._controller)
        assert self._process.wait(timeout=60) == 0, text.decode()
        return text.decode()


def _trace(scratch: Path) -> str:
    with tarfile.open(ROOT / "examples" / "data" / "rocketmq-5.5.0-store.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # absent before 3.11.4
        archive.extractall(scratch)
    return _Terminal(114, "trace", "-t", "OrderTopic", "-k", "ORD-000007", "--store", str(scratch / "store")).rest()


def _top(scratch: Path) -> str:
    """Two seconds of a store in which three topics are written and two groups consume."""
    path = scratch / "store"
    with Store.open(path, create=True, clock=lambda: _NOW_MS) as store:
        for topic, queue_count in _TOPICS.items():
            store.create_topic(topic, queue_count)
        for group in ("cg_bills", "cg_reports"):
            store.create_group(SubscriptionGroup(group))
    clock = ClockFile.create(path / "pyrmq" / "clock", _NOW_MS)
    with Store.open(path) as store:
        _send(store, Orders=2400, Payments=900, Audit=60)
        store.commit_offsets("cg_bills", {("Orders", queue): 560 for queue in range(4)} | {("%RETRY%cg_bills", 0): 0})
        store.commit_offsets("cg_reports", {("Payments", queue): 200 for queue in range(4)})
        for level in (-1, -1, 3):  # two dead letters, and a retry in ten seconds
            store.retry.send_back("cg_bills", store.log_range()[0], delay_level=level)
        clock.advance(75_000)
        store.schedule.deliver_due()
        terminal = _Terminal(80, "top", "--store", str(path), "--every", "3600")
        terminal.until("q: quit")
        _send(store, Orders=960, Payments=410, Audit=5)
        store.commit_offsets("cg_bills", {("Orders", queue): 790 for queue in range(4)})
        store.commit_offsets("cg_reports", {("Payments", queue): 210 for queue in range(4)})
        store.flush()
        clock.advance(2000)
        terminal.press(b" ")  # any key but q draws the screen again
        screen = "-/s"
        while "-/s" in screen:  # the first look knows no rates, and is drawn more than once
            screen = terminal.until("q: quit").rpartition(_HOME)[2]
        terminal.press(b"q")
        terminal.rest()
    return screen.replace(str(path), SHOWN_STORE)


def _send(store: Store, **counts: int) -> None:
    for topic, count in counts.items():
        for number in range(count):
            store.send(Message(topic, b"x" * 512, queue_id=number % _TOPICS[topic]))


# Name of the picture -> the command as the picture's title names it, and what runs it.
PICTURES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "top": (f"rmq top --store {SHOWN_STORE}", _top),
    "trace": (f"rmq trace -t OrderTopic -k ORD-000007 --store {SHOWN_STORE}", _trace),
}


def printed(name: str) -> str:
    """What the command of a picture prints now, with its colours and without other control sequences."""
    with tempfile.TemporaryDirectory() as scratch:
        text = PICTURES[name][1](Path(scratch))
    return _DISK.sub("disk 41 % in use", _CONTROL.sub("", text.replace("\r\n", "\n")))


def plain_lines(text: str) -> list[str]:
    """Lines without colours, without spaces at their ends, and without empty lines at the end of the text."""
    text = _STYLE.sub("", text).replace("\xa0", " ")
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip().split("\n")


def svg(name: str, text: str) -> str:
    """The picture of a terminal that shows `text`."""
    width = max(len(line) for line in plain_lines(text))
    console = Console(record=True, width=width + 1, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    # With a line more, or the picture's edge cuts what hangs below the last one, such as underscores.
    console.print(Text.from_ansi(text.rstrip() + "\n "), highlight=False, soft_wrap=True)
    template = _FONT_FACE.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    return console.export_svg(title=PICTURES[name][0], code_format=template, unique_id=name)


def drawn_lines(picture: str) -> list[str]:
    """The lines of text that an SVG shows below its title, from top to bottom."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        if "clip-path" in element.attrib:  # the title has none
            text = (element.text or "").strip("\n")
            rows.setdefault(float(element.attrib["y"]), []).append((float(element.attrib["x"]), text))
    return plain_lines("\n".join("".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())))


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    for name in PICTURES:
        (IMAGES / f"{name}.svg").write_text(svg(name, printed(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
