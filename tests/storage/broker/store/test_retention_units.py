"""Units outlive the segments that hold them; waiting messages keep their segment (docs/broker-design.md section 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store import MarkerError, Message, Store
from rmq_store.broker.rules.purposes import EXPIRING
from rmq_store.broker.write.units import UnitTable
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL
from rmq_store.log.core.units import UNITS_TOPIC, UnitRecord

HOUR_MS = 3_600_000
SEGMENT_BYTES = 8192


def commit(store: Store, key: str, value: int, purpose: str = "sink", **more: Any) -> None:
    """A unit as every module of the engine appends it."""
    assert store._writer is not None
    found = store._writer.newest_unit(purpose, key)
    unit = UnitRecord(purpose, key, value, **more)
    assert store._writer.append_unit([], unit, expect=found.value if found else None)


def turn(shop: Any, store: Store, hours: float = 1) -> None:
    """Time passes, and the whole log of now is deleted."""
    shop.now_ms += int(hours * HOUR_MS)
    shop.fill(store, len(shop.bases()) + 2)
    shop.age(100)
    assert store.retention.run(manual=True, drop_waiting=True).removed
    assert len(shop.bases()) == 1


def newest(store: Store, key: str, purpose: str = "sink") -> UnitRecord | None:
    return UnitTable(store._log).newest(purpose, key, store.log_range()[1])


def test_the_newest_marker_of_each_key_survives_its_segment_again_and_again(shop: Any) -> None:
    with shop.open() as store:
        for value in range(3):
            commit(store, "a", value, row_count=value + 7, content_sum=value + 70)
        commit(store, "b/c", 5)
        for _ in range(3):
            turn(shop, store)
            (shop.root / "pyrmq" / "units.json").unlink(missing_ok=True)
            assert newest(store, "a") == UnitRecord("sink", "a", 2, 9, 72)
            assert newest(store, "b/c") == UnitRecord("sink", "b/c", 5)
    (shop.root / "pyrmq" / "units.json").unlink(missing_ok=True)
    with shop.open() as store:
        assert store.last_unit("sink", "a") == 2
        assert not store.commit_staged([], key="b/c", value=5).committed
        with pytest.raises(MarkerError):
            store.commit_staged([], key="a", value=1)
        assert store.commit_staged([], key="a", value=3).committed
    assert shop.is_sound()


def test_only_the_newest_of_a_key_is_written_again_and_only_if_its_segment_goes(shop: Any) -> None:
    with shop.open() as store:
        for value in range(4):
            commit(store, "old", value)
        shop.fill(store, 3)
        commit(store, "new", 1)
        commit(store, "both", 1)
        shop.fill(store, 5)
        commit(store, "both", 2)
        before = store.queue_range(UNITS_TOPIC, 0).max_offset
        shop.age(100, *shop.bases()[:2])
        report = store.retention.run(manual=True)
        assert report.units == 1
        assert store.queue_range(UNITS_TOPIC, 0).max_offset == before + 1  # one record: no bracket
        shop.age(100)
        assert store.retention.run(manual=True).units == 1  # `new`; `both` and `old` are at the end
        assert [store.last_unit("sink", key) for key in ("old", "new", "both")] == [3, 1, 2]


def test_detail_survives_too(shop: Any) -> None:
    with shop.open() as store:
        commit(store, "0", 4, "timer", detail={"time": 7, "start": 9})
        for _ in range(2):
            turn(shop, store)
        assert newest(store, "0", "timer") == UnitRecord("timer", "0", 4, detail={"time": 7, "start": 9})


@pytest.mark.parametrize("purpose", ["sink", "txn", "sendback", "delay", "timer", "redrive", "other"])
def test_markers_of_commits_expire_and_progress_never_does(shop: Any, purpose: str) -> None:
    """A month after the commit, however often the marker was written again meanwhile."""
    with shop.open() as store:
        commit(store, "1", 3, purpose)
        for _ in range(2):
            turn(shop, store, 14.5 * 24)
            assert store.last_unit(purpose, "1") == 3
        turn(shop, store, 2 * 24)
        expected = None if purpose in EXPIRING else 3
        assert store.last_unit(purpose, "1") == expected or purpose in EXPIRING
    with shop.open() as store:
        assert store.last_unit(purpose, "1") == expected


def test_the_time_of_a_marker_is_a_setting(shop: Any) -> None:
    with shop.open() as store:
        store.retention.configure(unit_marker_reserved_time=3)
        commit(store, "q", 3)
        turn(shop, store, 2)
        commit(store, "p", 3)
        turn(shop, store, 2)
    with shop.open() as store:
        assert (store.last_unit("sink", "q"), store.last_unit("sink", "p")) == (None, 3)


def test_what_somebody_else_deleted_is_remembered_and_written_again(shop: Any) -> None:
    """A broker's cleaner knows nothing of units; units.json does."""
    with shop.open() as store:
        commit(store, "q", 3)
        shop.fill(store, 4)
        assert store.last_unit("sink", "q") == 3
        UnitTable(store._log)._save(store._writer._units._cache)  # type: ignore[union-attr, arg-type]
        store.flush()
        (shop.root / "commitlog" / f"{0:020d}").unlink()
        assert store.last_unit("sink", "q") == 3
        shop.age(100)
        assert store.retention.run(manual=True).units == 1
        (shop.root / "pyrmq" / "units.json").unlink()
    with shop.open() as store:
        assert store.last_unit("sink", "q") == 3


def test_looking_up_does_not_read_the_whole_topic_in_a_store_that_was_deleted_from(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.open() as store:
        for value in range(200):
            commit(store, f"q{value % 3}", value)
        shop.fill(store, len(shop.bases()) + 2)
        shop.age(100)
        while store.retention.run(manual=True).removed:
            pass
        (shop.root / "pyrmq" / "units.json").unlink()
        read: list[int] = []
        records = UnitTable._records

        def counted(table: UnitTable, first: int, entries: Any) -> Any:
            read.append(len(entries))
            return records(table, first, entries)

        monkeypatch.setattr(UnitTable, "_records", counted)
        assert [store.last_unit("sink", f"q{n}") for n in range(3)] == [198, 199, 197]
        assert newest(store, "q1") == UnitRecord("sink", "q1", 199)
        assert sum(read) < 20


# -- what waits ------------------------------------------------------------------------------------------------------


def delayed(level: int) -> Message:
    return Message("T", b"%08d" % level, properties={DELAY_TIME_LEVEL: str(level)})


def test_a_segment_with_waiting_messages_stays_and_says_so(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 2)
        sent_ms = shop.now_ms
        for level in (18, 17, 18):
            store.send(delayed(level))
        shop.fill(store, 5)
        shop.age(100)
        shop.usage = 95  # a forced pass keeps it, too
        report = store.retention.run()
        assert len(report.removed) == 1
        fate = report.plan.segments[-1]
        assert fate.waiting == (3, sent_ms + 7_200_000)
        assert fate.reason == (
            "3 delayed messages in it are not delivered yet; the last one is due at 2023-11-14 14:00:00 UTC"
        )
        shop.now_ms += 7_200_000
        assert store.retention.plan().segments[0].reason.endswith(", nobody has delivered: `rmq broker run` does")
        shop.usage = 10
        store.schedule.deliver_due()
        assert len(store.retention.run(manual=True).removed) == 3
        assert shop.numbers(store)[-3:] == [17, 18, 18]
    assert shop.is_sound()


def test_only_what_is_not_delivered_counts(shop: Any) -> None:
    with shop.open() as store:
        store.send(delayed(1))
        store.send(delayed(18))
        store.send(delayed(1))
        shop.fill(store, 3)
        shop.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 2
        shop.age(100)
        waiting = store.retention.plan(manual=True).segments[0].waiting
        assert waiting is not None
        assert waiting.messages == 1


def test_timers_keep_their_segment(shop: Any) -> None:
    with shop.open() as store:
        due_ms = shop.now_ms + 50 * HOUR_MS
        for ahead_ms in (50 * HOUR_MS, 26 * HOUR_MS, 30 * HOUR_MS):  # all in one timer queue
            store.send(Message("T", b"%08d" % 1, properties={"TIMER_DELIVER_MS": str(shop.now_ms + ahead_ms)}))
        shop.fill(store, 4)
        shop.now_ms += 26 * HOUR_MS
        assert store.schedule.deliver_due().delivered == 1
        shop.age(100)
        report = store.retention.run(manual=True)
        assert report.removed == ()
        assert report.plan.segments[0].waiting == (2, due_ms)
        with shop.open(read_only=True) as reader:
            assert reader.retention.plan(manual=True).segments == report.plan.segments
        shop.now_ms = due_ms
        assert store.schedule.deliver_due().delivered == 2
        assert len(store.retention.run(manual=True).removed) == 3


def test_dropping_what_waits_is_a_way_out(shop: Any) -> None:
    with shop.open() as store:
        store.send(delayed(18))
        shop.fill(store, 4)
        shop.age(100)
        assert store.retention.run(manual=True).removed == ()
        assert len(store.retention.run(manual=True, drop_waiting=True).removed) == 3
        shop.now_ms += 7_200_000
        assert store.schedule.deliver_due().delivered == 0
        store.send(delayed(1))
        shop.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 1
    assert shop.is_sound()


def test_what_waits_in_a_broker_is_known_by_its_progress(shop: Any) -> None:
    """config/delayOffset.json of a broker that delivered: nothing waits."""
    with shop.open() as store:
        store.send(delayed(3))
        shop.fill(store, 3)
        shop.age(100)
        assert not store.retention.plan(manual=True).going
    (shop.root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:1}}')
    with shop.open() as store:
        shop.age(100)
        assert [fate.start for fate in store.retention.plan(manual=True).going] == [0, SEGMENT_BYTES]


def test_units_of_a_progress_survive_so_nothing_is_delivered_twice(shop: Any, scratch: Path) -> None:
    with shop.open() as store:
        for _ in range(3):
            store.send(delayed(1))
        shop.now_ms += 1000
        store.schedule.deliver_due()
        for _ in range(2):
            turn(shop, store)
        for name in ("config/delayOffset.json", "pyrmq/units.json"):
            (shop.root / name).unlink(missing_ok=True)
    with shop.open() as store:
        shop.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 0
        store.send(delayed(1))
        shop.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 1
