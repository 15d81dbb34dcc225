"""What a power cut may take under ASYNC_FLUSH (docs/guarantees.md): a store whose flusher has its turns is cut on the
simulated disk, and what is missing is compared with the settings, not with what the engine says it has flushed.

After each turn of the flusher, every `flushIntervalCommitLog`, by the recorded clock:

    what was acknowledged `flushCommitLogThoroughInterval` ago or earlier is on disk
    what is not on disk is less than `flushCommitLogLeastPages` pages

So a cut takes the end of the log: what came since the last turn, and of what came before fewer pages than these, none
older than that. A store that is opened has all on disk that was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

from crash.part import Part
from crash.protections import protection
from crash.simulated_disk import run_lives
from crash.store_life import Life, tiny_config
from rmq_store import Store
from rmq_store.broker.store import parts
from rmq_store.broker.write.flusher import Flusher

PAGE_BYTES = 4096
CONFIG = replace(
    tiny_config("ASYNC_FLUSH"), mapped_file_size_commit_log=4 * PAGE_BYTES, flush_interval_commit_log=500,
    flush_commit_log_least_pages=2, flush_commit_log_thorough_interval=10_000,
)  # fmt: skip


@dataclass
class FlushedLife(Life):
    """A life in which nobody asks for a flush."""

    steps: ClassVar[tuple[str, ...]] = (
        *["send"] * 8, *["batch"] * 3, *["unit"] * 2, *["idle"] * 6, "offsets", "reopen", "killed", "delayed",
    )  # fmt: skip
    step_count: ClassVar[tuple[int, int]] = (8, 20)

    written: list[tuple[int, int]] = field(default_factory=list)  # when, where the log ended then
    end_on_disk: int = 0
    turn_ms: int = 0

    def clock(self) -> int:
        self.now_ms += 40
        return self.now_ms

    def open(self) -> Store:
        with patch.object(parts, "Flusher", partial(Flusher, clock=lambda: self.now_ms)):
            store = super().open()
        self.turn_ms = self.now_ms
        self.end_on_disk = store._log.writing_page.appended_end
        return store

    def promised_end(self, store: Store) -> int:
        """The thread that looks again and again has its turn now, if it is time."""
        self.written.append((self.now_ms, store._log.writing_page.appended_end))
        if self.now_ms - self.turn_ms >= CONFIG.flush_interval_commit_log:
            assert store._flusher is not None
            store._flusher.flush_if_due()
            store._flusher._save_progress_if_due()
            self.turn_ms = self.now_ms
            self.end_on_disk = max(self.end_on_disk, self._old(), self._far())
        return self.end_on_disk

    def _old(self) -> int:
        since_ms = self.now_ms - CONFIG.flush_commit_log_thorough_interval
        return max((end for ms, end in self.written if ms <= since_ms), default=0)

    def _far(self) -> int:
        """Where the pages begin that may wait."""
        return (self.written[-1][1] // PAGE_BYTES - CONFIG.flush_commit_log_least_pages + 1) * PAGE_BYTES

    def _idle(self, store: Store) -> None:
        """Something waits, and nothing else happens, for less than the thorough interval, or longer."""
        self._send(store)
        self.promise(store)
        for _ in range(self.chance.choice((3, 24, 24))):
            self.now_ms += CONFIG.flush_interval_commit_log
            self.promise(store)


@protection("no_flusher", "writes to the disk by itself what waits too long, or is too much, under ASYNC_FLUSH")
def _no_flusher() -> Iterator[None]:
    with patch.object(Flusher, "flush_if_due", lambda *_, **__: None):
        yield


@protection("no_thorough_flush", "writes to the disk what has waited long under ASYNC_FLUSH, however little it is")
def _no_thorough_flush() -> Iterator[None]:
    begin = Flusher.__init__

    def begin_without(flusher: Flusher, *arguments: Any, **options: Any) -> None:
        begin(flusher, *arguments, **options)
        flusher._thorough_interval_ms = 1 << 62

    with patch.object(Flusher, "__init__", begin_without):
        yield


PARTS = (
    Part(
        "loss_bound", "5", "power cuts under ASYNC_FLUSH take no more than the settings of the flusher allow", "images",
        harness=600, crash=20_000, soak=40_000, chunk=10_000,
        run=lambda trial: run_lives(trial, FlushedLife, (CONFIG,)),
        protections=("no_flusher", "no_thorough_flush"), bites_within=400, by_cycle=True,
    ),
)  # fmt: skip
