"""Batches of 5.x Java clients: each message has an id of its own, and behind it that of the batch, which Java shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.format.bytes import native
from rmq_store.format.text.hashing import topic_key_hash
from rmq_store.format.views.batch_ids import batch_id_hashes
from rmq_store.verify import verify_store

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=500,
    max_index_num=2000, enabled_append_prop_crc=False, default_topic_queue_nums=1,
)  # fmt: skip
PREFIX = "7F0000014E354E0E2F2A"
MEMBERS = [f"{PREFIX}837159630{number:03X}" for number in range(0x23, 0x28)]
BATCH = f"{PREFIX}837159630028"
ALONE = f"{PREFIX}837159750040"
COLUMNS = ["queueOffset", "msgId", "javaMsgId", "commitLogOffset", "properties"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """As a broker up to 5.3 writes it: a second UNIQ_KEY, made of a property of the same length."""
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG) as store:
        store.send(Message("First", b"x", keys="a"))
        for number, member in enumerate(MEMBERS):
            both = {"UNIQ_KEY": member, "UNIQ_OLD": BATCH}
            store.send(Message("T", b"x", keys=f"B-{number}", properties=both), as_given=True)
        store.send(Message("T", b"x", properties={"UNIQ_KEY": ALONE}), as_given=True)
        store.send(Message("Last", b"x", keys="a"))  # the ends of the index are looked at by reading
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    assert data.count(b"UNIQ_OLD") == len(MEMBERS)
    path.write_bytes(data.replace(b"UNIQ_OLD", b"UNIQ_KEY"))
    Store.open(root, rebuild_views=True).close()
    return root


def test_both_ids_find_the_message_and_the_index_holds_what_java_writes(root: Path) -> None:
    with Store.open(root, read_only=True) as store:
        for number, member in enumerate(MEMBERS):
            assert [found.queue_offset for found in store.query.by_unique_key("T", member)] == [number]
            (by_key,) = store.query.by_key("T", f"B-{number}")
            assert (by_key.msg_id, by_key.java_msg_id) == (member, BATCH)
        assert [found.queue_offset for found in store.query.by_unique_key("T", BATCH)] == [4, 3, 2, 1, 0]
        assert [found.queue_offset for found in store.query.by_unique_key("T", BATCH, max_num=2)] == [4, 3]
        assert [found.queue_offset for found in store.query.by_unique_key("T", ALONE)] == [5]
        assert store.query.by_unique_key("T", f"{PREFIX}837159630022") == []
        search, log_range = store.query._keys.index(), store.log_range()
        for text, count in ((BATCH, 5), (ALONE, 1), *((member, 0) for member in MEMBERS)):
            hashes = pa.array([topic_key_hash("T", text)], pa.int32()).to_numpy()
            assert sum(map(len, search.candidates(hashes, log_range))) == count
    report = verify_store(root)
    assert (report.status, report.index_entries, report.unindexed_keys) == ("clean", 15, 0)


@pytest.mark.parametrize("by", ["unique key", "id"])
def test_rows_of_a_queue_are_found_by_both_ids(root: Path, by: str) -> None:
    with Store.open(root, read_only=True) as store:
        for texts, offsets in (([BATCH], [0, 1, 2, 3, 4]), (MEMBERS[1:3], [1, 2]), ([ALONE, MEMBERS[4], BATCH], None)):
            found = store.query.rows.find("T", texts, {0: (0, 6)}, by)  # type: ignore[arg-type]
            assert found.found[0].tolist() == (offsets or [0, 1, 2, 3, 4, 5])
            assert not found.uncovered
        assert store.query.rows.find("T", [f"{PREFIX}837159630022"], {0: (0, 6)}, "id").found == {}


@pytest.mark.parametrize("with_extension", [True, False])
def test_the_column_of_javas_id_is_read_if_it_is_asked_for(
    root: Path, with_extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_extension:
        monkeypatch.setattr(native, "LOADED", False)
    with Store.open(root, read_only=True) as store:
        rows = [row for batch in store.read("T", 0, 0, 6, columns=COLUMNS) for row in batch.to_pylist()]
        assert [row["msgId"] for row in rows] == [*MEMBERS, ALONE]
        assert [row["javaMsgId"] for row in rows] == [*[BATCH] * 5, ALONE]
        assert dict(rows[0]["properties"])["UNIQ_KEY"] == MEMBERS[0]
        assert "javaMsgId" not in next(store.read("T", 0, 0, 6)).schema.names


def test_a_copy_of_a_delayed_member_is_indexed_as_java_does(tmp_path: Path) -> None:
    """Two ways make copies: one message by itself, many by the extension; each keeps what it copies in the index."""
    now = 1_700_000_000_000
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG, clock=lambda: now) as store:
        for member in MEMBERS:
            both = {"UNIQ_KEY": member, "UNIQ_OLD": BATCH}
            store.send(Message("T", b"x", delay_level=1, properties=both), as_given=True)
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"UNIQ_OLD", b"UNIQ_KEY"))
    Store.open(root, rebuild_views=True, clock=lambda: now).close()
    now += 60_000
    with Store.open(root, clock=lambda: now) as store:
        assert store.schedule.deliver_due().delivered == 5
        assert len(store.query.by_unique_key("T", BATCH, begin_ms=0)) == 5
        assert [found.msg_id for found in store.query.by_unique_key("T", MEMBERS[3], begin_ms=0)] == [MEMBERS[3]]
    assert verify_store(root).status == "clean"


def test_ids_that_are_none_have_no_batch_and_near_ones_are_tried() -> None:
    for text in ("", "the-same", "Z" * 32, "7F" * 15):
        assert len(batch_id_hashes("T", text)) == 0
    hashes = set(batch_id_hashes("T", MEMBERS[0]).tolist())
    for time, counter in (("83715963", "0024"), ("83715963", "0822"), ("83715972", "0024"), ("83715D4A", "0025")):
        assert topic_key_hash("T", f"{PREFIX}{time}{counter}") in hashes
    assert topic_key_hash("T", f"{PREFIX}000000000000") in set(
        batch_id_hashes("T", f"{PREFIX}FFFFFFFFFFFF").tolist()
    )
