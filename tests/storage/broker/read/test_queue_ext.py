"""A store of a broker with enableConsumeQueueExt=true: its queue entries hold addresses, their tags codes lie there."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig, backup
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.cli import commands
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.views.consume_queue import ENTRY, is_extension_address
from rmq_store.log.views.queue_ext import tags_codes
from rmq_store.verify import verify_store

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
START_MS = 1_700_000_000_000
UNIT_FILE_BYTES = 100
"""Four units of 20 bytes, and what no unit fits into."""
TAGS = ("A", "B", "A", "C", "A", "B", "A")


def clock() -> int:
    return START_MS


def queue_files(root: Path, name: str = "consumequeue") -> dict[str, Path]:
    files = (path for path in sorted((root / name).rglob("0*")) if path.is_file())
    return {path.relative_to(root / name).as_posix(): path for path in files}


def used(path: Path) -> np.ndarray:
    entries = np.frombuffer(path.read_bytes(), ENTRY)
    return entries[entries["frame_size"] > 0]


def move_codes_out(root: Path, bit_map: bytes = b"") -> None:
    """What the broker does for each entry (ConsumeQueueExt#put)."""
    units: dict[Path, bytes] = {}
    for name, path in queue_files(root).items():
        entries = np.frombuffer(path.read_bytes(), ENTRY).copy()
        directory = root / "consumequeue_ext" / Path(name).parent
        done = units.setdefault(directory, b"")
        for row in np.flatnonzero(entries["frame_size"] > 0).tolist():
            code = int(entries["tags_code"][row])
            unit = struct.pack(">hqqh", 20 + len(bit_map), code, START_MS, len(bit_map)) + bit_map
            left = UNIT_FILE_BYTES - len(done) % UNIT_FILE_BYTES
            if len(unit) > left - 4:
                done += struct.pack(">h", -1).ljust(left, b"\0")
            entries["tags_code"][row] = len(done) - (1 << 63)
            done += unit
        units[directory] = done
        path.write_bytes(entries.tobytes())
    for directory, data in units.items():
        directory.mkdir(parents=True)
        for base in range(0, len(data), UNIT_FILE_BYTES):
            (directory / f"{base:020d}").write_bytes(data[base : base + UNIT_FILE_BYTES].ljust(UNIT_FILE_BYTES, b"\0"))


def content(root: Path, name: str) -> dict[str, bytes]:
    return {path: file.read_bytes() for path, file in queue_files(root, name).items()}


@pytest.fixture(params=[b"", b"\xff" * 14], ids=["without bit maps", "with bit maps"])
def broker(scratch: Path, tiny: StoreConfig, request: pytest.FixtureRequest) -> Path:
    root = scratch / "broker"
    config = replace(tiny, message_delay_level="1m 2m 5m", enabled_append_prop_crc=False)
    with Store.open(root, create=True, config=config, clock=clock) as store:
        store.create_topic("T", queue_count=1)
        for number, tag in enumerate(TAGS):
            store.send(Message("T", b"%d" % number, tags=tag, queue_id=0))
            store.send(Message("T", b"late %d" % number, tags=tag, queue_id=0, delay_level=3))
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    move_codes_out(root, request.param)
    for name in (f"{SCHEDULE}/2", "T/0"):
        assert is_extension_address(
            used(root / "consumequeue" / name / f"{0:020d}")["tags_code"].astype(np.int64)
        ).all()
    assert len(list((root / "consumequeue_ext/T/0").iterdir())) > 1
    return root


def bodies(store: Store, tags: str | None = None) -> list[bytes]:
    batches = store.read("T", 0, *store.queue_range("T", 0), columns=["body"], tags=tags)
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_a_reader_gets_tags_and_due_times_and_changes_nothing(broker: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(broker)
    with Store.open(broker, read_only=True, clock=clock) as store:
        assert bodies(store) == [b"%d" % number for number in range(7)]
        assert bodies(store, "A") == [b"0", b"2", b"4", b"6"]
        assert [store.tags_code("T", 0, number) for number in range(7)] == [java_hash(tag) for tag in TAGS]
        assert store.tags_code(SCHEDULE, 2, 3) == START_MS + 300_000
        assert store.delay_backlogs() == [(3, 7, START_MS + 300_000)]
        entries = store.queue_entries("T", 0, 0, 7)
        assert tags_codes(broker, "T", 0, entries).tolist() == [java_hash(tag) for tag in TAGS]
    report = verify_store(broker)
    assert (report.status, report.problems) == ("clean", [])
    assert CliRunner().invoke(commands, ["repair", "--store", str(broker)]).exit_code == 0
    assert tree_hash(broker) == before


@pytest.mark.parametrize("was", ["closed", "killed"])
def test_a_writer_leaves_addresses_and_appends_plain_entries(broker: Path, was: str) -> None:
    """A broker takes a tags code for an address only if no int32 can be it (ConsumeQueueExt#isExtAddr)."""
    before, units = content(broker, "consumequeue"), content(broker, "consumequeue_ext")
    if was == "killed":
        (broker / "abort").write_bytes(b"1")
    with Store.open(broker, clock=clock):
        opened = content(broker, "consumequeue")
        assert {name: data for name, data in opened.items() if name in before} == before
    with Store.open(broker, clock=clock) as store:
        store.send(Message("T", b"new", tags="A", queue_id=0))
        store.send(Message("T", b"new and late", tags="A", queue_id=0, delay_level=3))
        assert bodies(store, "A") == [b"0", b"2", b"4", b"6", b"new"]
        assert store.tags_code(SCHEDULE, 2, 7) == START_MS + 300_000, "as long as the broker's"
    assert content(broker, "consumequeue_ext") == units
    after = content(broker, "consumequeue")
    for name, data in before.items():
        assert after[name].startswith(data.rstrip(b"\0"))
    assert used(broker / "consumequeue/T/0" / f"{0:020d}")["tags_code"].tolist()[-1] == java_hash("A")
    assert verify_store(broker).status == "clean"


@pytest.mark.parametrize("way", ["as it was", "its views are built again", "from a backup"])
def test_what_waits_comes_when_its_unit_says(broker: Path, way: str, scratch: Path) -> None:
    now = [START_MS]
    root = broker
    if way == "from a backup":
        with Store.open(broker, clock=clock):
            root = scratch / "copy"
            backup(broker, root)
    with Store.open(root, clock=lambda: now[0], rebuild_views=way == "its views are built again") as store:
        assert store.schedule.deliver_due() == Delivery(0, START_MS + 300_000)
        now[0] += 299_999
        assert store.schedule.deliver_due().delivered == 0
        now[0] += 1
        assert store.schedule.deliver_due() == Delivery(7, None)
        assert bodies(store)[7:] == [b"late %d" % number for number in range(7)]
        assert bodies(store, "B") == [b"1", b"5", b"late 1", b"late 5"]
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("what", ["all", "one file", "units of other messages"])
def test_where_units_are_missing_the_delay_of_the_level_counts_as_in_a_broker(broker: Path, what: str) -> None:
    directory = broker / "consumequeue_ext"
    if what == "all":
        shutil.rmtree(directory)
    elif what == "one file":
        (directory / SCHEDULE / "2" / f"{0:020d}").unlink()
    else:
        for path in queue_files(broker, "consumequeue_ext").values():
            path.write_bytes(path.read_bytes().replace(struct.pack(">q", START_MS), struct.pack(">q", START_MS - 1)))
    assert verify_store(broker).status == "clean"
    given = StoreConfig(message_delay_level="1s 2s 7s")
    with Store.open(broker, config=given, clock=clock) as store:
        assert store.tags_code(SCHEDULE, 2, 0) == START_MS + 7000
        assert store.schedule.deliver_due() == Delivery(0, START_MS + 7000)
        assert bodies(store, "A") == [b"0", b"2", b"4", b"6"]
    assert verify_store(broker).status == "clean"


def test_an_entry_that_is_damaged_otherwise_is_made_again_beside_addresses_that_stay(broker: Path) -> None:
    path = broker / "consumequeue/T/0" / f"{0:020d}"
    before = used(path)
    data = bytearray(path.read_bytes())
    data[3 * 20 : 4 * 20] = bytes(20)
    path.write_bytes(data)
    (broker / "abort").write_bytes(b"1")
    with Store.open(broker, clock=clock) as store:
        assert bodies(store) == [b"%d" % number for number in range(7)]
    after = used(path)
    assert after["tags_code"][3] == java_hash("C")
    assert (np.delete(after, 3) == np.delete(before, 3)).all()


def test_a_wrong_tags_code_in_a_unit_is_damage(broker: Path) -> None:
    path = broker / "consumequeue_ext/T/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    report = verify_store(broker)
    assert report.status == "damaged"
    assert "T-0: queue offset 0" in report.problems[0].text
