"""Files that do not belong into a store: `rmq verify` names the same ones that `rmq repair` moves away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.verify import verify_store

SEGMENT_BYTES = 8192
CONFIG = StoreConfig(SEGMENT_BYTES, 2000, 50, 200)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for _ in range(30):
            store.send(Message("Orders", bytes(500), queue_id=0))
    return tmp_path / "store"


def _count(root: Path) -> int:
    with Store.open(root, read_only=True) as store:
        return sum(batch.num_rows for batch in store.read("Orders", 0, *store.queue_range("Orders", 0)))


@pytest.mark.parametrize("name", [f"{5:020d}", f"{SEGMENT_BYTES + 1:020d}", f"{10**18 + 1:020d}"])
def test_a_segment_where_none_begins_is_moved_away(root: Path, name: str) -> None:
    """CommitLog: the name of a file is its offset, a multiple of mappedFileSizeCommitLog."""
    shutil.copyfile(root / "commitlog" / f"{0:020d}", root / "commitlog" / name)
    assert verify_store(root).status == "damaged"
    plan = examine(root)
    assert [finding.path for finding in plan.findings] == [f"commitlog/{name}"]
    after = carry_out(plan)
    assert (after.status, after.messages, after.kept) == ("clean", 30, [])
    assert (plan.trash.target / "commitlog" / name).stat().st_size == SEGMENT_BYTES
    assert _count(root) == 30


@pytest.mark.parametrize(
    ("path", "is_directory"),
    [
        ("notes.txt", False), ("bad name", True), ("x" * 128, True), ("Orders/notes.txt", False), ("Orders/one", True),
        ("Orders/0/notes.txt", False), ("Orders/0/5", False), (f"Orders/0/{4000:020d}", True),
    ],
)  # fmt: skip
def test_what_does_not_belong_below_consumequeue_is_named_and_moved_away(
    root: Path, path: str, is_directory: bool
) -> None:
    foreign = root / "consumequeue" / path
    foreign.mkdir() if is_directory else foreign.write_text("mine")
    report = verify_store(root)
    assert (report.status, report.problems[0].path) == ("damaged", f"consumequeue/{path}")
    assert "no directory of" in report.problems[0].text or "no file of" in report.problems[0].text
    plan = examine(root)
    assert [finding.path for finding in plan.findings] == [f"consumequeue/{path}"]
    assert carry_out(plan).status == "clean"
    assert not foreign.exists()
    assert (plan.trash.target / "consumequeue" / path).exists()


@pytest.mark.parametrize("name", ["a|b%", "%RETRY%" + "g" * 248, "%DLQ%g", "%LMQ%" + "x" * 127, "x" * 127])
def test_every_name_that_a_topic_can_have_belongs_there(root: Path, name: str) -> None:
    (root / "consumequeue" / name).mkdir()
    assert verify_store(root).status == "clean"
    assert not examine(root).is_needed
