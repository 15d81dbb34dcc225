"""A log in several directories, as storePathCommitLog=/a,/b makes it: their union is read, and nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import CorruptionError, Message, NotAStoreError, ReadOnlyError, Store, StoreConfig, UsageError
from rmq_store.cli import commands
from rmq_store.files.segments.spread_log import parse_paths

MESSAGES = 60


@pytest.fixture
def spread(scratch: Path, tiny: StoreConfig) -> Path:
    """The store of a broker, its segments in `a` and `b` by turns (MultiPathMappedFileQueue#tryCreateMappedFile)."""
    root = scratch / "store"
    with Store.open(root, create=True, config=replace(tiny, enabled_append_prop_crc=False)) as store:
        store.create_topic("T", queue_count=1)
        for number in range(MESSAGES):
            store.send(Message("T", b"%d" % number + bytes(1000), keys=f"k{number}", queue_id=0))
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        directory = scratch / "ab"[number % 2]
        directory.mkdir(exist_ok=True)
        path.rename(directory / path.name)
    (root / "commitlog").rmdir()
    assert min(len(list((scratch / name).iterdir())) for name in "ab") > 1
    return root


def paths(scratch: Path, names: str = "ab") -> str:
    return ",".join(str(scratch / name) for name in names)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_lies_in_several_directories_is_one_log(
    spread: Path, scratch: Path, order: str, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(scratch)
    with Store.open(spread, read_only=True, commit_log_paths=paths(scratch, order)) as store:
        assert store.queue_range("T", 0) == (0, MESSAGES)
        rows = [row for batch in store.read("T", 0, 0, MESSAGES) for row in batch.to_pylist()]
        assert [row["body"].rstrip(b"\0") for row in rows] == [b"%d" % number for number in range(MESSAGES)]
        assert [found.queue_offset for found in store.query.by_key("T", "k41")] == [41]
        assert store.log_range()[0] == 0
        store.refresh()
    assert tree_hash(scratch) == before


def test_commands_that_only_read_find_the_log_by_the_environment(spread: Path, scratch: Path) -> None:
    run, arguments = CliRunner(), ["read", "T", "--from", "41", "--max", "1", "--json", "--store", str(spread)]
    found = run.invoke(commands, arguments, env={"RMQ_STORE_PATH_COMMIT_LOG": paths(scratch)})
    assert (found.exit_code, json.loads(found.stdout)["keys"]) == (0, "k41")
    lost = run.invoke(commands, arguments, env={"RMQ_STORE_PATH_COMMIT_LOG": None})
    assert (lost.exit_code, "RMQ_STORE_PATH_COMMIT_LOG" in lost.stderr) == (2, True)


def test_a_segment_that_comes_while_the_log_is_read_is_seen(spread: Path, scratch: Path) -> None:
    newest = max(scratch.glob("[ab]/0*"), key=lambda path: path.name)
    moved = newest.rename(scratch / newest.name)
    with Store.open(spread, read_only=True, commit_log_paths=paths(scratch)) as store:
        assert 0 < store.queue_range("T", 0).max_offset < MESSAGES
        moved.rename(newest)
        store.refresh()
        assert store.queue_range("T", 0).max_offset == MESSAGES


def test_one_directory_elsewhere_is_a_log_too(spread: Path, scratch: Path) -> None:
    for path in list((scratch / "b").iterdir()):
        path.rename(scratch / "a" / path.name)
    with Store.open(spread, read_only=True, commit_log_paths=paths(scratch, "a")) as store:
        assert store.queue_range("T", 0) == (0, MESSAGES)


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        (
            "a path is left out",
            CorruptionError,
            "00000000000000016384 of the log is in none of 1 paths: name all paths",
        ),
        ("a file is lost", CorruptionError, "00000000000000016384 of the log is in none of 2 paths: name all paths"),
        ("a file is there twice", CorruptionError, "this segment is in .*/b as well"),
        ("a disk is not mounted", UsageError, "/c is no directory; is its disk mounted"),
        ("files of two sizes", CorruptionError, "those of another path 16384"),
        ("no store", NotAStoreError, "no config/"),
    ],
)
def test_a_log_that_is_not_whole_is_refused_by_name(
    spread: Path, scratch: Path, what: str, error: type[Exception], text: str
) -> None:
    names, root = "ab", spread
    if what == "a path is left out":
        names = "a"
    elif what == "a file is lost":
        min((scratch / "b").iterdir()).unlink()
    elif what == "a file is there twice":
        path = min((scratch / "b").iterdir())
        shutil.copy(path, scratch / "a" / path.name)
        names = "ba"
    elif what == "a disk is not mounted":
        names = "abc"
    elif what == "files of two sizes":
        for path in (scratch / "b").iterdir():
            path.write_bytes(bytes(8192))
    else:
        root = scratch / "a"
    with (
        pytest.raises(error, match=text),
        Store.open(root, read_only=True, commit_log_paths=paths(scratch, names)) as store,
    ):
        list(store.read("T", 0, 0, MESSAGES))


def test_such_a_store_is_not_written(spread: Path, scratch: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(scratch)
    with pytest.raises(ReadOnlyError, match="storePathCommitLog"):
        Store.open(spread, commit_log_paths=paths(scratch))
    with pytest.raises(NotAStoreError, match="storePathCommitLog in Spark"):
        Store.open(spread, read_only=True)
    assert tree_hash(scratch) == before


@pytest.mark.parametrize("text", [",", "a", "/a,b", "/a,/a"])
def test_paths_are_absolute_and_different(text: str) -> None:
    with pytest.raises(UsageError, match="storePathCommitLog="):
        parse_paths(text)
    assert parse_paths(" /a, /b ,") == (Path("/a"), Path("/b"))
