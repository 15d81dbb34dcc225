"""Files and directories that a user may not read, or that are something else: check, repair, backup and reading end
with a typed error that names the file, whatever it is.

`verify_store` raised PermissionError; `examine` did so for directories, and `backup` blamed its target.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.backup.backup import backup
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import StoreError
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

NOBODY = 65534
CONFIG = StoreConfig(mapped_file_size_commit_log=8192, max_hash_slot_num=50, max_index_num=200)


def read(root: Path) -> int:
    with Store.open(root, read_only=True) as store:
        rows = [part.num_rows for part in store.read("Alpha", 0, *store.queue_range("Alpha", 0))]
        return len(rows) + len(store.query.by_key("Alpha", "k3"))


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "verify": lambda root: verify_store(root).status,
    "examine": lambda root: examine(root).is_needed,
    "repair": lambda root: carry_out(examine(root, queues=True, index=True)).status,
    "backup": lambda root: backup(root, root.parent / f"backup-{time.time_ns()}").record_count,
    "read": read,
    "write": lambda root: Store.open(root).close(),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """Where another user may go, which pytest's own directories are not."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def make_store(place: Path) -> Path:
    root = place / "store"
    with Store.open(root, create=True, config=CONFIG) as store:
        store.create_topic("Alpha", queue_count=1)
        for number in range(60):
            store.send(Message("Alpha", bytes(200), keys=f"k{number}"))
    return root


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to be copied. Each operation has been called, so that all modules are loaded: another user may not read
    them.
    """
    root = make_store(tmp_path_factory.mktemp("rights"))
    for call in OPERATIONS.values():
        call(root)
    return root


def outcome(call: Callable[[Path], object], root: Path) -> str:
    """What an operation ends with: "done", or the error."""
    try:
        call(root)
    except StoreError as error:
        return f"typed: {error}"
    except BaseException as error:
        return f"raw: {error!r}"
    return "done"


def as_another_user(roots: Mapping[str, Path]) -> dict[str, str]:
    """What each operation ends with on its store, in a process without the rights of root."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answers = {name: outcome(OPERATIONS[name], root) for name, root in roots.items()}
            with os.fdopen(write_end, "w") as pipe:
                json.dump(answers, pipe)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answers = json.load(pipe)
    os.waitpid(pid, 0)
    assert list(answers) == list(roots)
    return answers


def give_away(root: Path) -> None:
    if os.geteuid() == 0:
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


NAMES = [
    ".", "commitlog", f"commitlog/{0:020d}", f"commitlog/{8192:020d}", "config", "config/topics.json", "consumequeue",
    "consumequeue/Alpha", "consumequeue/Alpha/0", f"consumequeue/Alpha/0/{0:020d}", "index", "lock", "pyrmq",
    "pyrmq/progress", "pyrmq/store.json", "pyrmq/state", "pyrmq/queue_ends.json",
]  # fmt: skip


@pytest.mark.parametrize("what", ["forbidden", "another kind", "missing"])
@pytest.mark.parametrize("name", NAMES)
def test_no_operation_lets_an_os_error_through(place: Path, template: Path, name: str, what: str) -> None:
    if what != "forbidden" and name == ".":
        pytest.skip("the store itself")
    roots = {operation: place / operation / "store" for operation in OPERATIONS}
    for root in roots.values():
        shutil.copytree(template, root)
        root.parent.chmod(0o777)
        path = root / name
        give_away(root)
        if what == "forbidden":
            path.chmod(0)
        elif path.is_dir():
            shutil.rmtree(path)
            if what != "missing":
                path.write_bytes(b"")
        else:
            path.unlink()
            if what != "missing":
                path.mkdir()
    for operation, answer in as_another_user(roots).items():
        assert not answer.startswith("raw"), (operation, answer)
        if what == "forbidden" and answer != "done":
            assert f"{roots[operation] / name}".removesuffix("/.") in answer, (operation, answer)
        if name in (".", "commitlog") or (what == "forbidden" and name.startswith("commitlog")):
            reads_nothing = operation == "write" and name.startswith("commitlog/")
            assert answer != "done" or reads_nothing, operation


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "a broker's"])
@pytest.mark.parametrize("left", ["nothing", "a link to nowhere"])
def test_a_store_without_its_log_is_not_an_empty_one(place: Path, is_ours: bool, left: str) -> None:
    """An unmounted disk, or a copy that is not complete: a broker's had no messages, and a writer began anew."""
    root = make_store(place)
    if not is_ours:
        (root / "lock").write_bytes(b"lock")
        shutil.rmtree(root / "pyrmq")
    shutil.rmtree(root / "commitlog")
    if left != "nothing":
        (root / "commitlog").symlink_to(place / "nowhere")
    before = sorted(root.rglob("*"))
    calls: dict[str, Callable[[Path], object]] = {**OPERATIONS, "create": lambda root: Store.open(root, create=True)}
    for name, call in calls.items():
        with pytest.raises(StoreError, match="commitlog"):
            call(root)
        assert sorted(root.rglob("*")) == before, name
