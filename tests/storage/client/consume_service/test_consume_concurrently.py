"""What the answer of a listener means: ConsumeMessageConcurrentlyService#processConsumeResult."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.client.consume_service.consume_concurrently import done_count
from rmq_store.client.consume_service.listener import ACK_ALL, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.protocol.messages import MessageQueue


@pytest.mark.statement("C01", "B02")
@pytest.mark.parametrize(
    ("answer", "ack_index", "done"),
    [
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ACK_ALL, 4),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, 3, 4),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, 0, 1),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, -1, 0),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, -5, 0),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None, 0),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, 1.5, 0),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, 3, 0),
        ("CONSUME_SUCCESS", 3, 0),
        (None, 3, 0),
    ],
)
def test_of_four_messages_the_first_ones_are_done(answer: Any, ack_index: Any, done: int) -> None:
    context = ConsumeConcurrentlyContext(MessageQueue("T", "b", 0), ack_index=ack_index)
    assert done_count(lambda: answer, context, 4, "g", lambda: "four") == done


def test_what_ends_a_process_is_not_a_failed_message() -> None:
    def leave() -> None:
        raise SystemExit(1)

    context = ConsumeConcurrentlyContext(MessageQueue("T", "b", 0))
    with pytest.raises(SystemExit):
        done_count(leave, context, 4, "g", lambda: "four")
