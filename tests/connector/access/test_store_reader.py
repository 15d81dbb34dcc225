"""How the connector opens the place where the messages are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq.access import store_reader, store_writer
from pyspark_rmq.access.store_location import StoreLocation, location_of
from pyspark_rmq.options.options import SourceOptions, Subscription, sink_options, source_options
from rmq_store import NotAStoreError, ReadOnlyError, Store, StoreLockedError, UsageError

Make = Callable[..., Any]


OPENINGS: tuple[Callable[[StoreLocation], store_reader.StoreReader], ...] = (
    lambda location: location.open_to_read(),
    lambda location: location.open_to_commit("cg"),
)


def source(path: Path, **fields: Any) -> SourceOptions:
    return SourceOptions(str(path), Subscription(("Orders",)), **fields)


def test_a_store_answers_all_that_the_connector_asks(make_store: Make) -> None:
    path = make_store(Orders=10)
    with location_of(source(path, broker_name="b-1")).open_to_commit("cg") as opened:
        wanted = {name for name in vars(store_reader.StoreReader) if not name.startswith("_")}
        assert wanted <= set(dir(opened))
        limits = opened.queue_ranges("Orders")
        assert sum(limit.max_offset for limit in limits.values()) == 10
        lease = opened.lease("cg", "Orders", "a test")
        assert lease.held() and lease.heartbeat()
        opened.commit_offsets("cg", {("Orders", 0): 1})  # type: ignore[dict-item]
        assert opened.committed_offsets("cg") == {("Orders", 0): 1}
        names = [
            name
            for queue_id, limit in limits.items()
            for batch in opened.read("Orders", queue_id, *limit, columns=["brokerName"], tags=None, raw_body=False)
            for name in batch.column(0).to_pylist()
        ]
        assert names == ["b-1"] * 10


def test_a_group_on_a_store_that_cannot_be_written_is_told_how_to_read_it(
    make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_store(Orders=1)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(ReadOnlyError, match=r"group 'cg' cannot commit.*set commitOffsets=false"):
        location_of(source(path)).open_to_commit("cg")
    location_of(source(path)).open_to_read().close()


def test_the_offsets_of_a_group_are_those_of_the_file_that_the_option_says(make_store: Make) -> None:
    path = make_store(Orders=10)
    for name, offset in (("consumerOffset.json", 1), ("lmqConsumerOffset.json", 2)):
        (path / "config" / name).write_text('{"offsetTable":{"Orders@cg":{0:' + str(offset) + "}}}")
    for opening in OPENINGS:
        with opening(location_of(source(path))) as opened, pytest.raises(UsageError, match="Spark's option enableLmq"):
            opened.committed_offsets("cg")
    for enable_lmq, offset in ((False, 1), (True, 2)):
        options = source(path, group="cg", enable_lmq=enable_lmq)
        with location_of(options).open_to_read() as opened:
            assert opened.committed_offsets("cg") == {("Orders", 0): offset}
        with location_of(options).in_task() as opened:
            assert opened.committed_offsets("cg") == {("Orders", 0): offset}
    with location_of(source(path, enable_lmq=True)).open_to_commit("cg") as opened:
        opened.commit_offsets("cg", {("Orders", 0): 3})  # type: ignore[dict-item]
    assert "{0:3}" in "".join((path / "config" / "lmqConsumerOffset.json").read_text().split())
    assert "{0:1}" in (path / "config" / "consumerOffset.json").read_text()


def test_nothing_is_created_by_reading(tmp_path: Path) -> None:
    for opening in OPENINGS:
        with pytest.raises(NotAStoreError):
            opening(location_of(source(tmp_path / "missing")))
    assert list(tmp_path.iterdir()) == []


def test_preparing_to_write_makes_a_store_once(tmp_path: Path) -> None:
    options = sink_options({"path": str(tmp_path / "new")}, "stream write")
    store_writer.prepare_to_write(options)
    described = (tmp_path / "new" / "pyrmq" / "store.json").read_bytes()
    store_writer.prepare_to_write(options)
    assert (tmp_path / "new" / "pyrmq" / "store.json").read_bytes() == described


def test_a_new_store_is_logged_once_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    options = sink_options({"path": "mistyped"}, "batch write")
    store_writer.prepare_to_write(options)
    store_writer.prepare_to_write(options)
    assert [record.getMessage() for record in caplog.records] == [
        f"made a new store at {tmp_path / 'mistyped'}: nothing was there"
    ]


def test_of_two_tasks_that_see_nothing_one_says_that_it_made_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one opens the store after the first one has closed it, and looked before."""
    options = sink_options({"path": str(tmp_path / "new")}, "batch write")
    store_writer.prepare_to_write(options)
    exists, earlier_looks = Path.exists, iter([False])
    monkeypatch.setattr(Path, "exists", lambda path: next(earlier_looks, exists(path)))
    monkeypatch.setattr(store_writer, "_is_nothing", lambda root: True)
    store_writer.prepare_to_write(options)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_without_create_store_a_write_makes_none(tmp_path: Path, is_mount_point: bool) -> None:
    path = tmp_path / "mistyped"
    if is_mount_point:
        path.mkdir()
    options = sink_options({"path": str(path), "createStore": "false"}, "stream write")
    for prepare in (
        store_writer.prepare_to_write,
        store_writer.is_there_to_write,
        lambda options: store_writer.prepare_batch(options, 0),
        lambda options: store_writer.prepare_batch(options, 7),
    ):
        with pytest.raises(NotAStoreError, match=r"mistyped: there is no store here, and createStore=false.*rmq init"):
            prepare(options)
    assert path.exists() == is_mount_point and not list(tmp_path.glob("mistyped/*"))
    Store.open(path, create=True).close()
    store_writer.prepare_to_write(options)
    assert store_writer.is_there_to_write(options)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda path: store_writer.prepare_to_write(sink_options({"path": path}, "stream write")),
        lambda path: store_writer.prepare_to_send_back(sink_options({"path": path, "sendBack": "cg"}, "batch write")),
        lambda path: store_writer.prepare_to_consume(path, "cg", 3),
        lambda path: store_writer.last_sent_back(path, "cg/query"),
    ],
)
def test_what_was_prepared_is_prepared_also_if_the_store_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, prepare: Callable[[str], None]
) -> None:
    path = str(tmp_path / "store")
    described = tmp_path / "store" / "pyrmq" / "store.json"
    Store.open(path, create=True).close()
    for path_of_settings in (described, described.with_name("store.json.bak")):
        path_of_settings.unlink()
    closing = Store.close

    def close(store: Store) -> None:
        closing(store)
        raise StoreLockedError("append.lock: not free within 60000 ms", 1)

    monkeypatch.setattr(Store, "close", close)
    prepare(path)
    assert described.exists()
    assert f"{path} could not be closed" in caplog.text


def test_a_log_in_several_directories_is_read_and_a_group_does_not_commit_there(
    make_store: Make, tmp_path: Path
) -> None:
    """storePathCommitLog of a broker."""
    path = Path(make_store(Orders=10))
    (path / "commitlog").rename(tmp_path / "log")
    (tmp_path / "other").mkdir()
    paths = f"{tmp_path}/log,{tmp_path}/other"
    given = {"path": str(path), "subscribe": "Orders", "storePathCommitLog": paths}
    for use in ("batch read", "stream read"):
        options = source_options(given, use, 0)
        with location_of(options).in_task() as opened:
            assert sum(limit.max_offset for limit in opened.queue_ranges("Orders").values()) == 10
    with pytest.raises(UsageError, match=r"storePathCommitLog.*set commitOffsets=false"):
        source_options({**given, "group": "cg"}, "stream read", 0)
    assert source_options({**given, "group": "cg", "commitOffsets": "false"}, "stream read", 0).group == "cg"
