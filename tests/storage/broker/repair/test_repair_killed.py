"""`rmq repair` is killed, or meets a full disk, between two steps, and the service starts before it is run again."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import (
    CorruptConfigError,
    CorruptionError,
    CorruptRecordError,
    NotAStoreError,
    StoreFullError,
)
from rmq_store.files import durable
from rmq_store.log.recovery.delivery_times import schedule_files
from rmq_store.log.recovery.rebuild import REBUILD_FILE, begin_rebuild
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

COUNT = 120
CONFIG = StoreConfig(
    1 << 16, 20 * 50, 100, 400, flush_disk_type="SYNC_FLUSH", message_delay_level="1s 7s 2h", file_reserved_time=9
)

Hook = Callable[[str, str], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 2)
        for number in range(COUNT):
            store.send(Message("Orders", b"%d" % number, keys=f"k{number}", queue_id=1))
        store.commit_offsets("billing", {("Orders", 1): 10})
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def at(operation: str, name: str, act: Callable[[], None]) -> Hook:
    """Do `act` instead of an operation on a path that ends so."""

    def hook(done: str, path: str) -> None:
        if done == operation and path.endswith(name):
            act()

    return hook


def die() -> None:
    os._exit(9)


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def repair_until_killed(root: Path, hook: Hook) -> None:
    assert run_repair(root, hook) == 9


def run_repair(root: Path, hook: Hook) -> int:
    """In a process of its own; its exit code."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            found = examine(root)
            durable.hook = hook
            carry_out(found)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def cut_queue_file(root: Path) -> Path:
    path = sorted((root / "consumequeue" / "Orders" / "1").iterdir())[0]
    os.truncate(path, 400)
    with pytest.raises(CorruptionError):
        Store.open(root)
    return path


def content(root: Path) -> dict[str, bytes]:
    places = [root / name for name in ("commitlog", "consumequeue", "index")]
    return {str(path): path.read_bytes() for place in places for path in sorted(place.rglob("*")) if path.is_file()}


def delayed(root: Path) -> dict[str, bytes]:
    """The queue files that tell when messages are due, by their paths in the store."""
    files = (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*")
    return {str(path.relative_to(root)): path.read_bytes().rstrip(b"\0") for path in files}


def as_of_broker(root: Path) -> None:
    """What a broker leaves in `lock` at every start."""
    with (root / "lock").open("r+b") as file:
        file.write(b"lock")


@pytest.mark.parametrize("who", ["ours", "broker"])
@pytest.mark.parametrize("place", ["behind the move", "in the rebuild"])
def test_a_repair_of_queues_that_was_killed_is_ended_by_who_opens_the_store(root: Path, who: str, place: str) -> None:
    before = content(root)
    if who == "broker":
        as_of_broker(root)
    cut = cut_queue_file(root)
    if place == "behind the move":
        repair_until_killed(root, at("fsync_directory", str(cut.parent), die))
        assert not cut.exists()
    else:
        repair_until_killed(root, at("write", cut.name, die))
    with pytest.raises(NotAStoreError, match="rebuild of the queues did not come to its end"):
        with Store.open(root, read_only=True) as store:
            store.queue_range("Orders", 1)
    with Store.open(root) as store:
        assert store.queue_range("Orders", 1) == (0, COUNT)
    assert not (root / REBUILD_FILE).exists()
    assert content(root) == before
    assert not examine(root).is_needed
    with Store.open(root) as store:
        first, *_ = store.pop.receive("billing", "Orders", 1, 60_000)
        assert first.row.column("queueOffset")[0].as_py() == 10


def test_a_repair_that_is_killed_and_repeated_does_the_same(root: Path) -> None:
    before = content(root)
    cut = cut_queue_file(root)
    repair_until_killed(root, at("rename", "store/index", die))
    assert not cut.exists()
    again = examine(root)
    assert REBUILD_FILE in [finding.path for finding in again.findings]
    assert again.rebuild == {"queues", "index"}
    assert carry_out(again).status == "clean"
    assert content(root) == before
    assert not examine(root).is_needed


def test_the_verifier_says_that_a_repair_was_killed(root: Path) -> None:
    repair_until_killed(root, at("fsync_directory", str(cut_queue_file(root).parent), die))
    report = verify_store(root)
    assert report.status == "damaged"
    assert [text for text in report.recovery if text.startswith(f"{REBUILD_FILE}: the store is in the middle")]
    with Store.open(root):
        pass
    assert verify_store(root).status == "clean"


def test_a_repair_that_was_killed_when_all_was_whole_needs_attention_too(root: Path) -> None:
    with Store.open(root):
        begin_rebuild(root)
    report = verify_store(root)
    assert (report.status, report.problems, len(report.recovery)) == ("unclean", [], 1)


@pytest.mark.parametrize("again", ["opened", "repaired", "killed and opened", "moved and opened"])
def test_delayed_messages_of_a_broker_are_due_when_they_were_whoever_ends_the_repair(
    golden: Path, scratch: Path, copy_store: Callable[..., Path], again: str
) -> None:
    """Its delays are not at hand, and not the default ones."""
    root = copy_store(golden / "store", scratch / "store")
    before = delayed(root)
    first = min((root / "consumequeue" / "OrderTopic").glob("*/0*"))
    with first.open("r+b") as file:
        file.write(b"\xff" * 20)
    repair_until_killed(root, at("write", str(root / min(before)), die))
    if again == "killed and opened":
        repair_until_killed(root, at("write", str(root / min(before)), die))
    if again == "moved and opened":
        root = root.rename(scratch / "moved")
    if again == "repaired":
        assert carry_out(examine(root)).status == "clean"
    Store.open(root).close()
    assert before
    assert delayed(root) == before


def test_copies_of_delayed_messages_that_lie_outside_the_store_are_found_there(tmp_path: Path) -> None:
    queue = tmp_path / "store" / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
    copies = {queue / f"{0:020d}": tmp_path / "out" / "0", queue / f"{20:020d}": tmp_path / "store" / "in" / "20"}
    outside, inside = f"2/{0:020d}", f"2/{20:020d}"
    assert schedule_files(tmp_path / "store", copies) == {outside: str(tmp_path / "out" / "0"), inside: "in/20"}


def test_a_disk_that_is_full_in_the_middle_is_no_better_than_a_kill(root: Path) -> None:
    cut_queue_file(root)
    found = examine(root)
    durable.hook = at("rename", "store/index", no_room)
    with pytest.raises(StoreFullError):
        carry_out(found)
    durable.hook = None
    assert (root / REBUILD_FILE).exists()
    with Store.open(root) as store:
        assert store.queue_range("Orders", 1) == (0, COUNT)


def test_if_nothing_was_changed_nothing_is_built_again(root: Path) -> None:
    cut = cut_queue_file(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}
    found = examine(root)
    durable.hook = at("rename", cut.name, no_room)
    with pytest.raises(StoreFullError):
        carry_out(found)
    durable.hook = None
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"} == before


def test_who_finishes_the_repair_of_a_brokers_store_does_not_cut_its_log(root: Path) -> None:
    """A broker would not have looked at the damage: it begins behind it."""
    as_of_broker(root)
    cut_queue_file(root)
    segment = root / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[data.find(b"k60")] ^= 1
    segment.write_bytes(data)
    repair_until_killed(root, at("rename", "store/index", die))
    with pytest.raises(CorruptRecordError):
        Store.open(root)
    assert segment.read_bytes() == data
    after = carry_out(examine(root))
    assert (after.status, after.messages) == ("kept", COUNT - 1)


@pytest.mark.parametrize("backup", [True, False], ids=["with its backup as bad", "without a backup"])
@pytest.mark.parametrize("how", ["killed", "full"])
def test_settings_that_were_salvaged_are_not_lost_with_the_repair(root: Path, how: str, backup: bool) -> None:
    path = root / "pyrmq" / "store.json"
    text = path.read_text().rstrip().removesuffix("}")
    path.write_text(text)
    path.with_name("store.json.bak").write_text(text) if backup else path.with_name("store.json.bak").unlink()
    os.truncate(root / "commitlog" / f"{0:020d}", 60_000)
    identity = examine(root).settings.identity  # type: ignore[union-attr]
    if how == "killed":
        repair_until_killed(root, at("allocate", "-resized", die))
    else:
        found = examine(root)
        durable.hook = at("allocate", "-resized", no_room)
        with pytest.raises(StoreFullError):
            carry_out(found)
        durable.hook = None
    with pytest.raises(CorruptConfigError, match=r"store\.json"):
        Store.open(root)
    again = examine(root)
    assert again.lost_settings == ()
    carry_out(again)
    for place in (path, path.with_name("store.json.bak")):
        assert (again.trash.target / place.relative_to(root)).exists() == (backup or place == path)
    with Store.open(root) as store:
        assert (store.identity, store.config) == (identity, CONFIG)


def test_a_good_backup_of_the_settings_survives_the_repair_of_the_bad_ones(root: Path) -> None:
    path, backup = root / "pyrmq" / "store.json", root / "pyrmq" / "store.json.bak"
    known = backup.read_bytes()
    path.write_text("{")
    repair_until_killed(root, at("fsync_directory", "pyrmq", die))
    assert backup.read_bytes() == known
    carry_out(examine(root))
    assert path.read_bytes() == backup.read_bytes() == known


@pytest.mark.parametrize("opened", [True, False], ids=["and opened", "and repaired"])
def test_topics_are_not_lost_if_the_repair_of_their_table_is_killed(root: Path, tmp_path: Path, opened: bool) -> None:
    """At each operation on it: at no moment is there none, in whose place an opener would put one of its own."""
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("{")
    for k in range(1, 100):
        place = shutil.copytree(root, tmp_path / str(k))
        left = k

        def hook(operation: str, path: str, place: Path = place) -> None:
            nonlocal left
            left -= path.startswith(str(place / "config" / "topics.json"))
            if left == 0:
                die()

        code = run_repair(place, hook)
        if opened:
            try:
                with Store.open(place) as store:
                    assert "Orders" in store.topics()
            except CorruptConfigError as error:
                assert "topics.json" in str(error)
        found = examine(place)
        if found.is_needed:
            carry_out(found)
        with Store.open(place) as store:
            assert store.topic("Orders").read_queue_nums == 2
            assert "TBW102" in store.topics()
        if code == 0:
            break
    assert 5 < k < 99
