"""How often and when consumers repeat a message, as their settings say it (GrpcClientSettingsManager.java)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rmq_store.backoff import Backoff
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.format.text.delay_levels import DELAY_LEVELS_MS, retry_level
from rmq_store.server.grpc_definitions.definitions import ms_of, new, timestamp_fields

_RETRIES_MAX: Final = 1000
# ExponentialRetryPolicy.java.
_EXPONENTIAL_MS: Final = {"initial": 5_000, "max": 7_200_000}
_WAIT_MS_MAX: Final = 1 << 40
_EXPONENT_MAX: Final = 32


def retry_policy_of(group: SubscriptionGroup) -> Any:
    """Return the RetryPolicy of a group: its `retryMaxTimes`, and its `groupRetryPolicy` where that can be used.
    Otherwise the times are those of RocketMQ.
    """
    policy = group.group_retry_policy
    backoff = new("RetryPolicy", max_attempts=max(1, group.retry_max_times + 1))
    if policy.get("type") == "EXPONENTIAL":
        given = _part(policy, "exponentialRetryPolicy")
        times = {name: timestamp_fields(_wait_ms(given.get(name), ms)) for name, ms in _EXPONENTIAL_MS.items()}
        multiplier = given.get("multiplier")
        factor = multiplier if type(multiplier) is int and 1 <= multiplier <= 1000 else 2
        backoff.exponential_backoff.CopyFrom(new("ExponentialBackoff", multiplier=factor, **times))
    else:
        given_ms = _part(policy, "customizedRetryPolicy").get("next")
        # CustomizedRetryPolicy.java has the times of the delay levels: before the second attempt, the third, and so on.
        own = given_ms if isinstance(given_ms, list) and given_ms else DELAY_LEVELS_MS
        nexts = [timestamp_fields(_wait_ms(ms, DELAY_LEVELS_MS[-1])) for ms in own[:_RETRIES_MAX]]
        backoff.customized_backoff.CopyFrom(new("CustomizedBackoff", next=nexts))
    return backoff


def wait_ms(group: SubscriptionGroup, reconsume_times: int) -> int:
    """How long a message is hidden before its next attempt when its consumer has not answered (RetryPolicy.java).

    RocketMQ's list of times begins with its third one there, CustomizedRetryPolicy.java.
    """
    policy = retry_policy_of(group)
    if policy.HasField("exponential_backoff"):
        times = policy.exponential_backoff
        waits = Backoff(ms_of(times.initial), ms_of(times.max), times.multiplier)
        return int(waits.wait_ms(1 + min(reconsume_times, _EXPONENT_MAX)))
    nexts = policy.customized_backoff.next
    return ms_of(nexts[min(retry_level(reconsume_times), len(nexts)) - 1])


def _part(policy: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of what is kept as it is in the file."""
    part = policy.get(name)
    return part if isinstance(part, Mapping) else {}


def _wait_ms(given: Any, otherwise: int) -> int:
    return given if type(given) is int and 0 <= given <= _WAIT_MS_MAX else otherwise
