"""The topics that a mirror copies, and their names on the other side.

A topic is chosen by name, or by a pattern that its whole name matches. A pattern never takes internal topics of either
side, retry topics and dead letters; positions of mirrors are not even taken by name. The rules of `renames` are tried
in their order: the first one whose pattern matches the whole name makes the other name (`\\1` is its first group);
other names stay. Two topics that would become one are refused: in a queue with two sources, offsets would not ascend.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from rmq_store.errors import UsageError
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass

POSITIONS_PREFIX: Final = "__pyrmq"
"""Topics of Kafka in which mirrors keep their positions: to copy them would move them, which is copied, without end."""

DEAD_LETTERS_SUFFIX: Final = "-dead-letters"

_MIRROR = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NEVER_BY_PATTERN: Final = ("__", "_schemas", "_confluent", names.RETRY_PREFIX, names.DLQ_PREFIX, "%")


def check_mirror_name(name: str) -> str:
    """A mirror's name, which is part of keys, group names and transactional ids. UsageError: it is invalid."""
    if not _MIRROR.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a mirror: 1 to 64 letters, digits, _ and - can")
    return name


@dataclass(frozen=True, slots=True)
class Rename:
    """A rule: whole names that `pattern` matches become `template`."""

    pattern: re.Pattern[str]
    template: str

    @classmethod
    def parse(cls, text: str) -> Rename:
        r"""Parse `orders\.(.*)=k_\1`. Raises UsageError."""
        pattern, equals, template = text.partition("=")
        if not equals or not pattern or not template:
            raise UsageError(f"--rename {text!r}: PATTERN=NAME is expected, such as 'orders=kafka_orders'")
        rule = cls(compiled(pattern, "--rename"), template)
        # The same groups, on a text that matches for certain.
        matches = compiled(f"(?:{pattern})|", "--rename").fullmatch("")
        assert matches is not None
        try:
            matches.expand(template)
        except (re.error, IndexError) as error:
            raise UsageError(f"--rename {text!r}: {template!r} is no template: {error}") from error
        return rule


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics of a mirror. `topics`: names; `pattern`: all others that it matches; `renames`: rules, in their order;
    `dots_as`: replacement for dots in Kafka's names, which RocketMQ does not allow.

    Raises (when constructed):
        UsageError: neither names nor a pattern, or a name that is never copied.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    renames: tuple[Rename, ...] = ()
    dots_as: str = ""

    def __post_init__(self) -> None:
        if not self.topics and self.pattern is None:
            raise UsageError("a mirror needs topics: their names, or a pattern")
        for topic in self.topics:
            if topic.startswith(POSITIONS_PREFIX):
                raise UsageError(f"{topic!r} holds positions of mirrors, and is never copied")

    def takes(self, topic: str) -> bool:
        """True if the topic is chosen."""
        if topic in self.topics:
            return True
        return (
            self.pattern is not None
            and not topic.startswith(_NEVER_BY_PATTERN)
            and not topic.endswith(DEAD_LETTERS_SUFFIX)
            and not names.is_system_topic(topic)
            and self.pattern.fullmatch(topic) is not None
        )

    def target(self, topic: str) -> str:
        """The name of a topic on the other side."""
        for rule in self.renames:
            if (found := rule.pattern.fullmatch(topic)) is not None:
                return found.expand(rule.template)
        return topic.replace(".", self.dots_as) if self.dots_as else topic

    def chosen(self, available: Collection[str]) -> dict[str, str]:
        """{topic: its name on the other side} of all available topics that are chosen.

        Raises:
            UsageError: a named topic does not exist, or two topics become one.
        """
        missing = [topic for topic in self.topics if topic not in available]
        if missing:
            raise UsageError(f"the source has no topic {missing[0]!r}")
        found = {topic: self.target(topic) for topic in sorted(available) if self.takes(topic)}
        _refuse_shared(found.items())
        return found


def compiled(pattern: str, option: str) -> re.Pattern[str]:
    """Compile a pattern of the user. Raises UsageError."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{option} {pattern!r} is no regular expression: {error}") from error


def check_rmq_target(topic: str, target: str) -> None:
    """Raise UsageError if RocketMQ allows no such topic, or does not let users write it."""
    try:
        names.validate_topic(target)
    except UsageError as error:
        hint = "; --dots-as _ or --rename gives it another name" if "." in target else "; --rename gives it another one"
        raise UsageError(f"Kafka's topic {topic!r} cannot be called {target!r} here: {error}{hint}") from error
    if names.is_system_topic(target) or target.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        raise UsageError(f"Kafka's topic {topic!r} cannot be called {target!r} here: such topics are RocketMQ's own")


def _refuse_shared(pairs: Iterable[tuple[str, str]]) -> None:
    sources: dict[str, str] = {}
    for topic, target in pairs:
        if (other := sources.setdefault(target, topic)) != topic:
            raise UsageError(f"topics {other!r} and {topic!r} would both become {target!r}: --rename can part them")
