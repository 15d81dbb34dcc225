"""What the ceiling of writes is measured with moves all the bytes that it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from bench import bare_sink
from bench.bare_sink import BareWriter, Staged


def rows(*counts: int) -> Iterator[pa.RecordBatch]:
    return (pa.record_batch({"body": pa.array([b"."] * count)}) for count in counts)


def test_every_byte_that_tasks_stage_is_copied_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_sink, "_FILE_BYTES", 70_000)
    monkeypatch.setattr(bare_sink, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(bare_sink, "_USED_BYTES", 8192)
    writer = BareWriter(tmp_path, 258)
    messages = [writer.write(rows(*counts)) for counts in ((100, 30), (400,), (7, 1, 500))]
    staged = [Path(message.path) for message in messages if isinstance(message, Staged)]
    content = [path.read_bytes() for path in staged]
    assert [len(each) for each in content] == [258 * 130, 258 * 400, 258 * 508]
    writer.commit(messages)
    log = b"".join((tmp_path / f"{number}").read_bytes() for number in range(len(list(tmp_path.iterdir()))))
    assert log[: 258 * 1038] == b"".join(content)
    assert not any(path.exists() for path in staged)
