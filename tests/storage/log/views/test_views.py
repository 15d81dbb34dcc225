"""How many queues an open store remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rmq_store.log.views import views

if TYPE_CHECKING:
    from .conftest import Lab


@pytest.mark.parametrize("read_only", [True, False])
def test_a_reader_remembers_no_more_than_so_many_queues_and_a_writer_all_of_its_own(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    monkeypatch.setattr(views, "_READ_QUEUES_MAX", 3)
    with lab.open() as store:
        store.append(lab.batch(8))
    with lab.open(read_only=read_only) as store:
        for _ in range(3):
            assert [store.queue_range(topic, queue_id) for topic in ("Alpha", "Beta") for queue_id in range(2)] == [
                (0, 2)
            ] * 4
            assert (len(store._log.views._queues) <= 3) is read_only
