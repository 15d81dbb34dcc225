"""The outcome of a send, by its answer."""

from __future__ import annotations

import pytest

from rmq_store.client.cluster_sink.outcomes import Outcome, verdict_of
from rmq_store.protocol.errors import MQBrokerError


@pytest.mark.parametrize(
    ("code", "remark", "outcome"),
    [
        (0, "", Outcome.STORED),
        (12, "", Outcome.STORED_WEAKLY),
        (2, "[PC_SYNCHRONIZED]broker busy", Outcome.NOT_STORED),
        (1, "java.lang.NullPointerException", Outcome.UNKNOWN),
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T", Outcome.REFUSED),
        (13, "", Outcome.REFUSED),
    ],
)
def test_a_code_tells_whether_messages_are_stored(code: int, remark: str, outcome: Outcome) -> None:
    assert verdict_of(MQBrokerError(code, remark)).outcome is outcome
