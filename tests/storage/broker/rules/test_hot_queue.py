"""A new group begins at 0 of a queue whose messages are all in memory; one byte more than 40 % of it is too much."""

from __future__ import annotations

import os

import pytest

from rmq_store.broker.rules.hot_queue import starts_at_first_message

MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Log:
    """A log of which only the first message of one queue and the end are known."""

    def __init__(self, first_message: int, end: int) -> None:
        self.first_message = first_message
        self.end = end

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int, /) -> int:
        assert (topic, queue_id, queue_offset) == ("T", 3, 1)
        return self.first_message

    def log_range(self) -> tuple[int, int]:
        return 0, self.end


@pytest.mark.parametrize(("beyond_bytes", "expected"), [(0, True), (1, False)])
def test_a_queue_is_hot_up_to_a_part_of_the_memory(beyond_bytes: int, expected: bool) -> None:
    limit_bytes = MEMORY_BYTES * 40 // 100
    assert starts_at_first_message(Log(1000, 1000 + limit_bytes + beyond_bytes), "T", 3, 7) is expected


def test_an_empty_queue_is_hot_and_nothing_is_asked_of_it() -> None:
    assert starts_at_first_message(Log(0, 1 << 62), "another", 0, 0)
