"""The outcome of a send, by its answer."""

from __future__ import annotations

import pytest

from rmq_store.client.delivery.outcome import SendOutcome, verdict_of
from rmq_store.protocol.errors import (
    ClientErrorCode,
    MessageIllegalError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    TimerNotSupportedError,
)
from rmq_store.reliable.outbox.sending import may_have_been_sent

ACL_4X = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T"


@pytest.mark.parametrize(
    ("code", "remark", "outcome"),
    [
        (0, "", SendOutcome.STORED),
        (12, "", SendOutcome.STORED_WEAKLY),
        (2, "[PC_SYNCHRONIZED]broker busy", SendOutcome.NOT_STORED),
        (1, "java.lang.NullPointerException", SendOutcome.UNKNOWN),
        (1, ACL_4X, SendOutcome.REFUSED),
        (13, "", SendOutcome.REFUSED),
    ],
)
def test_a_code_tells_whether_messages_are_stored(code: int, remark: str, outcome: SendOutcome) -> None:
    assert verdict_of(MQBrokerError(code, remark)).outcome is outcome


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome", "counts"),
    [
        (MQBrokerError(16, "no permission"), SendOutcome.NOT_STORED, False),
        (MQBrokerError(1, ACL_4X), SendOutcome.REFUSED, False),
        (caused(MQClientError("still failed", 1), MQBrokerError(1, ACL_4X)), SendOutcome.REFUSED, False),
        (caused(MQClientError("still failed", 16), MQBrokerError(16, "")), SendOutcome.NOT_STORED, False),
        (caused(MQClientError("still failed", 1), MQBrokerError(1, "disk")), SendOutcome.UNKNOWN, True),
        (MQBrokerError(2, "busy"), SendOutcome.NOT_STORED, False),
        (MQBrokerError(13, "too large"), SendOutcome.REFUSED, True),
        (MessageIllegalError("no body"), SendOutcome.REFUSED, True),
        (TimerNotSupportedError("broker-a"), SendOutcome.REFUSED, True),
        (RemotingConnectError("refused"), SendOutcome.NOT_STORED, False),
        (RemotingTimeoutError("no answer"), SendOutcome.UNKNOWN, True),
        (caused(MQClientError("still failed", -1), RemotingTimeoutError("no answer")), SendOutcome.UNKNOWN, True),
        (RemotingTooMuchRequestError("no time left"), SendOutcome.NOT_STORED, False),
        (
            caused(RemotingTooMuchRequestError("no time left"), RemotingTimeoutError("no answer")),
            SendOutcome.UNKNOWN, True,
        ),
        (MQClientError("not running"), SendOutcome.NOT_STORED, False),
        (MQClientError("no route", ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION), SendOutcome.NOT_STORED, False),
    ],
)  # fmt: skip
def test_an_error_is_judged_once_and_counts_in_the_outbox_if_a_broker_may_have_the_message(
    error: Exception, outcome: SendOutcome, counts: bool
) -> None:
    """4.9's want of rights is code 1: the outbox counted it, and 5.x's 16 not."""
    assert verdict_of(error).outcome is outcome
    assert may_have_been_sent(error) is counts  # type: ignore[arg-type]
