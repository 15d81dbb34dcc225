"""Short form of test 6: crash images of a simulated disk."""

from __future__ import annotations

import random

import pytest

from crash import failing_calls, simulated_disk  # noqa: F401 - failing_calls defines `no_flush`
from crash.conftest import Run
from crash.disk_image import Disk, Image, Operation

pytestmark = pytest.mark.harness

(PART,) = simulated_disk.PARTS


def test_whatever_a_power_cut_leaves_is_what_was_written_with_all_that_was_acknowledged(run_part: Run) -> None:
    counters = run_part(PART)
    assert not counters.violations, counters
    assert counters.cycles == counters.seen["images drawn"] == PART.harness
    assert counters.seen["different images opened"] > PART.harness // 4
    assert counters.seen["lives"] >= PART.harness // simulated_disk.IMAGES_PER_LIFE
    assert counters.acknowledged > PART.harness


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations


def images(*operations: Operation) -> list[dict[str, bytes]]:
    """Every different disk that 500 cuts behind these operations leave."""
    chance, disk = random.Random(1), Disk(Image(frozenset([""]), frozenset()))
    for operation in operations:
        disk.apply(operation)
    found = {disk.image(chance) for _ in range(500)}
    return [{path: stored.data for path, stored in image.files} for image in found]


def test_what_was_never_synced_may_be_there_in_any_part() -> None:
    found = images(("name", "a", 1), ("write", 1, 0, b"x" * 600), ("name", "b", 2))
    assert {"b": b""} in found and {} in found
    # The size, the first and the second sector, each there or not.
    assert {image["a"] for image in found if "a" in image} == {
        b"", bytes(600), b"x" * 512 + bytes(88), bytes(512) + b"x" * 88, b"x" * 600,
    }  # fmt: skip


def test_a_sector_is_as_it_was_after_any_of_its_writes() -> None:
    start = ("name", "a", 1), ("write", 1, 0, b"0000"), ("syncfs",)
    found = images(*start, ("write", 1, 0, b"11"), ("write", 1, 2, b"22"))
    assert sorted(image["a"] for image in found) == [b"0000", b"1100", b"1122"]


def test_what_was_synced_is_there() -> None:
    found = images(("name", "a", 1), ("write", 1, 0, b"x"), ("fsync", 1), ("write", 1, 0, b"y"))
    assert {image.get("a") for image in found} == {None, b"x", b"y"}
    found = images(("name", "a", 1), ("write", 1, 0, b"x"), ("fsync_directory", ""), ("fsync", 1))
    assert found == [{"a": b"x"}]


def test_a_rename_is_there_or_not_and_the_old_content_never_half() -> None:
    start = ("name", "a", 1), ("write", 1, 0, b"old"), ("syncfs",)
    replace = ("name", "t", 2), ("write", 2, 0, b"new"), ("fsync", 2), ("rename", "t", "a", 2)
    assert {image["a"] for image in images(*start, *replace)} == {b"old", b"new"}
    assert images(*start, *replace, ("fsync_directory", "")) == [{"a": b"new"}]


def test_files_of_a_directory_that_is_not_there_are_gone() -> None:
    found = images(("mkdir", "d"), ("name", "d/a", 1), ("write", 1, 0, b"x"), ("fsync", 1), ("fsync_directory", "d"))
    assert sorted(map(str, found)) == ["{'d/a': b'x'}", "{}"]
