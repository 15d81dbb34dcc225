"""docs/adr/0035 names each source of the extension that makes one form of messages of another, and its twin."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "adr" / "0035-c-between-two-forms.md"
NATIVE = ROOT / "storage" / "rmq_store" / "native"

ROWS = re.findall(r"^\| (`.+?`) \| .+? \| (`.+?`.*?) \|", PAGE.read_text(), re.MULTILINE)

# They hold values, or bytes of any kind: no form of messages.
OTHERS = {
    "blake2b", "chains", "crc", "crc32c", "digest_slots", "dispatch", "fences", "files", "frames", "group_append",
    "hosts", "index", "lone_append", "module", "patch", "properties", "pull_answers", "queue_frames", "requests",
    "sent_requests", "slices", "text", "walk",
}  # fmt: skip


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_source_is_in_the_table_or_makes_no_messages() -> None:
    listed = {name for sources, _ in ROWS for name in named(sources)}
    assert listed | OTHERS == {path.stem for path in NATIVE.glob("*.c")}
    assert not listed & OTHERS


@pytest.mark.parametrize("twin", sorted({name for _, twins in ROWS for name in named(twins)}))
def test_each_twin_is_there(twin: str) -> None:
    assert find_spec(f"rmq_store.{twin}") is not None
