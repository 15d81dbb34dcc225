"""One of the processes that use the store of the model: it does what it is told over a pipe, or dies doing it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash.model_state import GROUP, KEYS, POPPED, RETRIES_MAX, TOPICS, Found, Key

if TYPE_CHECKING:
    from rmq_store import Store

# A guard against hanging only.
_PATIENCE_S = 60.0


class DiedError(Exception):
    """The process was killed before it answered."""


class RefusedError(Exception):
    """The process answered with an error of the engine: its type and text."""


class Member:
    """A forked process. `others` are the pipes of its siblings, which it must not keep open."""

    def __init__(self, root: Path, config: Any, now_ms: int, others: Sequence[Member]) -> None:
        self._pipe, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._pipe.close()
            for other in others:
                other._pipe.close()
            _work(theirs, root, config, now_ms)
        theirs.close()

    def start(self, now_ms: int, name: str, *arguments: Any, die_at: int = 0) -> None:
        """Begin a call; killed before its `die_at`-th operation on the store's files. DiedError."""
        try:
            self._pipe.send((now_ms, name, arguments, die_at))
        except ConnectionError as error:
            self.reap()
            raise DiedError from error

    def finish(self) -> Any:
        """The answer. DiedError, RefusedError."""
        try:
            if not self._pipe.poll(_PATIENCE_S):
                raise RefusedError(f"no answer within {_PATIENCE_S} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self.reap()
            raise DiedError from error
        if kind == "error":
            raise RefusedError(value)
        return value

    def call(self, now_ms: int, name: str, *arguments: Any, die_at: int = 0) -> Any:
        self.start(now_ms, name, *arguments, die_at=die_at)
        return self.finish()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def close(self, now_ms: int) -> None:
        """Let it close the store and end."""
        self.call(now_ms, "close")
        self.reap()

    def reap(self) -> None:
        os.waitpid(self.pid, 0)
        self._pipe.close()


def warm_up(root: Path, config: Any) -> None:
    """Make each call once in this process: what they import, and the tables of the CRC that long records need, is not
    made in every child then.
    """
    from rmq_store import Store
    from rmq_store.verify import verify_store

    clock = [0]
    with Store.open(root, create=True, config=config, clock=lambda: clock[0]) as store:
        hands = _Hands(store, clock)
        hands.create()
        hands.send(("Alpha", 0), b"00000000", None, 1)
        hands.append([(("Alpha", 0), b"00000000" + bytes(1500), "TagA"), ((POPPED, 0), b"00000000", None)])
        hands.unit("q1", 1, [(("Alpha", 0), b"00000000", None)])
        hands.commit({("Alpha", 0): 1})
        hands.look_beside()
        hands.send_back(hands.read(("Alpha", 0), 0, 1)[0][3], 1)
        clock[0] += 100_000
        hands.deliver()
        for _, _, handle in hands.pop(1, 1000):
            hands.ack(handle)
        hands.last_units(["q1"])
        hands.retain()
    verify_store(root)


def _work(pipe: Connection, root: Path, config: Any, now_ms: int) -> None:
    gc.disable()  # it dies young
    code = 0
    try:
        from rmq_store import Store

        clock = [now_ms]
        store = Store.open(root, create=True, config=config, clock=lambda: clock[0])
        hands = _Hands(store, clock)
        pipe.send(("done", store.recovery and store.recovery.trust))
        while not hands.closed:
            clock[0], name, arguments, die_at = pipe.recv()
            if die_at:
                _die_at(die_at)
            try:
                pipe.send(("done", getattr(hands, name)(*arguments)))
            except Exception as error:
                pipe.send(("error", f"{name}: {type(error).__name__}: {error}"))
            finally:
                _die_at(0)
    except BaseException as error:
        code = 1
        pipe.send(("error", f"{type(error).__name__}: {error}"))
    finally:
        os._exit(code)


def _die_at(k: int) -> None:
    """Be killed at the k-th operation from now on, stores into the state page included; 0: never."""
    from rmq_store.files import durable
    from rmq_store.files.locks import state_page

    if not k:
        durable.hook = None
        return
    left = [k]

    def hook(operation: str, path: str) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    durable.hook = hook
    if not hasattr(state_page._Word, "counted"):
        set_word = state_page._Word.__set__

        def counted(word: Any, page: Any, value: int) -> None:
            durable.before("word", "")
            set_word(word, page, value)

        state_page._Word.__set__ = counted  # type: ignore[method-assign]
        state_page._Word.counted = True  # type: ignore[attr-defined]


class _Hands:
    """The calls, each a method. Every call that appends answers with the end of the log last."""

    def __init__(self, store: Store, clock: list[int]) -> None:
        self._store = store
        self._clock = clock
        self.closed = False

    def create(self) -> None:
        from rmq_store import SubscriptionGroup

        for topic, count in {**TOPICS, POPPED: 1}.items():
            self._store.create_topic(topic, count)
        self._store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=1, retry_max_times=RETRIES_MAX))

    def end(self) -> int:
        return self._store.log_range()[1]

    def flush(self) -> None:
        self._store.flush()

    def send(self, key: Key, body: bytes, tags: str | None, level: int) -> tuple[int, int]:
        from rmq_store import Message

        properties = {"DELAY": str(level)} if level else {}
        sent = self._store.send(Message(key[0], body, tags=tags, properties=properties, queue_id=key[1]))
        return sent.queue_offset, self.end()

    def append(self, rows: Sequence[tuple[Key, bytes, str | None]]) -> tuple[int, int]:
        count = self._store.append(_batch(rows)).row_count
        return count, self.end()

    def unit(self, key: str, value: int, rows: Sequence[tuple[Key, bytes, str | None]]) -> tuple[str, int]:
        from rmq_store import MarkerError, StagingArea

        write_id = f"{key}-{value}-{os.getpid()}"
        with StagingArea.for_task(self._store.path, write_id, 0, 0, use_queue_id=True) as staging:
            staging.write(_batch(rows))
            staged = staging.finish()
        try:
            done = self._store.commit_staged([staged] if staged else [], key=key, value=value)
        except MarkerError:
            return "refused", self.end()
        return "committed" if done.committed else "repeated", self.end()

    def again(self, key: str, value: int) -> tuple[str, int]:
        """A repetition whose rows were swept long ago."""
        from rmq_store import MarkerError

        try:
            done = self._store.commit_staged([], key=key, value=value, repeatable=False)
        except MarkerError:
            return "refused", self.end()
        return "committed" if done.committed else "repeated", self.end()

    def last_units(self, keys: Sequence[str]) -> dict[str, int | None]:
        return {key: self._store.last_unit("sink", key) for key in keys}

    def commit(self, offsets: dict[Key, int]) -> None:
        self._store.commit_offsets(GROUP, offsets)

    def committed(self) -> dict[Key, int]:
        return {key: value for key, value in self._store.committed_offsets(GROUP).items() if key[0] != POPPED}

    def send_back(self, offset: int, level: int) -> tuple[str, int]:
        return self._store.retry.send_back(GROUP, offset, delay_level=level).topic, self.end()

    def deliver(self) -> tuple[int, int]:
        return self._store.schedule.deliver_due().delivered, self.end()

    def pop(self, count: int, invisible_ms: int) -> list[tuple[int, bytes, str]]:
        found = self._store.pop.receive("cg_pop", POPPED, count, invisible_ms, max_delivery_attempts=1000)
        return [
            (one.row.column("queueOffset")[0].as_py(), one.row.column("body")[0].as_py(), one.receipt_handle)
            for one in found
        ]

    def ack(self, handle: str) -> bool:
        from rmq_store import InvalidReceiptHandleError

        try:
            self._store.pop.ack("cg_pop", POPPED, handle)
        except InvalidReceiptHandleError:
            return False
        return True

    def retain(self) -> tuple[int, int]:
        report = self._store.retention.run(manual=True, file_reserved_time=0)
        return len(report.removed), self.end()

    def read(self, key: Key, start: int, end: int) -> list[tuple[bytes, str | None, int, int]]:
        columns = ["body", "tags", "reconsumeTimes", "commitLogOffset"]
        rows: list[tuple[bytes, str | None, int, int]] = []
        for batch in self._store.read(*key, start, end, columns=columns):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    def look(self) -> tuple[dict[Key, Found], int]:
        """All queues, and where the log begins."""
        found = {}
        for key in KEYS:
            first, last = self._store.queue_range(*key)
            found[key] = Found(first, last, self.read(key, first, last) if first < last else [])
        return found, self._store.log_range()[0]

    def look_beside(self) -> tuple[dict[Key, Found], int]:
        """The same, as a reader without a lock sees it."""
        from rmq_store import Store

        with Store.open(self._store.path, read_only=True) as reader:
            return _Hands(reader, self._clock).look()

    def close(self) -> None:
        self.closed = True
        self._store.close()


def _batch(rows: Sequence[tuple[Key, bytes, str | None]]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([key[0] for key, _, _ in rows], pa.string()),
            "queueId": pa.array([key[1] for key, _, _ in rows], pa.int32()),
            "body": pa.array([body for _, body, _ in rows], pa.binary()),
            "tags": pa.array([tags for _, _, tags in rows], pa.string()),
        }
    )

