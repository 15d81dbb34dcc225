"""kafka-python's errors as ours: at fault, where, and whether it is worth to try again."""

from __future__ import annotations

import logging
import ssl

import pytest
from kafka import TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from rmq_store import KafkaOffsetError, KafkaRefusedError, KafkaUnavailableError, MirrorSourceError, UsageError
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.failures import connecting, translated

UNAVAILABLE = [
    errors.KafkaTimeoutError("late"), errors.KafkaConnectionError("gone"), errors.NodeNotReadyError("1"),
    errors.NotLeaderForPartitionError(), errors.UnstableOffsetCommitError(), ConnectionResetError("reset"),
]  # fmt: skip
REFUSED = [
    errors.TopicAuthorizationFailedError("t"), errors.SaslAuthenticationFailedError("who"),
    errors.PolicyViolationError("no"), errors.KafkaError("odd"),
]  # fmt: skip
MISTAKES = [
    errors.KafkaConfigurationError("odd"), errors.InvalidTopicError("a/b"), ssl.SSLError(1, "bad certificate"),
    FileNotFoundError(2, "No such file", "/etc/ca.pem"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((error, KafkaUnavailableError) for error in UNAVAILABLE),
        *((error, KafkaRefusedError) for error in REFUSED),
        *((error, UsageError) for error in MISTAKES),
    ],
)
def test_an_error_says_who_is_at_fault_and_what_was_asked(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^Kafka, asking for topics: ") as told, translated("asking for topics"):
        raise error
    assert type(told.value) is kind
    assert told.value.__cause__ is error


def test_an_offset_out_of_range_comes_with_its_place() -> None:
    with pytest.raises(KafkaOffsetError, match="orders/3 offset 17") as told, translated("reading"):
        raise errors.OffsetOutOfRangeError({TopicPartition("orders", 3): 17})
    assert told.value.offsets == {("orders", 3): 17}


@pytest.mark.parametrize("known", [True, False])
def test_a_truncated_partition_is_an_error_of_the_source(known: bool) -> None:
    end = OffsetAndMetadata(12, "", 4) if known else None
    with pytest.raises(MirrorSourceError, match="orders/3" + (".* 12 " if known else "")), translated("reading"):
        raise errors.LogTruncationError({TopicPartition("orders", 3): end})


@pytest.mark.parametrize(
    ("attempts", "kind", "why"),
    [
        ([errors.SaslAuthenticationFailedError("bad password"), errors.KafkaConnectionError("closed")],
         KafkaRefusedError, "bad password"),
        ([errors.KafkaConnectionError("unknown certificate")], KafkaUnavailableError, "late: .*unknown certificate"),
        ([], KafkaUnavailableError, "late$"),
    ],
)  # fmt: skip
def test_why_nobody_could_be_connected_to_is_said(attempts: list[Exception], kind: type[Exception], why: str) -> None:
    log = logging.getLogger("kafka.net.manager")
    handlers = list(log.handlers)
    connection = KafkaConnection(("k:1",))
    with pytest.raises(kind, match=why) as told, connecting(connection):
        for attempt in attempts:
            log.warning("Bootstrap connection to %s failed: %s (backoff %.2f secs)", "k", attempt, 0.1)
        raise errors.KafkaTimeoutError("late")
    assert type(told.value) is kind
    assert log.handlers == handlers


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT", "SSL"])
def test_a_connection_that_is_closed_while_a_user_signs_in_names_the_likely_reason(protocol: str) -> None:
    """kafka-python drops the broker's answer if it finds it together with the close."""
    connection = KafkaConnection(("k:1",), {"security_protocol": protocol})
    log = logging.getLogger("kafka.net.manager")
    with pytest.raises(KafkaUnavailableError, match="socket disconnected") as told, connecting(connection):
        error = errors.KafkaConnectionError("socket disconnected")
        log.warning("Bootstrap connection to %s failed: %s (backoff %.2f secs)", "k", error, 0.1)
        log.error("Bootstrap failed: %s", errors.KafkaTimeoutError("late"))
        raise errors.KafkaTimeoutError("late")
    assert ("refuse the user, the password" in str(told.value)) == protocol.startswith("SASL")


def test_a_long_error_is_cut() -> None:
    with pytest.raises(KafkaRefusedError) as told, translated("reading"):
        raise errors.KafkaError("x" * 10_000)
    assert len(str(told.value)) < 400


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), translated("reading"):
        raise ZeroDivisionError
