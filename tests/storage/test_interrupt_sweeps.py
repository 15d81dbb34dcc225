"""Ctrl-C at every place where Python runs a handler, in everything that takes a lock.

It ends the call as KeyboardInterrupt, nobody holds a lock behind it, and the store works as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.interrupts import Signal, interrupted
from rmq_store import Message, StagingArea, Store, StoreConfig, SubscriptionGroup
from rmq_store.broker.monitoring.losses import Loss, record_losses
from rmq_store.errors import UsageError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.verify import verify_store

# An interrupt between the call of os.scandir and its `with`: the iterator goes with the frame, and says so.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed scandir iterator:ResourceWarning")]

PLACES_MAX = 20_000


@dataclass
class Shop:
    """A store, and what can be done with it any number of times."""

    root: Path
    config: StoreConfig
    now_ms: int = 1_700_000_000_000
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def clock(self) -> int:
        return self.now_ms

    def open(self) -> Store:
        store = Store.open(self.root, create=True, config=self.config, clock=self.clock)
        store.create_topic("T", queue_count=2, exist_ok=True)
        store.create_group(SubscriptionGroup("g"), exist_ok=True)
        return store

    def message(self, **properties: str) -> Message:
        return Message("T", b"%08d" % next(self.numbers), properties=properties)

    def locked(self) -> list[str]:
        """The lock files that somebody holds, as another process sees them; byte 0 of `lock` is none of them."""
        files = [*(self.root / "pyrmq").glob("*.lock"), *(self.root / "pyrmq" / "pop").glob("*/*/lock")]
        held = [path for path in files if OfdLock(path).who().kind != "free"]
        return [str(path.relative_to(self.root)) for path in held]


@pytest.fixture
def shop(fast_scratch: Path, small: StoreConfig) -> Shop:
    # The flush thread never wakes up: it takes locks, too.
    return Shop(fast_scratch / "store", replace(small, flush_interval_commit_log=10**9, message_delay_level="1s"))


Act = Callable[[], object]


def deliver(shop: Shop, store: Store) -> Act:
    # What an interrupted delivery has left goes first: otherwise each one would be of all messages since the beginning.
    store.schedule.deliver_due()
    store.send(shop.message(DELAY="1"))
    shop.now_ms += 2000
    return store.schedule.deliver_due


def commit_staged(shop: Shop, store: Store) -> Act:
    with StagingArea.for_task(store.path, f"w{next(shop.numbers)}", 0, 0, topic="T") as area:
        area.write(pa.record_batch({"body": [b"00000000"]}))
        file = area.finish()
    assert file is not None
    return lambda: store.commit_staged([file])


def acknowledge(shop: Shop, store: Store) -> Act:
    store.send(shop.message())
    (popped,) = store.pop.receive("g", "T", 1, 60_000)
    return lambda: store.pop.ack("g", "T", popped.receipt_handle)


def receive(shop: Shop, store: Store) -> Act:
    store.send(shop.message())
    return lambda: store.pop.receive("g", "T", 1, 1)


def commit_offsets(shop: Shop, store: Store) -> Act:
    store.send(shop.message())
    _, last = store.queue_range("T", 0)
    return lambda: store.commit_offsets("g", {("T", 0): last, ("T", 1): next(shop.numbers)})


def lose(shop: Shop, store: Store) -> Act:
    (store.path / "pyrmq" / "dataloss.json").unlink(missing_ok=True)
    start = next(shop.numbers)
    return lambda: record_losses(store.path, [Loss("T", 0, start, start + 1, "retention", None)])


ACTS: dict[str, Callable[[Shop, Store], Act]] = {
    "send": lambda shop, store: lambda: store.send(shop.message()),
    "send_all": lambda shop, store: lambda: store.send_all([shop.message(), shop.message()]),
    "append": lambda shop, store: lambda: store.append(pa.record_batch({"body": [b"00000000"] * 3}), "T"),
    "flush": lambda shop, store: store.flush,
    "commit_offsets": commit_offsets,
    "create_topic": lambda shop, store: lambda: store.create_topic(f"T{next(shop.numbers)}", exist_ok=True),
    "update_group": lambda shop, store: lambda: store.update_group(
        SubscriptionGroup("g", retry_max_times=next(shop.numbers))
    ),
    "deliver_due": deliver,
    "save_progress": lambda shop, store: store.schedule.save_progress,
    "receive": receive,
    "ack": acknowledge,
    "commit_staged": commit_staged,
    "retention": lambda shop, store: lambda: store.retention.run(manual=True),
    "configure": lambda shop, store: lambda: store.retention.configure(file_reserved_time=1 + next(shop.numbers)),
    "record_losses": lose,
    "delete_topic": lambda shop, store: lambda: store.admin.clean_unused_topics(),
}


SYNC = "send", "append", "flush", "commit_offsets", "ack"
"""What waits for the disk under SYNC_FLUSH, too."""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 61])
@pytest.mark.parametrize(("name", "sync"), [*((name, False) for name in ACTS), *((name, True) for name in SYNC)])
def test_ctrl_c_at_any_place_of_a_call_leaves_nothing_locked_and_the_store_as_usable_as_before(
    shop: Shop, name: str, sync: bool, every: int
) -> None:
    if sync:
        shop.config = replace(shop.config, flush_disk_type="SYNC_FLUSH")
    with shop.open() as store:
        for k in range(1, PLACES_MAX, every):
            act = ACTS[name](shop, store)
            signal = interrupted(k, act)
            assert shop.locked() == [], signal.where
            if not signal.came:
                break
        assert k > 10
        store.send(shop.message())
        ACTS[name](shop, store)()
    assert verify_store(shop.root).status == "clean"



# Every place takes minutes: in the default run every so manieth.
EVERY = [pytest.param(1, marks=pytest.mark.slow), 83]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_close_that_ctrl_c_ends_at_any_place_can_be_repeated_and_then_returns(
    shop: Shop, sync: bool, every: int
) -> None:
    if sync:
        shop.config = replace(shop.config, flush_disk_type="SYNC_FLUSH")
    for k in range(1, PLACES_MAX, every):
        store = shop.open()
        store.send(shop.message())
        sent = next(shop.numbers)
        if k % 5 == 0:
            store.pop.receive("g", "T", 1, 1)
        signal = interrupted(k, store.close)
        store.close()
        assert OfdLock(shop.root / "lock").who().kind == "free", signal.where
        assert shop.locked() == [], signal.where
        if not signal.came:
            break
    assert k > 100
    with shop.open() as store:
        assert sum(last - first for first, last in store.queue_ranges("T").values()) == (sent + 1) // 2
    assert verify_store(shop.root).status == "clean"


# -- a handler uses the store ----------------------------------------------------------------------------------------

USES: dict[str, Callable[[Shop, Store], object]] = {
    "send": lambda shop, store: store.send(shop.message()),
    "append": lambda shop, store: store.append(pa.record_batch({"body": [b"00000000"] * 3}), "T"),
    "commit_offsets": lambda shop, store: store.commit_offsets("other", {("T", 1): next(shop.numbers)}),
    "update_group": lambda shop, store: store.update_group(
        SubscriptionGroup("g", retry_max_times=next(shop.numbers))
    ),
    "receive": lambda shop, store: store.pop.receive("g", "T", 1, 1),
    "deliver_due": lambda shop, store: store.schedule.deliver_due(),
    "read": lambda shop, store: list(store.read("T", 0, *store.queue_range("T", 0))),
}
IN_THE_MIDDLE_OF = "send", "append", "commit_offsets", "update_group", "receive", "ack", "deliver_due", "commit_staged"


@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.slow), 193])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", IN_THE_MIDDLE_OF)
def test_a_handler_that_uses_the_store_at_any_place_of_a_call_is_served_or_refused(
    shop: Shop, name: str, use: str, every: int
) -> None:
    """Never does it wait for its own thread, and what it interrupted goes on as if nothing had been."""
    served, refused = 0, 0

    def handler() -> None:
        nonlocal served, refused
        try:
            USES[use](shop, store)
            served += 1
        except UsageError as error:
            assert "after the handler has returned" in str(error), error
            refused += 1

    with shop.open() as store:
        for k in range(1, PLACES_MAX, every):
            act = ACTS[name](shop, store)
            with Signal(k, handler) as signal:
                act()
            if not signal.came:
                break
        assert served > 0
        act = ACTS[name](shop, store)
        act()
        assert shop.locked() == []
    report = verify_store(shop.root)
    assert report.status == "clean", report
