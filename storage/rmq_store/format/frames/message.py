"""A message as a sender gives it, and its checks (control plane)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType, NoneType
from typing import NamedTuple

from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass

_EMPTY: Mapping[str, str] = MappingProxyType({})

_TEXT = (str, NoneType)
_INTEGER = (NoneType, int)
_USUAL_MAPPINGS = (dict, MappingProxyType)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a caller sends it.

    `keys` is text with keys separated by single spaces, or a sequence of keys without spaces. `queue_id` None lets
    the store choose; messages with the same `sharding_key` go to the same queue. `born_timestamp_ms` None means now.
    The message waits for the delay of `delay_level` (0: none), or else until `deliver_timestamp_ms` (None: at once).
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    flag: int = 0
    queue_id: int | None = None
    sharding_key: str | None = None
    born_timestamp_ms: int | None = None
    delay_level: int = 0
    deliver_timestamp_ms: int | None = None

    def stored_properties(self, unique_id: str | None = None) -> dict[str, str]:
        """All properties in the order in which they are stored: the named fields, then `properties`.

        A field that is None, empty or the level 0 leaves the property of its name as it is in `properties`. A checksum
        of the frame (`__CRC32#`) is never taken from there.
        """
        stored: dict[str, str] = {}
        if unique_id:
            stored[names.UNIQUE_KEY] = unique_id
        if keys := self.keys if self.keys is None or isinstance(self.keys, str) else " ".join(self.keys):
            stored[names.KEYS] = keys
        if self.tags:
            stored[names.TAGS] = self.tags
        if self.sharding_key:
            stored[names.SHARDING_KEY] = self.sharding_key
        if self.delay_level:
            stored[names.DELAY_TIME_LEVEL] = str(self.delay_level)
        if self.deliver_timestamp_ms is not None:
            stored[names.TIMER_DELIVER_MS] = str(self.deliver_timestamp_ms)
        for name, value in self.properties.items():
            if name != names.CRC32:
                stored.setdefault(name, value)
        return stored


def changed(
    message: Message,
    *,
    body: bytes | None = None,
    properties: Mapping[str, str] | None = None,
    queue_id: int | None = None,
) -> Message:
    """The message with another body, properties or queue; None leaves what it has. It is asked for with every message
    that is sent, and `dataclasses.replace` looks at each field three times.
    """
    return Message(
        message.topic,
        message.body if body is None else body,
        message.tags,
        message.keys,
        message.properties if properties is None else properties,
        message.flag,
        message.queue_id if queue_id is None else queue_id,
        message.sharding_key,
        message.born_timestamp_ms,
        message.delay_level,
        message.deliver_timestamp_ms,
    )


class Origin(NamedTuple):
    """How a message came over the network. `born_host` is its sender's; None: the store's own. `sys_flag` holds the
    compression of a body that the sender has compressed.
    """

    born_host: Host | None = None
    sys_flag: int = 0


def check_message(message: object) -> None:
    """Refuse any value that is no Message, and a Message with a field of another type than declared.

    It runs once for every message that is sent: one quick test accepts a right one, and only a wrong one is searched.

    Raises:
        UsageError: names the field.
    """
    if (
        isinstance(message, Message)
        and type(message.topic) is str
        and type(message.body) is bytes
        and type(message.flag) is int
        and type(message.delay_level) is int
        and type(message.tags) in _TEXT
        and type(message.keys) in _TEXT
        and type(message.sharding_key) in _TEXT
        and type(message.queue_id) in _INTEGER
        and type(message.born_timestamp_ms) in _INTEGER
        and type(message.deliver_timestamp_ms) in _INTEGER
        and type(message.properties) in _USUAL_MAPPINGS
    ):
        return
    _check_each(message)


def _check_each(message: object) -> None:
    if not isinstance(message, Message):
        raise UsageError(f"a Message is expected, got {type(message).__name__}")
    if not isinstance(message.topic, str):
        raise UsageError(f"the topic is {type(message.topic).__name__}, not text")
    if not isinstance(message.body, bytes):
        raise UsageError(f"the body is {type(message.body).__name__}, not bytes")
    if not isinstance(message.properties, Mapping):
        raise UsageError(f"the properties are {type(message.properties).__name__}, not a mapping")
    keys = message.keys
    if not isinstance(keys, str | None):
        if isinstance(keys, bytes) or not isinstance(keys, Collection):
            raise UsageError(f"the keys are {type(keys).__name__}, not text and not a list of texts")
        if not all(isinstance(key, str) for key in keys):
            raise UsageError("the keys hold something that is not text")
    if not isinstance(message.tags, str | None):
        raise UsageError(f"property {names.TAGS!r}: the value is no text but {type(message.tags).__name__}")
    if not isinstance(message.sharding_key, str | None):
        raise UsageError(f"the sharding key is {type(message.sharding_key).__name__}, not text")
    _check_integers(message)


def _check_integers(message: Message) -> None:
    for name in ("flag", "delay_level", "queue_id", "born_timestamp_ms", "deliver_timestamp_ms"):
        value = getattr(message, name)
        if value is None and name not in ("flag", "delay_level"):
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{name}={value!r} is {type(value).__name__}, not int")
