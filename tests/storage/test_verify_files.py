"""What nobody can open, or what opens and is empty, must not be called clean: names that are no files, sizes, tables.

Each store here is a good one of ours, stopped cleanly, in which one thing was changed. What the engine says of it
stands beside what the verifier says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.errors import CorruptConfigError, CorruptionError, NotAStoreError, StoreError
from rmq_store.verify import Report, verify_store
from rmq_store.verify.tables import load

SEGMENT_BYTES = 8192
MESSAGES = 50
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=200, max_hash_slot_num=50,
    max_index_num=200,
)  # fmt: skip
TABLES = ("config/topics.json", "config/topics.json.bak")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of three segments."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 1)
        for number in range(MESSAGES):
            store.send(Message("Orders", bytes(300), keys=f"k{number}"))
        store.commit_offsets("billing", {("Orders", 0): 7})
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 3
    assert _verdict(tmp_path / "store") == ("clean", [])
    return tmp_path / "store"


def _verdict(root: Path) -> tuple[str, list[str]]:
    report = verify_store(root)
    return report.status, [problem.path for problem in report.problems]


def _texts(report: Report) -> str:
    return "\n".join(f"{problem.path}: {problem.text}" for problem in report.problems)


def _segment(number: int) -> str:
    return f"commitlog/{number * SEGMENT_BYTES:020d}"


# ---- names that are no regular files


def _link(path: Path) -> None:
    outside = path.parents[2] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def _dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[2] / "nowhere")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


PLANTS = pytest.mark.parametrize("plant", [_link, _dangling_link, _directory, _fifo])


@PLANTS
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_is_no_file_is_damage(root: Path, plant: Callable[[Path], None], number: int) -> None:
    """The link led to the file itself: verify followed it and said clean, and nobody could open the store."""
    plant(root / _segment(number))
    with pytest.raises(CorruptionError, match="expected a regular file"):
        Store.open(root, read_only=True)
    report = verify_store(root)
    assert report.status == "damaged"
    assert f"{_segment(number)}: a " in _texts(report)
    assert "put the file itself there" in _texts(report)
    assert {problem.path for problem in report.problems} == {_segment(number)}  # no noise of what lay in it
    assert (report.log_start, 0 < report.messages < MESSAGES) == (0, True)


@PLANTS
def test_a_queue_file_and_an_index_file_that_are_no_files_are_damage(root: Path, plant: Callable[[Path], None]) -> None:
    queue = sorted((root / "consumequeue" / "Orders" / "0").iterdir())[2]
    index = next((root / "index").iterdir())
    plant(queue)
    report = verify_store(root)
    assert f"{queue.relative_to(root)}: no file of a queue, but a " in _texts(report)
    (root.parent / "outside").unlink(missing_ok=True)
    plant(index)
    assert f"index/{index.name}: a " in _texts(verify_store(root))


def test_a_topic_behind_a_link_is_not_entered(root: Path) -> None:
    shutil.move(root / "consumequeue" / "Orders", root.parent / "outside")
    (root / "consumequeue" / "Orders").symlink_to(root.parent / "outside")
    report = verify_store(root)
    assert (report.status, report.queue_entries) == ("damaged", 0)
    assert "consumequeue/Orders: no directory of a topic" in _texts(report)


@pytest.mark.parametrize("name", ["commitlog", "config", "pyrmq"])
def test_a_directory_of_the_writers_that_is_a_link_is_damage_and_looked_into(root: Path, name: str) -> None:
    """Readers go there, so what lies there is checked; writers refuse."""
    shutil.move(root / name, root.parent / "outside")
    (root / name).symlink_to(root.parent / "outside")
    Store.open(root, read_only=True).close()
    with pytest.raises(NotAStoreError, match="symbolic link"):
        Store.open(root)
    assert _verdict(root) == ("damaged", [name])
    assert verify_store(root).messages == MESSAGES


@pytest.mark.parametrize("name", ["lock", "pyrmq/state", "pyrmq/progress", "pyrmq/store.json", "config/topics.json"])
def test_a_file_of_the_writers_that_is_a_link_is_damage(root: Path, name: str) -> None:
    shutil.move(root / name, root.parent / "outside")
    (root / name).symlink_to(root.parent / "outside")
    with pytest.raises(StoreError):
        Store.open(root)
    assert f"{name}: a symbolic link" in _texts(verify_store(root))


# ---- what else lies in commitlog/


def test_a_directory_in_the_log_is_passed_over_by_all_but_old_brokers(root: Path) -> None:
    """`lost+found`, where a disk is mounted. MappedFileQueue#doLoad: since 5.0 `if (file.isDirectory()) continue`."""
    (root / "commitlog" / "lost+found").mkdir()
    Store.open(root).close()
    report = verify_store(root)
    assert (report.status, report.problems) == ("clean", [])
    assert "commitlog/lost+found: a directory" in report.notes[0]


@pytest.mark.parametrize("name", ["notes.txt", "123", f"{SEGMENT_BYTES}", "9" * 20])
def test_a_file_that_is_no_segment_is_damage_whatever_its_name(root: Path, name: str) -> None:
    (root / "commitlog" / name).write_bytes(bytes(SEGMENT_BYTES))
    assert _verdict(root) == ("damaged", [f"commitlog/{name}"])


def test_a_segment_far_away_costs_no_time(root: Path) -> None:
    """Ten to the eighteen bytes are missing in between: they were named segment by segment."""
    far = SEGMENT_BYTES * 10**14
    (root / _segment(2)).rename(root / "commitlog" / f"{far:020d}")
    report = verify_store(root)
    assert (report.status, len(report.bad_ranges)) == ("damaged", 100)
    assert report.bad_ranges[0][1:3] == (2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)


# ---- sizes


def test_an_empty_first_segment_is_named(root: Path) -> None:
    """It was divided by its size."""
    (root / _segment(0)).write_bytes(b"")
    with pytest.raises(CorruptionError, match="0 bytes"):
        Store.open(root)
    report = verify_store(root)
    text = f"{_segment(0)}: 0 bytes in a file named 0, segments of this store have {SEGMENT_BYTES}"
    assert _texts(report).startswith(f"{text}; lost with it: message 0 of Orders-0, message 1 of Orders-0")
    assert 0 < report.messages < MESSAGES


@pytest.mark.parametrize(
    "sizes", [(5000, None, None), (None, None, 5000), (5000, 6000, None), (2 * SEGMENT_BYTES, None, None)]
)
@pytest.mark.parametrize("known", [True, False])
def test_the_size_that_all_should_have_is_not_that_of_the_first(
    root: Path, sizes: tuple[int | None, ...], known: bool
) -> None:
    for number, size in enumerate(sizes):
        if size is not None:
            os.truncate(root / _segment(number), size)
    if not known:
        (root / "pyrmq" / "store.json").unlink()
    wrong = [problem for problem in verify_store(root).problems if "segments of this store have" in problem.text]
    assert [problem.path for problem in wrong] == [_segment(n) for n, size in enumerate(sizes) if size is not None]
    assert all(problem.text.endswith(f"have {SEGMENT_BYTES}") for problem in wrong)


def test_a_lone_segment_that_was_cut_behind_the_log_is_told_by_store_json(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.send(Message("Orders", b"x"))
    os.truncate(tmp_path / "store" / _segment(0), 5000)
    with pytest.raises(CorruptionError):
        Store.open(tmp_path / "store")
    assert _verdict(tmp_path / "store") == ("damaged", [_segment(0)])


@pytest.mark.parametrize("unclean", [False, True])
def test_a_lone_empty_segment_is_a_log_that_was_being_made(tmp_path: Path, unclean: bool) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / _segment(0)).touch()
    if unclean:
        (tmp_path / "abort").touch()
    report = verify_store(tmp_path)
    assert (report.status, report.log_end) == ("unclean" if unclean else "clean", 0)
    Store.open(tmp_path, config=CONFIG).close()


def test_two_empty_segments_are_damage(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / _segment(0)).touch()
    (tmp_path / _segment(1)).touch()
    assert _verdict(tmp_path) == ("damaged", [_segment(0)])


# ---- tables and settings


@pytest.mark.parametrize("garbage", [b"{garbage", b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"a":NaN}'])
def test_a_table_of_which_both_copies_are_bad_is_damage(root: Path, garbage: bytes) -> None:
    """The store cannot be opened, and verify said clean; of an empty one nobody sees a topic."""
    for name in TABLES:
        (root / name).write_bytes(garbage)
    assert _verdict(root) == ("damaged", [TABLES[0]])
    if garbage:
        with pytest.raises(CorruptConfigError):
            Store.open(root)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_one_good_copy_is_a_note(root: Path, name: str) -> None:
    with Store.open(root) as store:
        store.create_topic("Bills", 1)  # the backup knows Orders
    (root / name).write_bytes(b"{garbage")
    Store.open(root, read_only=True).close()
    report = verify_store(root)
    assert report.status == "clean"
    assert report.notes[0].startswith(f"{name}: no JSON")


def test_lost_topics_are_damage_while_there_are_queues(root: Path) -> None:
    for name in TABLES:
        (root / name).unlink()
    assert verify_store(root).status == "damaged"
    assert "config/topics.json: missing" in _texts(verify_store(root))
    (root / "lock").write_bytes(b"lock")
    assert "config/topics.json: missing" in _texts(verify_store(root))
    shutil.rmtree(root / "config")  # a broker may keep its tables elsewhere
    report = verify_store(root)
    assert "missing" not in _texts(report)
    assert report.notes[0].startswith("config/topics.json: missing")


@pytest.mark.parametrize("content", [b"{garbage", b"", b"{}", b'{"format":1,"identity":"x"}', b"[]"])
def test_settings_that_cannot_be_read_are_damage(root: Path, content: bytes) -> None:
    (root / "pyrmq" / "store.json").write_bytes(content)
    with pytest.raises(CorruptConfigError):
        Store.open(root)
    assert _verdict(root) == ("damaged", ["pyrmq/store.json"])


def test_settings_of_a_newer_version_are_no_damage(root: Path) -> None:
    (root / "pyrmq" / "store.json").write_bytes(b'{"format":2}')
    assert verify_store(root).status == "clean"


def test_integer_keys_without_quotes_are_a_table(tmp_path: Path) -> None:
    text = r'{"offsetTable":{"a@b":{0:33,1:32 , -2 : 1},"say \"{3:4}\"":{ 5:6}},"text":",7:"}'
    (tmp_path / "t.json").write_text(text)
    assert load(tmp_path / "t.json") == {
        "offsetTable": {"a@b": {"0": 33, "1": 32, "-2": 1}, 'say "{3:4}"': {"5": 6}}, "text": ",7:",
    }  # fmt: skip
    for bad in ('{"a', '{"' + '\\"' * 200_000, "{" * 200_000, "{0:" * 50_000):
        (tmp_path / "t.json").write_text(bad)
        assert isinstance(load(tmp_path / "t.json"), str)


# ---- names that are no text


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_name_that_is_no_utf8_is_printed_as_text(root: Path, arguments: list[str]) -> None:
    """It was an UnicodeEncodeError, or bytes that nobody could decode."""
    (root / "commitlog" / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"")
    result = CliRunner().invoke(commands, ["verify", "--store", str(root), *arguments])
    assert result.exit_code == 1, result.output
    assert "commitlog/caf\\udce9.txt" in result.stdout_bytes.decode()
    if arguments:
        (problem,) = json.loads(result.stdout_bytes)["problems"]
        assert os.fsencode(problem["path"]) == b"commitlog/caf\xe9.txt"
