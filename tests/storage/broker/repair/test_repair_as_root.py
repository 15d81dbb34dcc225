"""Root repairs the store of a service that runs as another user, who has to open it afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.files import durable

SERVICE = 65534
GROUP = 65533

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def root() -> Iterator[Path]:
    """Where another user may look: pytest's own directories are root's alone."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        yield _made(Path(directory) / "store")


def _made(root: Path) -> Path:
    with Store.open(root, create=True, config=StoreConfig(8192, 20 * 50, 50, 200)) as store:
        store.create_topic("Orders", 1)
        for number in range(60):
            store.send(Message("Orders", b"x", keys=f"k{number}", queue_id=0))
    for path in (root, *root.rglob("*")):
        os.chown(path, SERVICE, GROUP)
    return root


def owners(root: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (root, *root.rglob("*"))}


def _lose_half_a_queue(root: Path) -> None:
    os.truncate(sorted((root / "consumequeue" / "Orders" / "0").iterdir())[0], 900)


def _lose_the_tables(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("{")
    (root / "pyrmq" / "store.json").write_text("{")


def _lose_the_views(root: Path) -> None:
    for name in ("consumequeue", "index"):
        for path in sorted((root / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (root / name).rmdir()


@pytest.mark.parametrize("damage", [_lose_half_a_queue, _lose_the_tables, _lose_the_views])
def test_what_root_makes_in_a_store_belongs_to_whom_the_store_belongs(
    root: Path, damage: Callable[[Path], None]
) -> None:
    damage(root)
    assert carry_out(examine(root)).status == "clean"
    assert owners(root) == {(SERVICE, GROUP)}


def test_so_does_what_root_sends(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("Later", 2)
        for _ in range(40):
            store.send(Message("Later", bytes(500), keys="new", queue_id=1))
        store.commit_offsets("billing", {("Later", 1): 3})
        store.pop.receive("billing", "Orders", 1, 60_000)
    assert owners(root) == {(SERVICE, GROUP)}


def test_and_a_store_that_root_makes_in_a_directory_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    os.chown(tmp_path / "new", SERVICE, GROUP)
    Store.open(tmp_path / "new", create=True).close()
    assert owners(tmp_path / "new") == {(SERVICE, GROUP)}


def test_what_lies_outside_of_the_store_stays_roots(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "removed"
    carry_out(examine(root, index=True, removed=target))
    assert target.stat().st_uid == 0
    assert owners(root) == {(SERVICE, GROUP)}


def test_a_file_that_is_there_already_is_not_given_away(root: Path) -> None:
    """The service may have put a link to a file of root's there."""
    secret = root.parent / "secret"
    secret.write_text("root's")
    (root / "pyrmq" / "append.lock").unlink()
    os.link(secret, root / "pyrmq" / "append.lock")
    Store.open(root).close()
    assert secret.stat().st_uid == 0


def test_where_root_may_not_give_files_away_the_repair_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(durable.os, "fchown", refuse)
    assert carry_out(examine(root, index=True)).status == "clean"
    assert "stays root's, and may keep out who runs the store: Operation not permitted" in caplog.text


def test_the_service_goes_on(root: Path) -> None:
    """As another user, for real, where it can read the interpreter and what it imports."""
    _lose_half_a_queue(root)
    carry_out(examine(root))
    service = f"from rmq_store import Store; print(*Store.open({str(root)!r}).queue_range('Orders', 0))"
    command = ["setpriv", f"--reuid={SERVICE}", f"--regid={GROUP}", "--clear-groups", sys.executable, "-B", "-c"]
    if subprocess.run([*command, "import rmq_store.broker.store.store"], check=False, capture_output=True).returncode:
        pytest.skip("another user cannot run this interpreter here")
    done = subprocess.run([*command, service], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 60\n", "")
