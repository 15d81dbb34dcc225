"""Where progress is kept: first in memory, then at the broker or, for broadcasting, in a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store import CorruptConfigError
from rmq_store.client.group import offset_store
from rmq_store.client.group.offset_store import (
    LocalFileOffsetStore,
    OffsetStore,
    RemoteBrokerOffsetStore,
    dump_offsets,
    load_offsets,
)
from rmq_store.protocol.errors import MQClientError, RemotingConnectError
from rmq_store.protocol.messages import MessageQueue

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 1)


class RecordingBroker:
    """Keeps what it is told; refuses while `down`."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.calls: list[tuple[dict[MessageQueue, int], str | None]] = []
        self.down = False
        self.may_forget_offsets = False

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def update_consumer_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, lock_owner: str | None = None
    ) -> set[MessageQueue]:
        if self.down:
            raise RemotingConnectError("down")
        self.calls.append((dict(offsets), lock_owner))
        self.offsets.update(offsets)
        return set(offsets)


def remote(*, lock_owner: str | None = None) -> tuple[RemoteBrokerOffsetStore, dict[str, RecordingBroker]]:
    brokers = {"broker-a": RecordingBroker(), "broker-b": RecordingBroker()}
    backend: Any = SimpleNamespace(brokers=lambda: brokers)
    return RemoteBrokerOffsetStore(backend, "g", lock_owner=lock_owner), brokers


@pytest.mark.statement("G10")
def test_progress_is_in_memory_until_it_is_persisted() -> None:
    """G10: the local progress is updated first and synchronised by a timer."""
    store, brokers = remote()
    store.update(Q0, 5, increase_only=True)
    assert store.read(Q0) == 5
    assert brokers["broker-a"].calls == []
    store.persist([Q0, Q1])
    assert brokers["broker-a"].calls == [({Q0: 5}, None)]
    assert brokers["broker-b"].calls == []


def test_what_did_not_change_is_not_sent_again() -> None:
    """A reset by an administrator between two persists must not be overwritten by a consumer that stands still."""
    store, brokers = remote()
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    brokers["broker-a"].offsets[Q0] = 1
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    assert brokers["broker-a"].offsets[Q0] == 1


def test_a_broker_that_may_forget_offsets_is_told_all_of_them_each_time() -> None:
    """RemoteBrokerOffsetStore#persistAll: a killed broker goes back by some seconds."""
    store, brokers = remote()
    brokers["broker-a"].may_forget_offsets = True
    store.update(Q0, 5, increase_only=True)
    store.update(Q1, 6, increase_only=True)
    store.persist([Q0, Q1])
    brokers["broker-a"].offsets.clear()
    store.persist([Q0, Q1])
    assert brokers["broker-a"].offsets == {Q0: 5}
    assert len(brokers["broker-b"].calls) == 1


def test_a_broker_that_is_away_and_knows_all_changes_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    store, brokers = remote()
    brokers["broker-a"].may_forget_offsets = True
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    brokers["broker-a"].down = True
    with caplog.at_level("INFO"):
        store.persist([Q0])
    assert "not committed again: down" in caplog.text
    store.update(Q0, 7, increase_only=True)
    with pytest.raises(RemotingConnectError):
        store.persist([Q0])
    brokers["broker-a"].down = False
    store.persist([Q0])
    assert brokers["broker-a"].offsets == {Q0: 7}


def test_an_update_of_concurrent_consumption_never_goes_back() -> None:
    """OffsetStore#updateOffset: the memory table is increase-only; an ordered commit may set any offset."""
    store, _ = remote()
    store.update(Q0, 5, increase_only=True)
    store.update(Q0, 3, increase_only=True)
    assert store.read(Q0) == 5
    store.update(Q0, 3, increase_only=False)
    assert store.read(Q0) == 3


def test_a_broker_that_is_down_gets_its_part_the_next_time() -> None:
    store, brokers = remote(lock_owner="me")
    store.update(Q0, 5, increase_only=True)
    store.update(Q1, 7, increase_only=True)
    brokers["broker-b"].down = True
    with pytest.raises(RemotingConnectError):
        store.persist([Q0, Q1])
    brokers["broker-b"].down = False
    store.persist([Q0, Q1])
    assert brokers["broker-a"].calls == [({Q0: 5}, "me")]
    assert brokers["broker-b"].calls == [({Q1: 7}, "me")]


def test_a_broker_that_fails_does_not_keep_the_others_from_their_part() -> None:
    store, brokers = remote()
    gone = MessageQueue("T", "a-broker-that-left", 0)
    for queue in (gone, Q0, Q1):
        store.update(queue, 5, increase_only=True)
    brokers["broker-a"].down = True
    with pytest.raises(MQClientError, match="a-broker-that-left"):
        store.persist([gone, Q0, Q1])
    assert brokers["broker-b"].offsets == {Q1: 5}
    brokers["broker-a"].down = False
    with pytest.raises(MQClientError, match="a-broker-that-left"):
        store.persist([gone, Q0, Q1])
    assert (brokers["broker-a"].offsets, len(brokers["broker-b"].calls)) == ({Q0: 5}, 1)
    with pytest.raises(MQClientError, match="a-broker-that-left"):
        store.read_stored(gone)


def beside(store: OffsetStore, write: Callable[..., Any]) -> Callable[..., Any]:
    """`write`, whose first call another thread overtakes, unless that has to wait: with newer progress of Q0, and the
    first one of Q1.
    """
    threads: list[threading.Thread] = []

    def overtake() -> None:
        store.update(Q0, 7, increase_only=True)
        store.update(Q1, 1, increase_only=True)
        store.persist([Q0, Q1])

    def written(*given: Any, **named: Any) -> Any:
        if threads:
            return write(*given, **named)
        threads.append(threading.Thread(target=overtake))
        threads[0].start()
        threads[0].join(0.3)  # too short a wait only hides that it was overtaken
        return write(*given, **named)

    return written


def test_older_progress_is_never_stored_behind_newer_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of a consumer persist: that of the timers, and one that calls persist_consumer_offset."""
    store, brokers = remote()
    update = brokers["broker-a"].update_consumer_offsets
    monkeypatch.setattr(brokers["broker-a"], "update_consumer_offsets", beside(store, update))
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    store.persist([Q0, Q1])  # behind the other thread
    assert brokers["broker-a"].offsets == {Q0: 7}
    assert brokers["broker-b"].offsets == {Q1: 1}


def test_two_threads_that_write_the_file_lose_nothing_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalFileOffsetStore(tmp_path, "c", "g")
    monkeypatch.setattr(offset_store, "write_atomically", beside(store, offset_store.write_atomically))
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    store.persist([Q0, Q1])  # behind the other thread
    assert load_offsets(store.path.read_bytes(), "") == {Q0: 7, Q1: 1}


def test_a_forgotten_queue_is_asked_for_again() -> None:
    store, brokers = remote()
    brokers["broker-a"].offsets[Q0] = 9
    assert store.read(Q0) == 9
    store.update(Q0, 11, increase_only=True)
    store.forget(Q0)
    store.persist([Q0])
    assert store.read(Q0) == 9


def test_broadcast_progress_survives_in_a_file_of_the_client_and_group(tmp_path: Path) -> None:
    """LocalFileOffsetStore: <dir>/<clientId>/<group>/offsets.json, with .bak."""
    store = LocalFileOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g")
    assert store.read(Q0) is None
    store.update(Q0, 5, increase_only=True)
    store.persist([Q0])
    store.update(Q1, 6, increase_only=True)
    store.persist([Q0, Q1])
    path = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    assert load_offsets(path.read_bytes(), "") == {Q0: 5, Q1: 6}
    assert load_offsets(path.with_suffix(".json.bak").read_bytes(), "") == {Q0: 5}
    again = LocalFileOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g")
    assert (again.read(Q0), again.read(Q1)) == (5, 6)
    assert LocalFileOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "other").read(Q0) is None


def test_a_torn_offsets_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    """LocalFileOffsetStore#readLocalOffsetBak. Both damaged: an error, not offset 0."""
    path = tmp_path / "c" / "g" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"offsetTable":{{"brokerName"')
    path.with_suffix(".json.bak").write_text(dump_offsets({Q0: 4}))
    assert LocalFileOffsetStore(tmp_path, "c", "g").read(Q0) == 4
    path.with_suffix(".json.bak").write_text("nonsense")
    with pytest.raises(CorruptConfigError, match=r"offsets\.json"):
        LocalFileOffsetStore(tmp_path, "c", "g")


def test_offsets_are_written_as_fastjson_writes_maps_with_object_keys() -> None:
    """OffsetSerializeWrapper, by fastjson: the keys are objects."""
    assert dump_offsets({Q1: 7, Q0: 5}) == (
        '{\n\t"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,'
        '{"brokerName":"broker-b","queueId":1,"topic":"T"}:7\n\t}\n}'
    )
    java = (
        b'{\n\t"offsetTable":{{\n\t\t\t"topic":"T","brokerName":"broker-a",\n\t\t\t"queueId":0\n\t\t}:5,\n\t\t'
        b'{"brokerName":"br{o}k","queueId":3,"topic":"%RETRY%g"}:0\n\t}\n}'
    )
    assert load_offsets(java, "") == {Q0: 5, MessageQueue("%RETRY%g", "br{o}k", 3): 0}
    assert load_offsets(dump_offsets({}).encode(), "") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"[]",
        b'{"offsetTable":{{"brokerName":"a","queueId":0}:5}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":"0","topic":"T"}:5}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:-5}}',
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:5 {"brokerName":"b","queueId":0,"topic":"T"}:5}}',
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptConfigError):
        load_offsets(text, "x")
