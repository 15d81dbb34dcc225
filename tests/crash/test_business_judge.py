"""What the judge of part 29 demands, without anybody being killed."""

from __future__ import annotations

from types import SimpleNamespace

from crash.business.judge import Found


def test_people_must_be_told_of_a_message_that_kills_its_senders_unless_it_is_void() -> None:
    killer, other = SimpleNamespace(kills=True), SimpleNamespace(kills=False)
    found = Found(
        orders={"told": killer, "void": killer, "untold": killer, "other": other},
        status={"told": "unconfirmed", "void": "void", "untold": "unconfirmed", "other": "unconfirmed"},
        manual_stubs={"told"},
    )
    assert found.untold_killers() == ["untold"]
