"""What the judge of part 29 demands, without anybody being killed."""

from __future__ import annotations

from types import SimpleNamespace

from crash.business.judge import Found
from crash.business.setting import MAX_SEND_COUNT


def test_people_must_be_told_of_a_message_that_kills_its_senders_unless_it_is_void() -> None:
    killer, other = SimpleNamespace(kills=True), SimpleNamespace(kills=False)
    found = Found(
        orders={"told": killer, "void": killer, "untold": killer, "other": other},
        status={"told": "unconfirmed", "void": "void", "untold": "unconfirmed", "other": "unconfirmed"},
        manual_stubs={"told"},
    )
    assert found.untold_killers() == ["untold"]


def test_a_message_that_kills_more_senders_than_its_counted_sends_is_a_violation() -> None:
    killer, other = SimpleNamespace(kills=True), SimpleNamespace(kills=False)
    found = Found(orders={"killer": killer, "another": killer, "other": other})
    most = 3 * MAX_SEND_COUNT * 2
    assert [found.kills_in_excess(kills) for kills in (0, most, most + 4)] == [0, 0, 4]
