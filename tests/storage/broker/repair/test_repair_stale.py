"""`rmq repair` stands at its question while others go on with the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.cli import commands
from rmq_store.errors import UsageError
from rmq_store.verify import verify_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The offsets are garbage, and have no backup."""
    with Store.open(tmp_path / "store", create=True, config=StoreConfig(8192, 2000, 50, 200)) as store:
        for _ in range(50):
            store.send(Message("Orders", bytes(100), queue_id=0))
        store.commit_offsets("billing", {("Orders", 0): 10})
    (tmp_path / "store" / "config" / "consumerOffset.json").write_text("{")
    return tmp_path / "store"


def test_what_was_found_before_somebody_else_repaired_is_not_done(root: Path) -> None:
    found = examine(root)
    carry_out(examine(root))
    with Store.open(root) as store:
        store.commit_offsets("billing", {("Orders", 0): 50})
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"changed since the store was checked: nothing was done\. Run it again"):
        carry_out(found)
    assert {path: path.read_bytes() for path in before} == before
    with Store.open(root) as store:
        assert store.committed_offsets("billing") == {("Orders", 0): 50}


def _touch_queue(root: Path) -> None:
    path = next((root / "consumequeue" / "Orders" / "0").iterdir())
    path.write_bytes(path.read_bytes())


def _replace_table(root: Path) -> None:
    path = root / "config" / "topics.json"
    path.rename(path.with_suffix(".old"))
    path.with_suffix(".old").rename(path.with_suffix(".older"))
    path.write_bytes(path.with_suffix(".older").read_bytes())
    path.with_suffix(".older").unlink()


@pytest.mark.parametrize(
    "change",
    [
        _touch_queue,
        _replace_table,
        lambda root: (root / "pyrmq" / "units.json").write_text("{}"),
        lambda root: (root / "checkpoint").unlink(),
        lambda root: (root / "commitlog" / "notes").write_text("x"),
        lambda root: next((root / "index").iterdir()).unlink(),
    ],
)
def test_any_file_that_was_looked_at_counts(root: Path, change: Callable[[Path], object]) -> None:
    found = examine(root)
    change(root)
    with pytest.raises(UsageError, match="Run it again"):
        carry_out(found)
    assert carry_out(examine(root)).status == "clean"


def test_who_only_looks_does_not_count(root: Path) -> None:
    found = examine(root)
    verify_store(root)
    examine(root, queues=True)
    with Store.open(root, read_only=True) as store:
        assert store.queue_range("Orders", 0) == (0, 50)
    assert carry_out(found).status == "clean"


def test_the_command_says_so_and_ends_with_2(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rmq_store.broker.repair.repair as module

    def slow(*arguments: object, **options: object) -> object:
        found = examine(*arguments, **options)  # type: ignore[arg-type]
        (root / "checkpoint").unlink()
        return found

    monkeypatch.setattr(module, "examine", slow)
    result = CliRunner().invoke(commands, ["repair", str(root), "--yes"], prog_name="rmq")
    assert (result.exit_code, "Run it again" in result.stderr) == (2, True)
