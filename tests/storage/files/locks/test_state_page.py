"""The state page: words that other processes see whole, and when they are to be believed."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest

from rmq_store.files import durable
from rmq_store.files.locks import state_page
from rmq_store.files.locks.state_page import STATE_BYTES, STATE_MAGIC, WORDS, StatePage
from rmq_store.format.bytes import native


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def words(path: Path) -> dict[str, int]:
    return dict(zip(WORDS, struct.unpack_from(f"<{len(WORDS)}q", path.read_bytes()), strict=True))


def test_the_table_of_the_module_names_every_word_in_its_place() -> None:
    rows = re.findall(r"^    (\d+) +(\w+)", state_page.__doc__ or "", re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == list(enumerate(WORDS))


def test_a_new_page_is_zeros_and_counts_for_nothing(path: Path) -> None:
    page = StatePage(path, writable=True)
    assert path.read_bytes() == bytes(STATE_BYTES)
    assert not page.counts()
    assert not page.belongs_here()
    assert page.intent is None


def test_a_published_page_counts_in_every_map_of_it(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 50, 80, 12345)
    for seen in (page, StatePage(path, writable=False)):
        assert seen.counts()
        assert (seen.appended_end, seen.flushed_end, seen.last_record, seen.store_timestamp) == (100, 50, 80, 12345)
        assert (seen.poison, seen.flushing, seen.intent) == (0, 0, None)
    page.appended_end = 200
    assert seen.appended_end == 200
    assert words(path)["appended_end"] == 200


@pytest.mark.parametrize(
    "wrong",
    [{"flushed_end": 101}, {"flushed_end": -1}, {"appended_end": 49}, {"intent_start": 99, "intent_end": 101}],
    ids=str,
)
def test_a_page_whose_ends_contradict_each_other_is_not_believed(path: Path, wrong: dict[str, int]) -> None:
    """One flipped bit of it would take back acknowledged messages."""
    page = StatePage(path, writable=True)
    page.publish(100, 50, 80, 0)
    page.declare(100, 120, 0, bytes(40))
    assert page.counts()
    for name, value in wrong.items():
        setattr(page, name, value)
    assert not page.counts()
    assert not page.belongs_here()


def test_a_retracted_page_counts_no_more(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 50, 80, 0)
    page.retract()
    assert not page.counts()
    assert not page.belongs_here()


def test_a_page_of_another_boot_belongs_here_but_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StatePage(path, writable=True).publish(100, 50, 80, 0)
    monkeypatch.setattr(state_page, "boot_id", lambda: b"another boot id.")
    page = StatePage(path, writable=False)
    assert page.belongs_here()
    assert not page.counts()


def test_a_copied_page_does_not_belong_here(path: Path, tmp_path: Path) -> None:
    StatePage(path, writable=True).publish(100, 50, 80, 0)
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    assert not StatePage(copy, writable=False).belongs_here()


@pytest.mark.parametrize("word", ["device", "inode"])
def test_device_and_inode_both_identify_a_page(path: Path, word: str) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 50, 80, 0)
    page._words[WORDS.index(word)] += 1
    assert not page.belongs_here()


def test_the_magic_is_written_last(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = StatePage(path, writable=True)
    order = []

    class Recorder:
        def __setitem__(self, number: int, value: int) -> None:
            order.append(number)

    page._words = Recorder()  # type: ignore[assignment]
    page.publish(1, 1, 0, 1)
    kept = {WORDS.index("open_waiting"), WORDS.index("open_looked")}
    assert order == [*(number for number in range(1, len(WORDS)) if number not in kept), 0]


def test_publishing_forgets_nobody_who_waits_to_open(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.open_futex().announce()
    page.publish(100, 100, 80, 0)
    assert page._words[WORDS.index("open_waiting")] == 1


def test_the_role_stays_whoever_opens_the_store_and_what_slaves_have_does_not(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 100, 80, 0)
    assert (page.broker_role, page.slowest_end) == (0, -1)
    page.broker_role, page.in_sync_replicas, page.slave_timeout = 1, 2, 3000
    page.slave_count, page.replicated_end, page.slowest_end = 1, 100, 90
    page.retract()
    page.publish(90, 90, 80, 0)
    assert (page.broker_role, page.in_sync_replicas, page.slave_timeout) == (1, 2, 3000)
    assert (page.slave_count, page.replicated_end, page.slowest_end) == (0, 0, -1)


def test_a_copy_has_no_role(path: Path, tmp_path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 100, 80, 0)
    page.broker_role = 1
    copy = Path(shutil.copy(path, tmp_path / "copy"))
    copied = StatePage(copy, writable=True)
    copied.publish(100, 100, 80, 0)
    assert copied.broker_role == 0


def test_publishing_again_never_shows_a_smaller_end_in_between(path: Path) -> None:
    """A reader that outlived all writers asks `counts`, is stopped, and only then loads the end."""
    page = StatePage(path, writable=True)
    page.publish(100, 100, 80, 0)
    seen = []
    real = page._words

    class Watcher:
        def __setitem__(self, number: int, value: int) -> None:
            real[number] = value
            seen.append(int(real[WORDS.index("appended_end")]))

    page._words = Watcher()  # type: ignore[assignment]
    page.publish(100, 100, 80, 0)
    assert set(seen) == {100}


def test_publishing_forgets_poison_and_intent(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 100, 80, 0)
    page.poison = page.flushing = 1
    page.declare(100, 200, 7, bytes(40))
    page.publish(100, 100, 80, 0)
    assert (page.poison, page.flushing, page.intent, page.index_file) == (0, 0, None, 0)


def test_an_intent_counts_until_its_end_is_the_end_of_the_log(path: Path) -> None:
    page = StatePage(path, writable=True)
    page.publish(100, 100, 80, 0)
    header = bytes(range(200, 240))
    page.declare(100, 300, 20230101000000000, header)
    assert page.intent == (100, 300)
    assert (page.index_file, page.index_header) == (20230101000000000, header)
    page.appended_end = 300
    assert page.intent is None
    page.declare(300, 400, 1, header)
    page.intent_end = 0
    assert page.intent is None


def test_a_reader_neither_creates_nor_changes_a_page(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StatePage(path, writable=False)
    assert not path.exists()
    path.write_bytes(b"short")
    with pytest.raises(FileNotFoundError):
        StatePage(path, writable=False)
    assert path.read_bytes() == b"short"
    StatePage(path, writable=True)
    page = StatePage(path, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        page.poison = 1


def test_a_full_disk_shows_when_the_page_is_made_and_not_as_a_fault_later(path: Path) -> None:
    operations = []
    durable.hook = lambda operation, where: operations.append(operation)
    try:
        StatePage(path, writable=True)
    finally:
        durable.hook = None
    assert operations == ["open", "allocate"]
    assert path.stat().st_blocks * 512 >= STATE_BYTES


def test_the_magic_reads_as_text(path: Path) -> None:
    StatePage(path, writable=True).publish(0, 0, -1, 0)
    assert path.read_bytes()[:8] == b"pyrmqst1"
    assert words(path)["magic"] == STATE_MAGIC


@pytest.mark.parametrize("word", ["appended_end", "intent_end", "flushed_end", "store_timestamp"])
def test_a_word_is_stored_behind_a_fence_and_loaded_before_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """On ARM another process would otherwise see the end of an append before its record."""
    page = StatePage(path, writable=True)
    steps: list[str] = []

    class Recorder:
        def __setitem__(self, number: int, value: int) -> None:
            steps.append("store")

        def __getitem__(self, number: int) -> int:
            steps.append("load")
            return 1

    monkeypatch.setattr(native, "release_fence", lambda: steps.append("release"))
    monkeypatch.setattr(native, "acquire_fence", lambda: steps.append("acquire"))
    page._words = page._loads = Recorder()  # type: ignore[assignment]
    setattr(page, word, 1)
    assert getattr(page, word) == 1
    assert steps == ["release", "store", "load", "acquire"]


def test_the_magic_is_stored_behind_a_fence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = StatePage(path, writable=True)
    magics: list[int] = []
    monkeypatch.setattr(native, "release_fence", lambda: magics.append(int(page._words[0])))
    page.publish(100, 50, 80, 0)
    assert magics == [0] and page.belongs_here()


def test_an_intent_counts_only_behind_its_index_header(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the header is stored by a fence of its own, before the header, which is many words."""
    page = StatePage(path, writable=True)
    steps: list[tuple[int, bytes, int]] = []
    monkeypatch.setattr(
        native, "release_fence", lambda: steps.append((page.index_file, page.index_header[:1], page.intent_end))
    )
    page.declare(100, 200, 7, b"h" * 40)
    assert steps[:2] == [(0, b"\0", 0), (7, b"\0", 0)]
    assert steps[-1] == (7, b"h", 0) and page.intent_end == 200


def test_words_behind_the_magic_are_loaded_behind_a_fence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = StatePage(path, writable=True)
    fences: list[str] = []
    monkeypatch.setattr(native, "acquire_fence", lambda: fences.append("acquire"))
    assert not page.belongs_here() and fences == [], "nothing behind it is looked at"
    page.publish(100, 50, 80, 0)
    monkeypatch.setattr(page, "_is_possible", lambda: fences == ["acquire"])
    assert page.belongs_here()


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_the_fences_are_those_of_the_extension() -> None:
    assert native.release_fence is native.functions.release_fence
    assert native.acquire_fence is native.functions.acquire_fence
