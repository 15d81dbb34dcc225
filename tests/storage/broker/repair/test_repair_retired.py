"""A queue of which retention took all messages: nothing in the log knows any more how far it went, and `rmq repair`
must not let it begin again, with offsets that groups have committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine

SEGMENT_BYTES = 8192
USED = 7


@pytest.fixture(params=["ours", "ours without its table", "broker"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=StoreConfig(SEGMENT_BYTES, 20 * 50, 100, 400)) as store:
        for name in ("Orders", "Other"):
            store.create_topic(name, 1)
        for _ in range(USED):
            store.send(Message("Orders", b"early", queue_id=0))
        store.commit_offsets("billing", {("Orders", 0): USED})
        while store.log_range()[1] < 3 * SEGMENT_BYTES:
            store.send(Message("Other", bytes(500), queue_id=0))
    sorted((root / "commitlog").iterdir())[0].unlink()
    if request.param != "ours":
        (root / "pyrmq" / "queue_ends.json").unlink()
    if request.param == "broker":
        (root / "lock").write_bytes(b"lock")
    return root


def flip(entry: int, byte: int = 0) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[20 * entry + byte] ^= 0x40
        path.write_bytes(data)

    damage.__name__ = f"entry {entry}, byte {byte}"
    return damage


def short(path: Path) -> None:
    os.truncate(path, 900)


DAMAGES = [flip(3), flip(3, 6), flip(USED - 1), flip(30, 11), short, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_it_goes_on_where_it_was(root: Path, damage: Callable[[Path], None]) -> None:
    damage(root / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    assert carry_out(examine(root, queues=True)).status == "clean"
    with Store.open(root) as store:
        assert store.queue_range("Orders", 0) == (USED, USED)
        assert store.send(Message("Orders", b"new", queue_id=0)).queue_offset == USED
        (received,) = store.pop.receive("billing", "Orders", 32, 60_000)
        assert received.row.column("body")[0].as_py() == b"new"
    assert not examine(root).is_needed


@pytest.mark.parametrize("damage", [flip(3), flip(3, 6), flip(USED - 2), short], ids=lambda damage: damage.__name__)
def test_its_entries_tell_it_where_no_group_has_committed(root: Path, damage: Callable[[Path], None]) -> None:
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    damage(root / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    carry_out(examine(root, queues=True))
    with Store.open(root) as store:
        assert store.queue_range("Orders", 0) == (USED, USED)


def test_an_offset_that_cannot_have_been_given_out_moves_no_queue(root: Path) -> None:
    """More than all bytes of the log could hold: somebody wrote it by hand."""
    table = root / "config" / "consumerOffset.json"
    table.write_text(table.read_text().replace(f"0:{USED}", "0:9000000"))
    flip(3)(root / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    carry_out(examine(root, queues=True))
    with Store.open(root) as store:
        assert store.queue_range("Orders", 0) == (USED, USED)


def test_also_if_who_asks_for_new_views_does_not_repair(root: Path) -> None:
    flip(3)(root / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    with Store.open(root, rebuild_views=True) as store:
        assert store.queue_range("Orders", 0) == (USED, USED)
