"""For the tests of commands that change a store: a small store, and a person at the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, Store, StoreConfig
from rmq_store.cli import commands

Command = Callable[..., Result]

NOW_MS = 1_763_711_715_000  # 2025-11-21 07:55:15 UTC


class Clock:
    """Time stands still until a test sets it."""

    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def make_store(root: Path) -> Path:
    """T (2 queues) with four messages in queue 0, a second apart; the group g is behind the second. Small files."""
    clock = Clock()
    config = StoreConfig(1 << 18, 2000, 100, 400)
    with Store.open(root, create=True, config=config, clock=clock) as store:
        store.create_topic("T", queue_count=2)
        for number in range(4):
            clock.now_ms = NOW_MS + 1000 * number
            store.send(Message("T", b"%d" % number, queue_id=0))
        store.commit_offsets("g", {("T", 0): 2})
    return root


def command(root: Path, *arguments: str, answer: str | None = None) -> Result:
    """Run `rmq` on the store; `answer`: somebody sits at the terminal and types it."""
    with pytest.MonkeyPatch.context() as patch:
        if answer is not None:
            terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
            patch.setattr("rmq_store.cli.shared.confirm.sys", terminal)
        return CliRunner().invoke(
            commands,
            list(arguments),
            input=f"{answer}\n",
            env={"RMQ_STORE": str(root)},
            prog_name="rmq",
            catch_exceptions=False,
        )
