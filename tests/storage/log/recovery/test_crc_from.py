"""From where on a record without a checksum is damage: properties that were destroyed together with the name of the
checksum behind them look like those of a record that never had one, and a broker writes such records (docs/design.md
section 8.2).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Store, backup
from rmq_store.errors import CorruptRecordError
from rmq_store.verify import verify_store

if TYPE_CHECKING:
    from .conftest import Lab

_MARGIN = 1024  # of a record at most


def _crc_from(lab: Lab) -> int | None:
    with lab.open() as store:
        known = store._log.progress.load()
    assert known is not None
    return known[0].crc_from


def _write(lab: Lab, count: int) -> None:
    lab.crash(lambda store: (store.append(lab.batch(count)), store.flush()))
    lab.written += count


def _destroy_properties(lab: Lab, offset: int, root: Path | None = None) -> None:
    """Overwrite what lies behind the topic of the record at `offset`, the name of the checksum included."""
    path = (root or lab.root) / "commitlog" / f"{offset // 8192 * 8192:020d}"
    with path.open("r+b") as file:
        file.seek(offset % 8192)
        frame = file.read(_MARGIN)
        frame = frame[: int.from_bytes(frame[:4], "big")]
        start = max(frame.find(b"\x05Alpha"), frame.find(b"\x04Beta") - 1) + 6 + 2
        file.seek(offset % 8192 + start)
        file.write(b"~" * (len(frame) - start))


def _is_refused(lab: Lab, start: int, end: int) -> bool:
    """Whether recovery, which reads the whole log, finds that damage, and the verifier with it."""
    report = lab.verify()
    # At the end of the log the verifier cannot know whether it was on disk.
    known = [(bad.start, bad.end) for bad in report.bad_ranges] == [(start, end)]
    known |= any("record CRC is missing" in text for text in [*report.recovery, *(p.text for p in report.problems)])
    shutil.rmtree(lab.root / "index")
    with pytest.raises(CorruptRecordError) as caught:
        lab.open()
    return known and caught.value.offset == start


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("victim", [3, -1], ids=["middle", "newest"])
def test_a_record_of_ours_that_lost_properties_and_checksum_is_damaged(lab: Lab, clean: bool, victim: int) -> None:
    _write(lab, 8)
    lab.reboot()
    if clean:
        assert _crc_from(lab) == 0
    with lab.open(read_only=True) as reader:
        end = reader.log_range()[1]
    starts = [*lab.boundaries(0, end), end]
    number = victim % 8
    _destroy_properties(lab, starts[number])
    assert _is_refused(lab, starts[number], starts[number + 1])
    with lab.open(on_corruption="keep") as store:
        assert store.recovery is not None
        assert [(bad.start, bad.end) for bad in store.recovery.bad_ranges] == [(starts[number], starts[number + 1])]
    report = lab.verify()
    assert (report.status, report.messages) == ("kept", 7)


def test_the_newest_record_is_looked_at_even_after_a_clean_stop(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(4))
        end = store.log_range()[1]
    newest = lab.boundaries(0, end)[-1]
    _destroy_properties(lab, newest)
    with pytest.raises(CorruptRecordError) as caught:
        lab.open()
    assert caught.value.offset == newest


@pytest.mark.parametrize("abort", [False, True], ids=["stopped", "killed"])
def test_records_of_a_broker_need_no_checksum_and_ours_behind_them_do(lab: Lab, abort: bool) -> None:
    _write(lab, 3)
    lab.config = replace(lab.config, enabled_append_prop_crc=False)
    _write(lab, 3)  # in a broker's stead
    lab.broker_was_here(abort=abort)
    lab.config = replace(lab.config, enabled_append_prop_crc=True)
    assert lab.verify().problems == []
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(6))
        end = reader.log_range()[1]
    assert _crc_from(lab) == end
    _write(lab, 3)
    lab.reboot()
    shutil.rmtree(lab.root / "index")
    with lab.open() as store:  # the whole log was read
        assert lab.numbers(store) == list(range(9))
        last = store.log_range()[1]
    assert lab.verify().status == "clean"
    starts = lab.boundaries(0, last)
    _destroy_properties(lab, starts[7])
    assert _is_refused(lab, starts[7], starts[8])


def test_nothing_is_believed_of_what_was_known_before_a_broker_was_here(lab: Lab) -> None:
    _write(lab, 3)
    lab.reboot()
    with lab.open() as store:
        end = store.log_range()[1]
    lab.broker_was_here()
    starts = lab.boundaries(0, end)
    _destroy_properties(lab, starts[1])
    assert lab.verify().bad_ranges == []
    assert _crc_from(lab) == end


def test_a_store_that_was_told_to_write_no_checksums_asks_for_none(lab: Lab) -> None:
    _write(lab, 3)
    lab.config = replace(lab.config, enabled_append_prop_crc=False)
    _write(lab, 3)
    lab.reboot()
    assert _crc_from(lab) is None
    assert lab.verify().status == "clean"
    lab.config = replace(lab.config, enabled_append_prop_crc=True)
    with lab.open() as store:
        end = store.log_range()[1]
    assert _crc_from(lab) == end


def test_a_store_that_does_not_say_asks_from_its_durable_point_on(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    (lab.root / "pyrmq" / "progress").unlink()
    crc_from = _crc_from(lab)
    assert crc_from is not None
    assert crc_from > 0
    assert _crc_from(lab) == crc_from
    assert lab.verify().status == "clean"


def test_every_writer_of_the_progress_record_hands_on_what_it_says(lab: Lab) -> None:
    with lab.open() as first:
        first.append(lab.batch(3))
        with lab.open() as second:
            second.append(lab.batch(3))
            second.flush()
        assert (first._log.progress.load() or [None])[0].crc_from == 0  # type: ignore[union-attr]
    assert _crc_from(lab) == 0


def test_a_backup_knows_it_too_and_checks_it(lab: Lab, tmp_path: Path) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
        end = store.log_range()[1]
    backup(lab.root, tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copied:
        known = copied._log.progress.load()
    assert known is not None
    assert known[0].crc_from == 0
    victim = lab.boundaries(0, end)[2]
    _destroy_properties(lab, victim, tmp_path / "copy")
    assert [bad.start for bad in verify_store(tmp_path / "copy").bad_ranges] == [victim]
    _destroy_properties(lab, victim)
    with pytest.raises(CorruptRecordError):
        backup(lab.root, tmp_path / "second")
