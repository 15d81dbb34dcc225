"""`rmq repair` and the files of the log: which size they have, what stands in their place, what lies beside them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair_segments import size_of_files
from rmq_store.cli import commands
from rmq_store.errors import UsageError
from rmq_store.verify import verify_store

SEGMENT_BYTES = 8192
CONFIG = StoreConfig(SEGMENT_BYTES, 2000, 50, 200)
Copy = Callable[[Path, Path], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for number in range(60):
            store.send(Message("Orders", bytes(500), keys=f"k{number}", queue_id=0))
    return tmp_path / "store"


def repair(root: Path, *arguments: str) -> tuple[int, Any, str]:
    """Exit code, the answer as JSON (None without one), stderr."""
    result = CliRunner().invoke(commands, ["repair", str(root), "--json", *arguments], prog_name="rmq")
    return result.exit_code, json.loads(result.stdout) if result.stdout else None, result.stderr


def count(root: Path) -> int:
    with Store.open(root, read_only=True) as store:
        return sum(batch.num_rows for batch in store.read("Orders", 0, *store.queue_range("Orders", 0)))


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def last_two(golden: Path, target: Path, copy_store: Copy) -> tuple[Path, list[Path]]:
    """A broker's store from which retention took all but two segments."""
    root = copy_store(golden / "store", target)
    segments = sorted((root / "commitlog").iterdir())
    for path in segments[:-2]:
        path.unlink()
    return root, segments[-2:]


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_sizes_the_names_tell_the_right_one(
    golden: Path, scratch: Path, copy_store: Copy, which: int
) -> None:
    root, segments = last_two(golden, scratch / "store", copy_store)
    before = verify_store(root).messages
    good = segments[1 - which].read_bytes()
    os.truncate(segments[which], 500_000)
    _, plan, _ = repair(root, "--dry-run")
    assert [(finding["path"], finding["problem"]) for finding in plan["findings"]] == [
        (f"commitlog/{segments[which].name}", "it has 500000 bytes, not 1048576")
    ]
    _, done, _ = repair(root, "--yes")
    assert segments[1 - which].read_bytes() == good
    assert before // 3 < done["after"]["messages"] <= before


def test_a_size_that_nothing_tells_is_refused_until_it_is_given(golden: Path, scratch: Path, copy_store: Copy) -> None:
    root, segments = last_two(golden, scratch / "store", copy_store)
    segments[0].unlink()
    os.truncate(segments[1], 500_000)
    before = content(root)
    code, _, said = repair(root, "--yes")
    assert (code, "--set mappedFileSizeCommitLog=BYTES" in said) == (2, True)
    assert content(root) == before
    _, plan, _ = repair(root, "--dry-run", "--set", "mappedFileSizeCommitLog=1048576")
    assert [finding["problem"] for finding in plan["findings"]] == ["it has 500000 bytes, not 1048576"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({0: 100, 100: 100, 200: 70}, 100),
        ({300: 70, 400: 100}, 100),
        ({0: 100, 105: 100, 200: 100}, 100),  # one of another log
        ({300: 70, 400: 30}, 100),  # both are short: neighbours
        ({200: 100, 400: 200}, 200),  # both fit, and nothing else tells: nothing is cut then
        ({200: 200}, 200),
        ({}, 0),
    ],
)
def test_the_size_of_files_by_their_names(tmp_path: Path, sizes: dict[int, int], expected: int) -> None:
    assert size_of_files(sizes, [_zeros(tmp_path, *file) for file in sizes.items()]) == expected


def test_a_blank_that_ends_a_segment_tells_its_size(tmp_path: Path) -> None:
    sizes = {200: 100, 400: 200}
    paths = [_zeros(tmp_path, *file) for file in sizes.items()]
    with paths[0].open("r+b") as file:
        file.seek(60)
        file.write((40).to_bytes(4) + b"\xcb\xd4\x31\x94")
    assert size_of_files(sizes, paths) == 100


@pytest.mark.parametrize("sizes", [{300: 70}, {100: 60, 250: 60}])
def test_a_size_that_fits_no_name_is_refused(tmp_path: Path, sizes: dict[int, int]) -> None:
    with pytest.raises(UsageError, match="cannot be told"):
        size_of_files(sizes, [_zeros(tmp_path, *file) for file in sizes.items()])


def _zeros(directory: Path, base: int, size_bytes: int) -> Path:
    path = directory / f"{base:020d}"
    path.write_bytes(bytes(size_bytes))
    return path


def test_no_record_is_cut_off_by_a_size_that_is_written_somewhere(root: Path) -> None:
    description = root / "pyrmq" / "store.json"
    description.write_text(description.read_text().replace(f'Log": {SEGMENT_BYTES}', f'Log": {SEGMENT_BYTES // 2}'))
    before = content(root)
    code, _, said = repair(root, "--yes")
    assert (code, "nothing is cut" in said) == (2, True)
    assert content(root) == before


def _link(path: Path) -> None:
    shutil.move(path, path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [_link, _directory, _fifo])
def test_what_stands_in_a_segments_place_is_not_moved_away(root: Path, replace: Callable[[Path], None]) -> None:
    path = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
    replace(path)
    before = content(root)
    code, _, said = repair(root, "--yes")
    assert (code, "put the file itself back in its place" in said) == (2, True)
    assert content(root) == before


@pytest.mark.parametrize("name", ["commitlog", "index"])
def test_a_linked_directory_is_refused_before_anything_is_moved(root: Path, name: str) -> None:
    shutil.move(root / name, root.parent / name)
    (root / name).symlink_to(root.parent / name)
    before = content(root)
    code, _, said = repair(root, "--index", "--yes")
    assert (code, "symbolic link" in said) == (2, True)
    assert (root / name).is_symlink()
    assert content(root) == before


def test_a_foreign_name_costs_neither_index_nor_queues(root: Path) -> None:
    before = content(root)
    (root / "commitlog" / "junk.txt").write_text("mine")
    (root / "consumequeue" / "Orders" / "junk.txt").write_text("mine")
    code, plan, _ = repair(root, "--dry-run")
    assert (code, plan["rebuild"]) == (1, [])
    code, done, _ = repair(root, "--yes")
    assert (code, done["rebuild"], done["after"]["status"]) == (0, [], "clean")
    assert [step.partition(":")[0] for step in done["steps"]] == [
        "commitlog/junk.txt", "consumequeue/Orders/junk.txt"
    ]
    after = content(root)
    removed = {path for path in after if path.startswith("pyrmq/removed/")}
    assert sorted(after[path] for path in removed) == [b"mine", b"mine"]
    assert {path for path in after if after[path] != before.get(path)} - removed <= {
        "pyrmq/progress", "pyrmq/queue_ends.json.bak", "pyrmq/state"
    }


def test_a_directory_beside_the_segments_is_no_damage(root: Path) -> None:
    """MappedFileQueue#doLoad passes over directories, and so do we."""
    (root / "commitlog" / "lost+found").mkdir()
    with Store.open(root) as store:
        store.send(Message("Orders", b"x", queue_id=0))
    code, plan, _ = repair(root)
    assert (code, plan["needed"]) == (0, False)
    assert (root / "commitlog" / "lost+found").is_dir()
    assert count(root) == 61


def test_an_empty_newest_segment_is_what_an_opener_drops(root: Path) -> None:
    (root / "commitlog" / f"{10 * SEGMENT_BYTES:020d}").touch()
    assert not repair(root)[1]["findings"]
