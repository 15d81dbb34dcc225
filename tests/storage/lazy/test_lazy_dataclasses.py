"""A class with late methods is what the standard library makes of the same definition."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from rmq_store.lazy import dataclasses as lazy

FORMS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "order": True},
    {"eq": False},
    {"repr": False},
]


def made_by(decorator: Callable[..., Any], form: dict[str, bool]) -> Any:
    """The same class of both decorators, and one that derives from it."""

    @decorator(**form)
    class Place:
        """Of a message."""

        kind: ClassVar[str] = "queue"

        topic: str
        queue_id: int = 0
        tags: list[str] = field(default_factory=list)
        seen: int = field(default=7, compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.queue_id < 0:
                raise ValueError("queue_id")

    @decorator(**form)
    class Named(Place):
        """With a name."""

        name: str = "n"
        __qualname__ = "Named"

    return Place, Named


@pytest.fixture(params=FORMS, ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """(as the standard library makes it, ours), each a class and one that derives from it."""
    return made_by(dataclass, request.param), made_by(lazy.dataclass, request.param)


def outcome(call: Callable[[], object]) -> object:
    try:
        found = call()
    except Exception as error:
        return type(error), str(error)
    return found if found is None or isinstance(found, (bool, str, int)) else repr(type(found))


def observations(place: Any, named: Any) -> list[object]:
    one = place(topic="T")
    other = named(topic="T", queue_id=1, tags=["x"], name="m")
    calls: list[Callable[[], object]] = [
        lambda: place("T"),
        lambda: place(),
        lambda: place(topic="T", colour=1),
        lambda: place(topic="T", queue_id=-1),
        lambda: "at 0x" in repr(one) or repr(one),
        lambda: "at 0x" in repr(other) or repr(other),
        lambda: one == place(topic="T", seen=8),
        lambda: one == place(topic="U"),
        lambda: one == other,
        lambda: hash(one) == hash(place(topic="T")),
        lambda: one < place(topic="U"),
        lambda: setattr(one, "topic", "V"),
        lambda: delattr(other, "name"),
        lambda: hasattr(one, "__dict__"),
        lambda: dataclasses.replace(other, queue_id=2).queue_id,
        lambda: dataclasses.asdict(other)["name"],
        lambda: str([one.name for one in dataclasses.fields(other)]),
        lambda: str(inspect.signature(place)),
        lambda: str(inspect.signature(named)),
        lambda: str(named.__match_args__),
        lambda: copy.copy(one) is not one and copy.copy(one).topic,
        lambda: copy.deepcopy(one).tags == one.tags,
    ]
    return [outcome(call) for call in calls]


def test_both_do_the_same(pair: tuple[Any, Any]) -> None:
    theirs, ours = pair
    assert observations(*ours) == observations(*theirs)
    # Once more, with methods that are there now.
    assert observations(*ours) == observations(*theirs)


@lazy.dataclass(frozen=True, slots=True)
class Sent:
    topic: str
    offset: int = 0


def test_the_state_of_one_makes_an_equal_one() -> None:
    """As Spark does when it sends one to another process."""
    function, arguments, state = Sent("T", 3).__reduce_ex__(4)[:3]
    one = function(*arguments)  # type: ignore[operator]
    one.__setstate__(state)
    assert one == Sent("T", 3)


def test_what_a_class_defines_itself_stays() -> None:
    @lazy.dataclass(frozen=True)
    class Own:
        number: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 5, "own")


def test_a_frozen_field_is_refused_before_the_first_instance_has_any_other_method() -> None:
    one = Sent("T")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'offset'"):
        one.offset = 4  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'offset'"):
        del one.offset


def test_no_method_is_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = dataclasses.make_dataclass

    def counted(name: str, *args: Any, **kwargs: Any) -> type:
        made.append(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(dataclasses, "make_dataclass", counted)

    @lazy.dataclass(frozen=True, slots=True)
    class Rare:
        number: int

    assert made == []
    assert Rare(1).number == Rare(2).number - 1
    assert made == ["Rare"]
    assert Rare(1) == Rare(1)
    assert made == ["Rare", "Rare"]
