"""Ids of messages that the outbox makes."""

from __future__ import annotations

import time

from rmq_store.format.text.ids import month_start_ms, parse_unique_id
from rmq_store.reliable.outbox.message_ids import MessageIds


def test_an_id_tells_when_its_message_was_born() -> None:
    now_ms = time.time_ns() // 1_000_000
    made = parse_unique_id(MessageIds().new(now_ms))
    month_ms = month_start_ms(now_ms)
    assert abs(made.time_ms(now_ms + 1, month_ms, month_start_ms(month_ms - 1)) - now_ms) < 1_000


def test_no_id_comes_twice_whatever_the_clock_does() -> None:
    ids = MessageIds()
    now_ms = 1_700_000_000_000
    day_ms = 86_400_000
    made = [ids.new(now_ms) for _ in range(70_000)]
    made += [ids.new(now_ms + jump) for jump in (-5_000, -day_ms, 0, day_ms, -40 * day_ms, 40 * day_ms, 0, 41 * day_ms)]
    made += [MessageIds().new(now_ms) for _ in range(100)]
    assert len(set(made)) == len(made)
    assert {len(each) for each in made} == {32}
    assert made[:1_000] == sorted(made[:1_000])
