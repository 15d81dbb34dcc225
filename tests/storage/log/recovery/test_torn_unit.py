"""A unit whose last record is torn in its properties, in a store without the CRC property.

RocketMQ's own CRC covers the body only (#7437), so such a record passes for whole. The unit was kept, but a look-up
knows last records by their tag, and this one had lost it: Spark's repetition would have committed the same rows again.
Now a unit ends with a record that says so, and is dropped like any other that has no end.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import StagingArea, Store, StoreConfig

_CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, max_hash_slot_num=8, max_index_num=40,
    flush_interval_commit_log=10**9, enabled_append_prop_crc=False,
)  # fmt: skip
_LAST_BYTES = b"TAGS\x01end\x02"


def _rows(store: Store) -> int:
    first, last = store.queue_range("Orders", 0)
    return last - first


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, int]:
    """A store whose only unit was not flushed when the power was cut, and where its log ended."""
    root = tmp_path / "killed"
    store = Store.open(root, create=True, config=_CONFIG)
    store.create_topic("Orders", 1)
    with StagingArea.for_task(root, "write", 0, 0, topic="Orders") as area:
        area.write(pa.RecordBatch.from_pydict({"body": pa.array([b"one", b"two"])}))
        staged = area.finish()
    assert staged is not None
    store.commit_staged([staged], key="query", value=1)
    end = store.log_range()[1]
    assert store._flusher is not None
    store._flusher.stop()
    store._closed = True
    store._log.close()
    with (root / "pyrmq" / "state").open("r+b") as page:
        page.seek(8)
        page.write(b"another boot id.")
    return root, end


@pytest.mark.parametrize("missing", range(len(_LAST_BYTES) + 3))
def test_a_unit_is_there_if_its_value_is(killed: tuple[Path, int], tmp_path: Path, missing: int) -> None:
    root, end = killed
    torn = tmp_path / "torn"
    shutil.copytree(root, torn)
    with (torn / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(end - len(_LAST_BYTES))
        assert log.read().startswith(_LAST_BYTES)
        log.seek(end - missing)
        log.write(bytes(missing))
    with Store.open(torn) as store:
        value = store.last_unit("sink", "query")
        assert (_rows(store), value) == ((0, None) if missing else (2, 1))
