"""Symbolic links, FIFOs, devices and directories in the place of files: never followed, never waited for."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import Message, StagingArea, Store, StoreError
from rmq_store.verify import verify_store
from security.hostile import around

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120)]


def use(root: Path) -> None:
    """Open, read, write and change a bit of everything, first as a reader, then as a writer."""
    for options in ({"read_only": True}, {}):
        with Store.open(root, **options) as store:
            for queue_id in (0, 1):
                list(store.read("Victim", queue_id, *store.queue_range("Victim", queue_id)))
            store.topics(), store.groups(), store.all_committed_offsets()
            if options:
                continue
            store.send(Message("Victim", b"new", tags="T", keys="new"))
            store.commit_offsets("billing", {("Victim", 1): 2})
            store.create_topic("Fresh", queue_count=1)
            store.send(Message("Fresh", b"first"))
            store.lease("billing", "Victim", "me").release()
            store.pop.receive("billing", "Victim", 1, 60_000)
            with StagingArea.for_task(root, "more", 0, 0, topic="Victim") as area:
                area.write(pa.RecordBatch.from_pydict({"body": [b"staged"]}))
                staged = area.finish()
            assert staged is not None
            store.commit_staged([staged], key="query", value=2)
            store.last_unit("sink", "query")
            store.flush()


def try_to_use(root: Path) -> str:
    """What `use` says; anything but success or an error of ours fails."""
    try:
        use(root)
    except StoreError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def files(filled: Path) -> list[str]:
    """Every file of the store, one of each directory: what the tests plant something in the place of."""
    found = sorted(path for path in filled.rglob("*") if path.is_file())
    numbered = {path.parent: path for path in found if path.name.isdigit()}
    kept = [path for path in found if not path.name.isdigit() or numbered[path.parent] == path]
    return [path.relative_to(filled).as_posix() for path in kept]


def test_no_file_is_opened_through_a_symbolic_link(copy: Callable[[], Path], files: list[str]) -> None:
    assert len(files) > 15
    for name in [*files, "abort", "pyrmq/new-file", "pyrmq/groups/billing/Victim.lease"]:
        root = copy()
        path, outside = root / name, root.parent / "outside"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.move(path, outside)
        else:
            outside.write_bytes(b"precious")
        path.symlink_to(outside)
        before, content = around(root), outside.read_bytes()
        said = try_to_use(root)
        assert outside.read_bytes() == content, name
        assert around(root) == before, name
        # A table is replaced as a whole, and the link with it; everything else is refused by name.
        assert said or not path.is_symlink() or name in _NEVER_OPENED, name
        shutil.rmtree(root.parents[1])


# Spares that nobody needs to read, and a name that no process has.
_NEVER_OPENED = {
    "pyrmq/new-file", "checkpoint", "pyrmq/delay.lock", "config/topics.json.bak", "config/consumerOffset.json.bak",
    "pyrmq/store.json.bak",
}  # fmt: skip


def test_a_dangling_link_makes_no_file_elsewhere(copy: Callable[[], Path], files: list[str]) -> None:
    for name in [*files, "abort"]:
        root = copy()
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(root.parent / "made-by-us")
        before = around(root)
        try_to_use(root)
        assert around(root) == before, name
        shutil.rmtree(root.parents[1])


@pytest.mark.parametrize(
    "directory",
    [
        "consumequeue/Victim", "consumequeue/Victim/0", "consumequeue/Fresh", "pyrmq/groups/billing", "pyrmq/staging",
        "pyrmq/staging/more", "pyrmq/pop/billing", "pyrmq/pop/billing/Victim", "pyrmq/pop", "pyrmq/groups",
    ],
)  # fmt: skip
def test_no_directory_below_the_top_is_entered_through_a_link(copy: Callable[[], Path], directory: str) -> None:
    root = copy()
    path, outside = root / directory, root.parent / "outside"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.mkdir()
    path.symlink_to(outside)
    before = around(root)
    said = try_to_use(root)
    assert around(root) == before
    assert said
    assert directory.rpartition("/")[2] in said


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFSOCK)


def _endless_device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


@pytest.mark.parametrize("plant", [_fifo, _directory, _socket, _endless_device])
def test_what_is_no_file_is_refused_and_not_waited_for(
    copy: Callable[[], Path], files: list[str], plant: Callable[[Path], None]
) -> None:
    if plant is _endless_device and os.geteuid():
        pytest.skip("only root makes devices")
    for name in [*files, "abort"] if plant is _fifo else files[::5]:
        root = copy()
        (root / name).unlink(missing_ok=True)
        try:
            plant(root / name)
        except PermissionError:
            pytest.skip("this system lets nobody make devices")
        before = around(root)
        said = try_to_use(root)
        assert around(root) == before, name
        # `abort` only has to be there, and goes when the store is closed.
        assert said or name in _NEVER_OPENED or not (root / name).exists(), (name, plant)
        assert verify_or_refuse(root)
        shutil.rmtree(root.parents[1])


def verify_or_refuse(root: Path) -> bool:
    """The verifier comes to an end, whatever lies there."""
    try:
        return verify_store(root).status in ("clean", "unclean", "damaged")
    except OSError:
        return True
