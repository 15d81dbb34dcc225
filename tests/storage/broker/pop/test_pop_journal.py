"""The journal of pops: what a killed writer leaves of it, and what others make of that."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from rmq_store.broker.pop import pop_journal
from rmq_store.broker.pop.pop_journal import RECORD_BYTES, PopJournal
from rmq_store.broker.pop.pop_state import Acknowledged, InFlight, MovingToDlq, PopState, Position
from rmq_store.errors import CorruptConfigError, StoreFullError
from rmq_store.files import durable

BIG = (1 << 63) - 1
FIRST = [
    Position(0, 3, 100, 1_700_000_000_000, -1, 0),
    InFlight(0, 1, 1, 1, 40, 1_700_000_000_000, 30),
    InFlight(0, 2, 2, 7, 70, 1_700_000_000_000, 1 << 50, BIG),
]
SECOND = [
    Acknowledged(0, 1),
    MovingToDlq(0, 2, 5),
    Position(3, BIG, BIG, BIG, BIG, BIG),
    InFlight(3, BIG, 17, 1 << 30, BIG, BIG - 1, 1),
]


def journal(tmp_path: Path) -> PopJournal:
    (tmp_path / "pyrmq").mkdir(exist_ok=True)
    return PopJournal(tmp_path / "pyrmq" / "pop" / "g" / "t", sync=False)


def state_of(state: PopState) -> list[object]:
    return sorted(state.snapshot(), key=repr)


def look(tmp_path: Path) -> list[object]:
    other = journal(tmp_path)
    with other.exclusive() as state:
        return state_of(state)


def test_another_process_sees_what_was_appended(tmp_path: Path) -> None:
    own = journal(tmp_path)
    assert not own.exists()
    with own.exclusive():
        own.append(FIRST)
        own.append(SECOND)
    assert own.exists()
    expected = sorted([FIRST[0], FIRST[2], *SECOND[1:]], key=repr)
    assert state_of(own.state) == look(tmp_path) == expected


def test_both_follow_each_other(tmp_path: Path) -> None:
    one, two = journal(tmp_path), journal(tmp_path)
    with one.exclusive():
        one.append(FIRST)
    with two.exclusive():
        two.append(SECOND)
    with one.exclusive() as state:
        assert state_of(state) == state_of(two.state)


@pytest.mark.parametrize("left_bytes", range(0, 4 * RECORD_BYTES, 13))
def test_an_append_that_was_not_finished_counts_for_nothing(tmp_path: Path, left_bytes: int) -> None:
    own = journal(tmp_path)
    with own.exclusive():
        own.append(FIRST)
        before, size = state_of(own.state), own.path.stat().st_size
        own.append(SECOND)
    os.truncate(own.path, size + left_bytes)
    other = journal(tmp_path)
    with other.exclusive() as state:
        assert state_of(state) == before
        assert own.path.stat().st_size == size, "what was left must not stand behind the next append"
        other.append([Acknowledged(0, 2)])
    assert look(tmp_path) == [InFlight(0, 1, 1, 1, 40, 1_700_000_000_000, 30), FIRST[0]]


@pytest.mark.parametrize("damaged", range(0, 4 * RECORD_BYTES, 31))
def test_a_damaged_change_ends_the_journal_before_its_append(tmp_path: Path, damaged: int) -> None:
    own = journal(tmp_path)
    with own.exclusive():
        own.append(FIRST)
        before, size = state_of(own.state), own.path.stat().st_size
        own.append(SECOND)
    content = bytearray(own.path.read_bytes())
    content[size + damaged] ^= 1
    own.path.write_bytes(content)
    assert look(tmp_path) == before


def test_an_append_that_failed_half_way_is_found_out_by_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = journal(tmp_path)
    with own.exclusive():
        own.append(FIRST)
        before = state_of(own.state)

    def tear(fd: int, data: bytes, offset: int, path: Path) -> None:
        os.pwrite(fd, data[: 2 * RECORD_BYTES + 5], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, own.exclusive():
        patched.setattr(durable, "write_fully", tear)
        with pytest.raises(StoreFullError):
            own.append(SECOND)
        assert state_of(own.state) == before
    with own.exclusive() as state:
        assert state_of(state) == before
        own.append([Acknowledged(0, 1)])
    assert look(tmp_path) == [FIRST[2], FIRST[0]]


def test_history_is_left_behind_and_others_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_journal, "COMPACT_BYTES", 20 * RECORD_BYTES)
    own, other = journal(tmp_path), journal(tmp_path)
    with own.exclusive():
        own.append([*FIRST, MovingToDlq(0, 1, 9)])
    with other.exclusive():
        pass
    sizes = []
    for number in range(100):
        with own.exclusive():
            own.append([InFlight(1, number, 1, 1, number, 5, 5)])
            own.append([Acknowledged(1, number)])
        sizes.append(own.path.stat().st_size)
    assert max(sizes) <= 24 * RECORD_BYTES
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert look(tmp_path) == state_of(own.state) == sorted([*FIRST, MovingToDlq(0, 1, 9)], key=repr)
    with other.exclusive() as state:
        assert state_of(state) == state_of(own.state)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    own = journal(tmp_path)
    with own.exclusive():
        own.append(FIRST)
    content = b"x" + own.path.read_bytes()[1:]
    own.path.write_bytes(content)
    with pytest.raises(CorruptConfigError, match="not the journal"), journal(tmp_path).exclusive():
        pass
    assert own.path.read_bytes() == content


def test_a_journal_that_was_removed_begins_anew(tmp_path: Path) -> None:
    own = journal(tmp_path)
    with own.exclusive():
        own.append(FIRST)
    own.path.unlink()
    with own.exclusive() as state:
        assert state_of(state) == []
        own.append([FIRST[1]])
    assert look(tmp_path) == [FIRST[1]]


def test_a_reset_lets_go_of_a_queues_messages_only(tmp_path: Path) -> None:
    state = PopState()
    for change in (*FIRST, InFlight(1, 0, 1, 1, 5, 5, 5), Position(1, 1, 5, 5, -1, 0)):
        state.apply(change)
    state.apply(Position(0, 0, -1, -1, 0, 0, is_reset=True))
    assert state.get((0, 1)) is None
    assert (state.count(0), state.count(1)) == (0, 1)
    assert (state.smallest_unfinished(0), state.smallest_unfinished(1)) == (0, 0)
    assert state.visible(1 << 60, 10) == [InFlight(1, 0, 1, 1, 5, 5, 5)]


def test_messages_come_back_in_the_order_of_their_times_and_may_be_asked_for_twice() -> None:
    state = PopState()
    for offset, (popped, hidden) in enumerate([(5, 25), (5, 5), (5, 15), (8, 2)]):
        state.apply(InFlight(0, offset, 1, 1, 0, popped, hidden))
    state.apply(InFlight(0, 0, 1, 2, 0, 6, 24))  # hidden anew until the same moment
    state.apply(InFlight(0, 2, 1, 2, 0, 6, 100))
    for _ in range(2):
        assert [message.queue_offset for message in state.visible(30, 10)] == [1, 3, 0]
        assert [message.queue_offset for message in state.visible(30, 1)] == [1]
        assert [message.queue_offset for message in state.visible(29, 10)] == [1, 3]
