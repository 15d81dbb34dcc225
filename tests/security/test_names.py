"""Two hundred hostile names through every entrance: nothing appears outside of the store, and every error is ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import (
    CorruptionError,
    Message,
    StagedFile,
    StagingArea,
    Store,
    StoreError,
    StoreKindError,
    SubscriptionGroup,
    UsageError,
)
from rmq_store.client import ClientError, LitePullConsumer, LocalBackend, Producer, PushConsumer, SimpleConsumer
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.tables.config_json import dumps
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import validate_group, validate_topic
from security.hostile import COUNT, LEGAL, OTHER_KINDS, around, names

pytestmark = pytest.mark.harness

NAMES = names()


def test_there_are_two_hundred_and_none_of_them_is_a_name_of_rocketmqs() -> None:
    assert len(set(NAMES)) >= COUNT
    allowed = [name for name in NAMES if _is_valid(validate_topic, name) or _is_valid(validate_group, name)]
    assert set(allowed) == LEGAL


def _is_valid(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except UsageError:
        return False
    return True


def entrances(store: Store, name: Any) -> dict[str, Callable[[], object]]:
    """Every call that takes a name from a caller."""
    root = store.path
    column = pa.RecordBatch.from_pydict({"body": [b"x"]})
    calls: dict[str, Callable[[], object]] = {
        "create_topic": lambda: store.create_topic(name),
        "send": lambda: store.send(Message(name, b"x")),
        "queue_range": lambda: store.queue_range(name, 0),
        "read": lambda: list(store.read(name, 0, 0, 1)),
        "offset_by_time": lambda: store.offset_by_time(name, 0, 0),
        "commit of a group": lambda: store.commit_offsets(name, {("Victim", 0): 1}),
        "commit of a topic": lambda: store.commit_offsets("billing", {(name, 0): 1}),
        "lease of a group": lambda: store.lease(name, "Victim", "me"),
        "lease of a topic": lambda: store.lease("billing", name, "me"),
        "create_group": lambda: store.create_group(SubscriptionGroup(name)),
        "update_group": lambda: store.update_group(SubscriptionGroup(name)),
        "pop of a group": lambda: store.pop.receive(name, "Victim", 1, 60_000),
        "pop of a topic": lambda: store.pop.receive("billing", name, 1, 60_000),
        "ack": lambda: store.pop.ack(name, "Victim", "5 1 1 1 0 b 0 5 5"),
    }
    if isinstance(name, str):
        staged = StagedFile(name, 1, 0, 1, 0, ())
        nested = StagedFile(f"write/{name}", 1, 0, 1, 0, ())
        calls |= {
            "append": lambda: store.append(column, topic=name),
            "write id": lambda: _stage(root, name, "Victim"),
            "topic of a task": lambda: _stage(root, "write", name),
            "staged file": lambda: store.commit_staged([staged], key="q", value=1),
            "staged file in a write": lambda: store.commit_staged([nested], key="q", value=1),
        }
    return calls


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _stage(root: Path, write_id: str, topic: str) -> None:
    with StagingArea.for_task(root, write_id, 0, 0, topic=topic) as area:
        area.write(pa.RecordBatch.from_pydict({"body": [b"x"]}))


def test_no_name_of_a_caller_leads_out_of_the_store(copy: Callable[[], Path]) -> None:
    root = copy()
    before = around(root)
    accepted: dict[str, set[str]] = {}
    with Store.open(root) as store:
        for name in [*NAMES, *OTHER_KINDS]:
            for entrance, call in entrances(store, name).items():
                try:
                    call()
                except StoreError:
                    continue
                except Exception as error:
                    pytest.fail(f"{entrance} of {name!r}: {type(error).__name__}: {error}")
                accepted.setdefault(entrance, set()).add(repr(name)[:40])
        assert around(root) == before
        # A key is text in a record, never a path; so is what a holder of a lease says of itself.
        for number, name in enumerate(NAMES[::4]):
            with StagingArea.for_task(root, "write", number, 0, topic="Victim") as area:
                area.write(pa.RecordBatch.from_pydict({"body": [b"x"]}))
                staged = area.finish()
            assert staged is not None
            if name not in LEGAL:
                with pytest.raises(UsageError, match="purpose"):
                    store.commit_staged([staged], purpose=name, key="key", value=1)
            if not _is_text(name):
                with pytest.raises(UsageError, match="lone surrogates"):
                    store.commit_staged([staged], purpose="test", key=name, value=1)
                with pytest.raises(UsageError, match="lone surrogates"):
                    store.lease("billing", "Victim", name)
                continue
            store.commit_staged([staged], purpose="test", key=name, value=1)
            assert store.last_unit("test", name) == 1
            store.lease("billing", "Victim", name).release()
    assert around(root) == before
    legal = set(map(repr, LEGAL))
    # A write id may have dots, and up to 200 characters.
    of_writes = {repr(name)[:40] for name in ("...", "a.b", ".hidden", "evil.tmp", "topics.json", "x" * 128)}
    for entrance, found in accepted.items():
        allowed = legal | of_writes if entrance == "write id" else legal
        assert found <= allowed, (entrance, found - allowed)


def test_members_of_groups_are_checked_before_they_are_files(copy: Callable[[], Path]) -> None:
    root = copy()
    before = around(root)
    with closing(LocalBackend(root)) as backend, Producer("producers", backend) as producer:
        for name in NAMES:
            if name in LEGAL:
                continue
            for call in (
                partial(PushConsumer, name, backend),
                partial(SimpleConsumer, name, backend),
                partial(LitePullConsumer, name, backend),
                partial(Producer, name, backend),
                partial(producer.send, Message(name, b"x")),
            ):
                with pytest.raises((StoreError, ClientError)):
                    call()
    assert around(root) == before


def test_names_in_tables_on_disk_are_refused_or_passed_over(copy: Callable[[], Path]) -> None:
    root = copy()
    tables: dict[str, Callable[[str], dict[str, Any]]] = {
        "topics.json": lambda name: {"topicConfigTable": {name: {"topicName": name, "readQueueNums": 1}}},
        "subscriptionGroup.json": lambda name: {"subscriptionGroupTable": {name: {"groupName": name}}},
        "consumerOffset.json": lambda name: {"offsetTable": {f"{name}@billing": {0: 1}, f"Victim@{name}": {0: 1}}},
    }
    before = around(root)
    for table, content in tables.items():
        path = root / "config" / table
        kept = path.read_bytes()
        for name in NAMES:
            if name in LEGAL:
                continue
            path.write_text(dumps(content(name)), encoding="utf-8")
            for backup in root.glob("config/*.bak"):
                backup.unlink()
            try:
                with Store.open(root) as store:
                    assert name not in store.topics()
                    assert name not in store.groups()
                    assert name not in store.all_committed_offsets()
            except CorruptionError as error:
                assert str(path) in str(error)
        path.write_bytes(kept)
    assert around(root) == before


def test_names_of_files_and_directories_are_passed_over(copy: Callable[[], Path]) -> None:
    root = copy()
    planted = []
    for number, name in enumerate(NAMES):
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            continue
        for place in ("consumequeue", "consumequeue/Victim", "index", "pyrmq/groups", "pyrmq/staging", "pyrmq/removed"):
            (root / place).mkdir(exist_ok=True)
            try:
                path = root / place / name
                path.mkdir() if number % 2 else path.write_text("x")
            except (OSError, UnicodeEncodeError):
                continue  # no file system takes this name
            planted.append(path)
    assert len(planted) > 500
    before = around(root)
    with Store.open(root, read_only=True) as store:
        assert store.queue_range("Victim", 0).max_offset >= 30
    with pytest.raises(StoreKindError, match="belongs to a kind of store that is not known here"):
        Store.open(root)
    for path in planted:
        if path.parent.name in ("consumequeue", "index"):
            path.rmdir() if path.is_dir() else path.unlink()
    with Store.open(root) as store:
        assert store.queue_range("Victim", 0).max_offset >= 30
        store.send(Message("Victim", b"x"))
    assert around(root) == before


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_names_in_records_are_refused_with_the_place(copy: Callable[[], Path], version: str) -> None:
    root = copy()
    host = Host.parse("127.0.0.1:10911")
    for place in ("config", "consumequeue", "index", "pyrmq"):
        shutil.rmtree(root / place)
    (root / "lock").write_bytes(b"lock")
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    log = root / "commitlog" / f"{0:020d}"
    before = around(root)
    for name in NAMES:
        raw = name.encode("utf-8", "surrogatepass")
        if not 0 < len(raw) < (128 if version == "V1" else 32768) or name in LEGAL:
            continue
        frame = encode_frame(
            topic="T" * (1 if version == "V1" else 200), body=b"x", properties=b"", queue_id=0, queue_offset=0,
            commit_log_offset=0, born_timestamp_ms=1, born_host=host, store_timestamp_ms=1_700_000_000_000,
            store_host=host,
        )  # fmt: skip
        frame = _renamed(frame, raw, version)
        log.write_bytes(frame.ljust(16384, b"\0"))
        for options in ({"read_only": True}, {}):
            with pytest.raises(CorruptionError, match="at byte 0") as raised:
                Store.open(root, **options).log_range()
            assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)
            assert len(str(raised.value)) < len(str(log)) + 300
    assert around(root) == before
    assert not list((root / "consumequeue").rglob("*")) if (root / "consumequeue").exists() else True


def _renamed(frame: bytes, raw: bytes, version: str) -> bytes:
    """The frame with other bytes for its topic; only the body has a checksum."""
    size_bytes = 1 if version == "V1" else 2
    topic_at = 88 + 1 + size_bytes
    old = int.from_bytes(frame[topic_at - size_bytes : topic_at], "big")
    changed = frame[: topic_at - size_bytes] + len(raw).to_bytes(size_bytes, "big") + raw + frame[topic_at + old :]
    return len(changed).to_bytes(4, "big") + changed[4:]


def test_units_with_hostile_keys_leave_json_that_can_be_read(copy: Callable[[], Path]) -> None:
    root = copy()
    with Store.open(root) as store:
        with StagingArea.for_task(root, "w", 0, 0, topic="Victim") as area:
            area.write(pa.RecordBatch.from_pydict({"body": [b"x"]}))
            staged = area.finish()
        assert staged is not None
        store.commit_staged([staged], purpose="test", key='"},{"\n\x1b[0m\\', value=1)
        assert store.last_unit("test", '"},{"\n\x1b[0m\\') == 1
    for path in root.glob("pyrmq/*.json"):
        json.loads(path.read_text(encoding="utf-8"))
