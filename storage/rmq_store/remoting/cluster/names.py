"""Names of topics and groups with a namespace, as 4.x clients write them: `ns%name`, `%RETRY%ns%group`.

Only the wire has the namespace: callers give and get names without it. Names of the system never have one.
Source: NamespaceUtil.java.
"""

from __future__ import annotations

from typing import Final

from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

SEPARATOR: Final = "%"
TOOLS_CONSUMER: Final = "TOOLS_CONSUMER"
"""The group of tools, which every broker makes for itself (MixAll.TOOLS_CONSUMER_GROUP)."""


def with_namespace(namespace: str, name: str) -> str:
    """The name on the wire of a topic or a group; "" is no namespace."""
    prefix, plain = _split(name)
    if not namespace or not plain or plain.startswith(namespace + SEPARATOR) or _is_of_system(plain):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{plain}"


def without_namespace(namespace: str, name: str) -> str:
    """The name that users see; a name of another namespace stays as it is."""
    prefix, plain = _split(name)
    return prefix + plain.removeprefix(namespace + SEPARATOR) if namespace else name


def is_in_namespace(namespace: str, name: str) -> bool:
    """Whether a name on the wire belongs to the namespace; without one, every name does."""
    return not namespace or _split(name)[1].startswith(namespace + SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_of_system(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name) or name == TOOLS_CONSUMER
