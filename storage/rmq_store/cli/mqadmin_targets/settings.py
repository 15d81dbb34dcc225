"""Settings of topics, groups and brokers: what options change, and what is exported. The same for both targets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import SubscriptionGroup, TopicConfig
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
    from rmq_store.protocol.bodies.topics import TopicConfig as RemoteTopicConfig

    Topic = TypeVar("Topic", TopicConfig, RemoteTopicConfig)
    Group = TypeVar("Group", SubscriptionGroup, SubscriptionGroupConfig)

QUEUES = 8
"""Of a topic that is new (UpdateTopicSubCommand)."""

EXPORTED_SETTINGS = (
    "brokerName", "fileReservedTime", "flushDiskType", "maxMessageSize", "messageDelayLevel", "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)  # fmt: skip
"""ExportConfigsCommand#needBrokerProprties, those that a store has."""

# GroupRetryPolicyType.java
_RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")


def changed_topic(known: Topic, given: Mapping[str, Any], attributes: Mapping[str, str | None]) -> Topic:
    """The settings with those that are named by options of updateTopic."""
    flag = known.topic_sys_flag
    for bit, value in ((1, given["unit"]), (2, given["unit_sub"])):
        if value is not None:
            flag = flag | bit if value else flag & ~bit
    fields = {"read_queue_nums": "read_queues", "write_queue_nums": "write_queues", "perm": "perm", "order": "order"}
    named = {field: given[option] for field, option in fields.items() if given[option] is not None}
    return replace(known, **named, topic_sys_flag=flag, attributes=_changed(known.attributes, attributes))


def changed_group(known: Group, named: Mapping[str, Any], attributes: Mapping[str, str | None]) -> Group:
    """The settings with those that are named by options of updateSubGroup."""
    return replace(known, **named, attributes=_changed(known.attributes, attributes))


def retry_policy(text: str) -> dict[str, Any]:
    """GroupRetryPolicy.java as JSON. UsageError."""
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"-p {text!r} is no JSON: {error}") from error
    if not isinstance(policy, dict) or policy.get("type") not in _RETRY_POLICIES:
        raise UsageError(f"-p {text!r}: an object whose type is one of {', '.join(_RETRY_POLICIES)}")
    return policy


def is_exported_topic(name: str, *, with_special: bool) -> bool:
    """Whether it is a topic of users; retry and dead-letter topics only `with_special`."""
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

    return not is_system_topic(name) and (with_special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))


def is_exported_group(name: str) -> bool:
    """Whether it is a group of users."""
    from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group

    return name not in SYSTEM_GROUPS and not is_system_group(name)


def _changed(known: Mapping[str, str] | None, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Attributes, without those whose change is None, and with those that have a value."""
    kept = {name: value for name, value in (known or {}).items() if name not in changes}
    return {**kept, **{name: value for name, value in changes.items() if value is not None}}
