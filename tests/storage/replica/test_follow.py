"""The loop that follows a master, against an HA port in memory: what it stores, what it reports, what stops it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rmq_store import ReadOnlyError, Store, StoreLockedError, UsageError
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.errors import MasterTransferError, ReplicaDivergedError
from rmq_store.log.core import scan
from rmq_store.log.feeder_state import FeederState, read_state
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.replica import first_report, follow, ha_connection
from rmq_store.replica.first_report import SETTLED_MS, SettledEnd, overlap_start
from rmq_store.replica.follow import Follower, Progress
from rmq_store.replica.master import LogEnds, Master
from rmq_store.replica.wire import FROM_START
from rmq_store.verify import verify_store
from storage.replica.conftest import CONFIG, SEGMENT_BYTES, commit_unit, fill, log_bytes, views_of
from storage.replica.fake_master import offsets
from storage.replica.ha_master import FollowedMaster, HAMaster


@pytest.fixture
def ha(master: Store) -> Iterator[HAMaster]:
    served = HAMaster(master)
    yield served
    served.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "WAIT_S", 0.02)
    monkeypatch.setattr(follow, "RECONNECTS", replace(follow.RECONNECTS, first_ms=10, max_ms=20))


def follower(root: Path, ha: HAMaster, **given: Any) -> Follower:
    asked = cast(Master, given.pop("master", FollowedMaster.of(ha, CONFIG)))
    given.setdefault("should_stop", lambda seconds: bool(time.sleep(seconds)))
    return Follower(root, asked, **given)


class Following:
    """A follower in a thread."""

    def __init__(self, root: Path, ha: HAMaster, **given: Any) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.follower = follower(root, ha, should_stop=self.stop.wait, **given)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.follower.run()
        except BaseException as error:
            self.error = error

    def until(self, is_so: Callable[[Progress], bool]) -> None:
        """Wait for a progress; fails if the follower ends."""
        while not is_so(self.follower.progress):
            assert self._thread.is_alive(), self.error
            time.sleep(0.01)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def is_copy(root: Path, master: Store, start: int = 0) -> None:
    with Store.open(root, read_only=True) as replica:
        assert replica.log_range() == (start, master.log_range()[1])
        assert log_bytes(replica._log, *replica.log_range()) == log_bytes(master._log, start, master.log_range()[1])


@pytest.mark.parametrize("cut", [1 << 20, 4099, 5])
def test_once_makes_a_copy_of_what_the_master_had(tmp_path: Path, master: Store, ha: HAMaster, cut: int) -> None:
    fill(master, 20 if cut == 5 else 400)
    commit_unit(master, 1, 20)
    ha.cut = cut
    progress = follower(tmp_path / "replica", ha).run(once=True)
    is_copy(tmp_path / "replica", master)
    assert progress.behind_bytes == 0
    assert progress.messages == (42 if cut == 5 else 422)
    assert views_of(tmp_path / "replica") == views_of(master.path)
    report = verify_store(tmp_path / "replica")
    assert report.status == "clean", report.problems
    assert ha.reports == [[1]]  # from the first byte on, and nobody's send was acknowledged
    assert OffsetTable(tmp_path / "replica").committed("billing") == {("Orders", 0): 1}


def test_a_second_run_goes_on_where_the_first_one_ended(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 100)
    follower(tmp_path / "replica", ha).run(once=True)
    fill(master, 300)
    progress = follower(tmp_path / "replica", ha).run(once=True)
    is_copy(tmp_path / "replica", master)
    assert progress.messages == 300


def test_messages_are_read_while_they_come(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    root = tmp_path / "replica"
    fill(master, 3)
    with Following(root, ha) as following:
        following.until(lambda progress: progress.messages == 3)
        with Store.open(root, read_only=True) as reader:
            assert reader.queue_range("Orders", 0) == (0, 2)
            fill(master, 500)
            following.until(lambda progress: progress.messages == 503)
            assert reader.queue_range("Orders", 0) == (0, 252)
        with pytest.raises(ReadOnlyError, match="fed by another thread of this process since"):
            Store.open(root)
        with pytest.raises(StoreLockedError, match="one feeder"):
            follower(root, ha).run(once=True)
    is_copy(root, master)


def test_a_new_replica_may_begin_with_the_last_segment(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 500)
    begin = master.log_range()[1] // SEGMENT_BYTES * SEGMENT_BYTES
    assert begin > 0
    root = tmp_path / "replica"
    follower(root, ha, start="newest-segment").run(once=True)
    is_copy(root, master, begin)
    assert ha.reports == [[0]]
    fill(master, 500)
    time.sleep(0.01)
    with Following(root, ha) as following:
        following.follower._settled = SettledEnd(lambda: time.monotonic() * 1000)
        following.until(lambda progress: progress.end == master.log_range()[1])
    is_copy(root, master, begin)
    report = verify_store(root)
    assert report.status == "clean", report.problems


def test_a_connection_that_ends_is_made_again_and_a_unit_is_never_half_visible(
    tmp_path: Path, master: Store, ha: HAMaster
) -> None:
    fill(master, 10)
    commit_unit(master, 1, 300)
    fill(master, 10)
    ha.drop_after = 70_000
    seen = set()
    with Following(tmp_path / "replica", ha, tell=lambda progress: seen.add(progress.end)) as following:
        following.until(lambda progress: len(ha.reports) > 2)
        ha.drop_after = None
        following.until(lambda progress: progress.end == master.log_range()[1])
    assert len(ha.reports) > 2
    is_copy(tmp_path / "replica", master)
    unit = [
        stretch.base + int(position)
        for stretch in scan.walk(master._log, 0)
        for position, topic in zip(
            stretch.positions, scan.columns_of(master._log, stretch).topic.to_pylist(), strict=True
        )
        if topic == "rmq_sys_pyrmq_units"
    ]
    assert not [end for end in seen if unit[0] < end <= unit[1]]


def test_a_replica_that_has_got_no_record_yet_is_opened_again(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 500)
    begin = master.log_range()[1] // SEGMENT_BYTES * SEGMENT_BYTES
    root, first = tmp_path / "replica", Following(tmp_path / "replica", ha, start="newest-segment")
    ha.spoil = lambda offset, data: data[: 12 + 20] if offset == begin else b""
    with first as following:
        following.until(lambda progress: progress.received_bytes == 20)
    with Store.open(root, read_only=True) as replica:
        assert replica.log_range() == (begin, begin)
    ha.spoil = lambda offset, data: data
    with Following(root, ha) as following:
        following.follower._settled = SettledEnd(lambda: time.monotonic() * 1000)
        following.until(lambda progress: progress.end == master.log_range()[1])
    is_copy(root, master, begin)


# -- what is acknowledged ---------------------------------------------------------------------------------------------


def test_a_tap_never_reports_what_a_producer_may_wait_for(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_connection, "REPORT_INTERVAL_S", 0.02)
    root = tmp_path / "replica"
    for _ in range(3):
        fill(master, 20)
        with Following(root, ha) as following:
            following.until(lambda progress: progress.end == master.log_range()[1])
            fill(master, 20)
            following.until(lambda progress: progress.end == master.log_range()[1])
            time.sleep(0.1)
    assert len(ha.reports) == 3
    for reports in ha.reports:
        assert len(reports) > 1  # an idle connection is closed
        assert set(reports) == {1}
    assert ha.acknowledged <= 1


def test_a_slave_by_choice_reports_what_is_on_disk(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Following(tmp_path / "replica", ha, as_slave=True) as following:
        for _ in range(3):
            fill(master, 20)
            following.until(lambda progress: ha.acknowledged == master.log_range()[1])
            page = following.follower._opened()._log.writing_page
            assert page.flushed_end == master.log_range()[1]


def test_where_a_connection_begins(master: Store, replica: Store) -> None:
    log = master._log
    now = [1_700_000_000_000]
    log.clock = lambda: now[0]  # type: ignore[method-assign]
    ends = []
    for _ in range(40):
        fill(master, 20)
        now[0] += 1000
        ends.append(master.log_range()[1])
    begin = overlap_start(log, None, 0)
    assert begin is not None
    assert begin in {0, *_record_starts(master)}
    stored_ms = log.store_timestamp(begin)
    assert stored_ms is not None
    assert stored_ms <= log.writing_page.store_timestamp - SETTLED_MS
    assert begin > 0
    # What this process has had for so long, whatever clocks say.
    assert overlap_start(log, ends[3], 0) == ends[3]
    # The master has deleted what lies below.
    assert overlap_start(log, 0, SEGMENT_BYTES) == SEGMENT_BYTES
    # The clock of the master went back: records before it are not taken for old ones.
    now[0] -= 100_000
    fill(master, 20)
    begin = overlap_start(log, None, 0)
    assert begin == 0


def _record_starts(store: Store) -> set[int]:
    return {stretch.base + int(at) for stretch in scan.walk(store._log, 0) for at in stretch.positions}


def test_without_a_settled_record_above_the_start_of_the_log_a_process_waits(replica: Store) -> None:
    log = replica._log
    log.segments.create(SEGMENT_BYTES)
    log.writing_page.appended_end = log.writing_page.flushed_end = SEGMENT_BYTES
    assert overlap_start(log, None, 0) is None
    assert overlap_start(log, None, SEGMENT_BYTES) == SEGMENT_BYTES
    assert overlap_start(log, SEGMENT_BYTES, 0) == SEGMENT_BYTES
    now = [0.0]
    settled = SettledEnd(lambda: now[0])
    settled.note(5)
    now[0] = 9.9
    settled.note(9)
    assert settled.end is None
    now[0] = 10.0
    assert settled.end == 5
    now[0] = 19.95
    assert settled.end == 9


# -- what stops it ----------------------------------------------------------------------------------------------------


def copied(tmp_path: Path, master: Store, ha: HAMaster) -> tuple[Path, int]:
    root = tmp_path / "replica"
    fill(master, 30)
    follower(root, ha).run(once=True)
    return root, master.log_range()[1]


def diverged(root: Path, ha: HAMaster, match: str, **given: Any) -> ReplicaDivergedError:
    before = {path: path.read_bytes() for path in root.glob("commitlog/*")}
    with pytest.raises(ReplicaDivergedError, match=match) as refused:
        follower(root, ha, **given).run()
    assert {path: path.read_bytes() for path in root.glob("commitlog/*")} == before
    return refused.value


def test_a_master_with_a_shorter_log_is_refused_with_the_ranges(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    root, end = copied(tmp_path, master, ha)
    shorter = FollowedMaster.of(ha, CONFIG)
    shorter.ends = LogEnds(0, end - 100)
    error = diverged(root, ha, f"ends at {end - 100}, the replica at {end}", master=shorter)
    assert (error.replica_range, error.master_range) == ((end - 100, end), (0, end - 100))


def test_a_master_that_has_deleted_what_comes_next_is_refused(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    root, end = copied(tmp_path, master, ha)
    later = FollowedMaster.of(ha, CONFIG)
    later.ends = LogEnds(4 * SEGMENT_BYTES, 5 * SEGMENT_BYTES)
    error = diverged(root, ha, f"deleted what comes next, bytes {end} to {4 * SEGMENT_BYTES}", master=later)
    assert error.master_range == (4 * SEGMENT_BYTES, 5 * SEGMENT_BYTES)


def test_other_bytes_at_the_same_offset_are_refused_and_a_resync_keeps_the_old_ones(
    tmp_path: Path, master: Store, ha: HAMaster
) -> None:
    root, end = copied(tmp_path, master, ha)
    fill(master, 5)

    def spoil(offset: int, data: bytes) -> bytes:
        at = end - 7 - offset + 12
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if 12 <= at < len(data) else data

    ha.spoil = spoil
    error = diverged(root, ha, "rmq follow --resync")
    assert error.replica_range == (end - 7, end)
    ha.spoil = lambda offset, data: data
    again = follower(root, ha)
    aside = again.resync()
    assert aside is not None
    again.run(once=True)
    is_copy(root, master)
    with Store.open(aside, read_only=True) as old:
        assert old.log_range() == (0, end)
        assert old.replica is not None


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\0" * 8 + b"\xff" * 4, "a transfer of -1 bytes"),
        (b"\0" * 8 + b"\x7f" + b"\xff" * 3, "a transfer of 2147483647 bytes"),
        (b"\xff" * 8 + b"\0" * 4, "a transfer of 0 bytes from offset -1"),
        (b"\0" * 7 + b"\x09" + b"\0\0\0\x04" + b"abcd", "from 9 on|bytes from 9"),
        (b"\0" * 7 + b"\x09" + b"\0\0\0\0", "will send from 9 on"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is this the HA port"),
    ],
)
def test_a_port_that_speaks_otherwise_is_refused_by_name(
    tmp_path: Path, master: Store, ha: HAMaster, header: bytes, reason: str
) -> None:
    fill(master, 3)
    ha.spoil = lambda offset, data: header
    with pytest.raises(MasterTransferError, match=reason):
        follower(tmp_path / "replica", ha).run()
    with Store.open(tmp_path / "replica", read_only=True) as replica:
        assert replica.log_range() == (0, 0)


def test_a_silent_master_is_left_and_once_says_so(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_connection, "SILENCE_S", 0.2)
    fill(master, 3)
    ha.spoil = lambda offset, data: b""
    with pytest.raises(RemotingError, match="no byte from the master"):
        follower(tmp_path / "replica", ha).run(once=True)


def test_another_broker_another_segment_size_and_a_store_of_its_own_are_refused(
    tmp_path: Path, master: Store, ha: HAMaster
) -> None:
    root, _ = copied(tmp_path, master, ha)
    other = FollowedMaster.of(ha, CONFIG)
    other.look = lambda: replace(FollowedMaster.look(other), broker="broker-b")  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="a replica of broker 'broker-a' of cluster 'DefaultCluster', and not of 'bro"):
        follower(root, ha, master=other).run(once=True)
    larger = FollowedMaster.of(ha, replace(CONFIG, mapped_file_size_commit_log=2 * SEGMENT_BYTES))
    with pytest.raises(UsageError, match="mappedFileSizeCommitLog=131072"):
        follower(root, ha, master=larger).run(once=True)
    with pytest.raises(UsageError, match="a store of its own"):
        follower(master.path, ha).run(once=True)
    with pytest.raises(UsageError, match="a store of its own"):
        follower(master.path, ha).resync()


def test_half_a_unit_at_the_end_of_the_master_waits_and_blocks_nobody(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(master, 5)
    before = master.log_range()[1]
    commit_unit(master, 1, 4)
    whole = master.log_range()
    half = [*sorted(_record_starts(master)), whole[1]][-3]
    monkeypatch.setattr(type(master), "log_range", lambda store: (0, half) if store is master else whole)
    progress = follower(tmp_path / "replica", ha).run(once=True)
    assert progress.end == before
    with Following(tmp_path / "replica", ha) as following:
        following.until(lambda progress: len(ha.reports) >= 4)
        monkeypatch.undo()
        following.until(lambda progress: progress.end == whole[1])


def test_offsets_are_written_behind_the_log_that_they_lie_in(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 30)
    asked = FollowedMaster.of(ha, replace(CONFIG, flush_interval_commit_log=10**9))
    with Following(tmp_path / "replica", ha, master=asked) as following:
        follower = following.follower
        following.until(lambda progress: follower._metadata is not None and follower._metadata.written_end is not None)
        assert follower._opened()._log.writing_page.flushed_end >= follower._metadata.written_end > 0


def test_a_master_that_sends_half_a_unit_and_falls_silent_blocks_neither_readers_nor_a_stop(
    tmp_path: Path, master: Store, ha: HAMaster
) -> None:
    fill(master, 5)
    before = master.log_range()[1]
    commit_unit(master, 1, 40)
    half = (before + master.log_range()[1]) // 2
    ha.spoil = lambda offset, data: data[: 12 + half] if offset <= 1 else b""
    root = tmp_path / "replica"
    with Following(root, ha) as following:
        following.until(lambda progress: progress.received_bytes >= half - 1 and progress.end == before)
        for _ in range(2):  # one that has just come, each time
            with Store.open(root, read_only=True) as reader:
                assert reader.log_range()[1] == before
                assert sum(high for _, high in reader.queue_ranges("Orders").values()) == 5
    with Store.open(root, read_only=True) as reader:
        assert reader.log_range()[1] == before
        assert not reader._log.segments.data_beyond(before)


def test_a_log_that_ends_inside_a_record_is_never_waited_for_without_end(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(master, 5)
    _, end = master.log_range()
    monkeypatch.setattr(type(master), "log_range", lambda store: (0, end - 9) if store is master else (0, 0))
    with pytest.raises(RemotingError, match="ends inside a record"):
        follower(tmp_path / "replica", ha).run(once=True)


def test_questions_that_are_not_answered_do_not_stop_the_feed(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "METADATA_S", 0.05)
    asked = FollowedMaster.of(ha, CONFIG)
    fill(master, 5)
    with Following(tmp_path / "replica", ha, master=asked) as following:
        following.until(lambda progress: progress.messages == 5)
        asked.lost = {21}
        time.sleep(0.2)
        fill(master, 5)
        following.until(lambda progress: progress.messages == 10)
        assert len(ha.reports) == 1
        asked.lost = set()
        asked.refused = {21: (16, "no rights")}
        with pytest.raises(AssertionError, match="no rights"):
            following.until(lambda progress: False)
        following.error = None


def test_a_slow_answer_does_not_delay_the_feed(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "METADATA_S", 0.02)
    asked, may_answer, is_asked = FollowedMaster.of(ha, CONFIG), threading.Event(), threading.Event()
    fill(master, 5)
    with Following(tmp_path / "replica", ha, master=asked) as following:
        following.until(lambda progress: progress.messages == 5)
        answered = asked.ask

        def slow(command: Any) -> Any:
            is_asked.set()
            assert may_answer.wait(30)
            return answered(command)

        monkeypatch.setattr(asked, "ask", slow)
        assert is_asked.wait(30)
        fill(master, 5)
        following.until(lambda progress: progress.messages == 10)
        asked.bodies = {**asked.bodies, 43: offsets(billing={0: 2})}
        assert OffsetTable(tmp_path / "replica").committed("billing") == {("Orders", 0): 1}
        may_answer.set()
        following.until(lambda progress: OffsetTable(tmp_path / "replica").committed("billing") == {("Orders", 0): 2})


def test_other_processes_are_told_how_far_it_is(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(master, 5)
    with Following(tmp_path / "replica", ha) as following:
        following.until(lambda progress: progress.messages == 5)
        following.until(lambda progress: (read_state(tmp_path / "replica") or FeederState()).is_connected)
        state = read_state(tmp_path / "replica")
        assert state is not None and state.reason == ""
    state = read_state(tmp_path / "replica")
    assert state is not None and not state.is_connected and state.reason == "the feeder has ended"
    assert state.master_end == master.log_range()[1] and state.heard_ms >= state.newest_ms > 0
    assert state.mean_bytes == master.log_range()[1] // 5


def test_settings_of_its_own_stay(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 5)
    follower(tmp_path / "replica", ha, settings={"file_reserved_time": 720}).run(once=True)
    follower(tmp_path / "replica", ha).run(once=True)
    with Store.open(tmp_path / "replica", read_only=True) as store:
        assert store.config.file_reserved_time == 720
    with pytest.raises(UsageError, match="cannot be changed"):
        follower(tmp_path / "replica", ha, settings={"mapped_file_size_commit_log": 1 << 20}).run(once=True)


def test_a_master_that_moved_is_where_the_replica_says_then(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 5)
    follower(tmp_path / "replica", ha).run(once=True)
    moved = HAMaster(master)
    asked = FollowedMaster.of(moved, CONFIG)
    asked.address = lambda: "10.0.0.8:10911"  # type: ignore[method-assign]
    asked.is_by_name = True
    follower(tmp_path / "replica", moved, master=asked).run(once=True)
    with Store.open(tmp_path / "replica", read_only=True) as store:
        assert store.replica is not None
        found = store.replica
    assert (found.address, found.ha_address, found.name_server) == ("10.0.0.8:10911", moved.address, "127.0.0.1:1")
    before = (tmp_path / "replica/pyrmq/store.json").stat().st_mtime_ns
    follower(tmp_path / "replica", moved, master=asked).run(once=True)
    assert (tmp_path / "replica/pyrmq/store.json").stat().st_mtime_ns == before, "it is where it was"
    moved.close()


def test_a_master_that_has_just_begun_is_asked_again_and_one_that_refuses_is_not(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its first seconds a broker answers 28 with code 1 and the name of an exception."""
    asked = FollowedMaster.of(ha, CONFIG)
    log_ends, codes = asked.log_ends, [(1, "java.util.NoSuchElementException")] * 2

    def beginning() -> Any:
        if codes:
            raise MQBrokerError(*codes.pop(), "broker-a")
        return log_ends()

    monkeypatch.setattr(asked, "log_ends", beginning)
    fill(master, 5)
    with Following(tmp_path / "replica", ha, master=asked) as following:
        following.until(lambda progress: progress.messages == 5)
    codes.append((1, "org.apache.rocketmq.acl.common.AclException: no"))
    with pytest.raises(MQBrokerError, match="AclException"):
        follower(tmp_path / "other", ha, master=asked).run()


def test_the_settled_time_is_longer_than_a_send_waits_for_a_slave() -> None:
    assert first_report.SETTLED_MS >= 2 * 5_000


def test_a_slave_never_reports_less_than_it_did_first(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    """Java's master looks at the last one of reports that come together, and 0 means its last segment."""
    with Following(tmp_path / "replica", ha, as_slave=True) as following:
        following.until(lambda progress: ha.heartbeats > 3)
        fill(master, 20)
        following.until(lambda progress: ha.acknowledged == master.log_range()[1])
    (reports,) = ha.reports  # and it waits at an empty master: nobody's send meets a slave that has just gone
    assert reports[0] == FROM_START
    assert reports == sorted(reports)


def test_a_slave_reports_nothing_that_the_connection_has_not_brought_again(
    tmp_path: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master takes what it has not sent yet for its own bytes; ours refuses the report, and the connection."""
    come: dict[int, int] = {}
    early: list[tuple[int, int]] = []
    transfers = ha_connection.HAConnection.transfers

    def watched(connection: ha_connection.HAConnection, wait_s: float) -> Iterator[tuple[int, memoryview]]:
        end = come.setdefault(id(connection), connection._reported)
        if connection._report() > end:
            early.append((connection._report(), end))
        for offset, data in transfers(connection, wait_s):
            come[id(connection)] = offset + len(data)
            yield offset, data

    def slowly(offset: int, data: bytes) -> bytes:
        time.sleep(0.03)
        return data

    fill(master, 400)
    with Following(tmp_path / "replica", ha, as_slave=True) as following:
        following.until(lambda progress: ha.acknowledged == master.log_range()[1])
    monkeypatch.setattr(ha_connection.HAConnection, "transfers", watched)
    ha.spoil = slowly
    with Following(tmp_path / "replica", ha, as_slave=True) as following:  # a process that has just started
        following.until(lambda progress: ha.reports[-1][-1:] == [master.log_range()[1]])
        ha.drop_after = 0  # and one whose connection ends
        fill(master, 1)
        following.until(lambda progress: len(ha.reports) > 3)
        ha.drop_after = None
        following.until(lambda progress: ha.reports[-1][-1:] == [master.log_range()[1]])
    assert not early
