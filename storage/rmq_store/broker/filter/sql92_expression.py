"""Parts of an SQL92 selector as closures over the properties of a message (control plane).

Sources: ComparisonExpression.java, LogicExpression.java, UnaryExpression.java, PropertyExpression.java. A NULL is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rmq_store.broker.filter.sql92_lexer import Token
from rmq_store.broker.filter.sql92_values import Long, NotComparableError, Value, compare_constants, equal, ordered
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

DEPTH_MAX = 50

_ORDERED = {
    ">": ordered(lambda sign: sign > 0),
    ">=": ordered(lambda sign: sign >= 0),
    "<": ordered(lambda sign: sign < 0),
    "<=": ordered(lambda sign: sign <= 0),
}
_NOT_HINT = "; NOT binds to the next operand only: write NOT (...)"
_TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a selector that began at `token`; `sort` stands for the class of Java's node."""

    evaluate: Callable[[Mapping[str, str]], Value]
    sort: Literal["constant", "name", "number", "boolean"]
    token: Token
    depth: int
    constant: Value = None

    @property
    def is_condition(self) -> bool:
        """True for Java's BooleanExpression, which TRUE, FALSE and NULL are too."""
        return self.sort == "boolean" or (self.sort == "constant" and isinstance(self.constant, bool | None))


def refuse(token: Token, reason: str) -> UsageError:
    """The error for something wrong at a token."""
    return UsageError(f"SQL92 selector, position {token.position}: {reason}")


def constant(token: Token, value: Value) -> Node:
    """A literal."""
    return Node(lambda properties: value, "constant", token, 1, value)


def name(token: Token) -> Node:
    """A property."""
    key = token.text
    return Node(lambda properties: properties.get(key), "name", token, 1)


def condition(node: Node) -> Node:
    """Return the node as a condition: a bare name is NULL or FALSE, never TRUE, because properties are texts."""
    if node.is_condition:
        return node
    if node.sort != "name":
        raise refuse(node.token, f"expected a condition, found {node.token}, which is a value")
    return _boolean(lambda properties: None if node.evaluate(properties) is None else False, node)


def disjunction(nodes: Sequence[Node]) -> Node:
    """OR, from left to right; the first TRUE decides."""
    return _logic(nodes, decisive=True)


def conjunction(nodes: Sequence[Node]) -> Node:
    """AND, from left to right; the first FALSE decides."""
    return _logic(nodes, decisive=False)


def _logic(nodes: Sequence[Node], *, decisive: bool) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    parts = [condition(node).evaluate for node in nodes]

    def evaluate(properties: Mapping[str, str]) -> Value:
        answer: Value = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                answer = None
        return answer

    return _boolean(evaluate, *nodes)


def negation(node: Node) -> Node:
    """NOT; of NULL it is NULL."""
    inner = condition(node)

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner.evaluate(properties)
        return None if value is None else not value

    return _boolean(evaluate, inner)


def minus(token: Token, node: Node) -> Node:
    """The negative number; NULL for a value that is no number, a text of digits included."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = node.evaluate(properties)
        if value is None or isinstance(value, str | bool):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return Node(evaluate, "number", token, node.depth + 1)


def equality(left: Node, symbol: str, right: Node) -> Node:
    """`=` and `<>`, which is NOT of `=`."""
    for node in (left, right):
        if node.sort == "constant" and node.constant is None:
            raise refuse(node.token, f"NULL cannot be compared by {symbol}: write IS NULL or IS NOT NULL")
    if isinstance(left.constant, bool) and right.sort == "constant" and not isinstance(right.constant, bool):
        raise refuse(left.token, f"{left.token} cannot be compared with {right.token}")
    node = _boolean(lambda properties: equal(left.evaluate(properties), right.evaluate(properties)), left, right)
    return negation(node) if symbol == "<>" else node


def is_null(left: Node, *, negated: bool) -> Node:
    """IS NULL, IS NOT NULL: never NULL itself."""
    return _boolean(lambda properties: (left.evaluate(properties) is None) is not negated, left)


def comparison(left: Node, symbol: str, right: Node) -> Node:
    """`>`, `>=`, `<`, `<=`: numbers only, and texts that are numbers."""
    for node in (left, right):
        if node.sort == "boolean":
            raise refuse(node.token, f"a condition cannot be compared by {symbol}{_NOT_HINT}")
        if node.is_condition or isinstance(node.constant, str):
            raise refuse(node.token, f"{node.token} cannot be compared by {symbol}: only numbers and properties can")
    operator = _ORDERED[symbol]

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = left.evaluate(properties)
        # The right side of NULL is not looked at: it could end the evaluation.
        return None if value is None else operator(value, right.evaluate(properties))

    return _boolean(evaluate, left, right)


def between(left: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """BETWEEN both ends inclusive; two constants must be in order, but not with NOT."""
    if negated:
        return disjunction([comparison(left, "<", low), comparison(left, ">", high)])
    if low.sort == high.sort == "constant":
        try:
            is_empty = compare_constants(low.constant, high.constant) > 0
        except NotComparableError:
            raise refuse(low.token, f"BETWEEN {low.token} AND {high.token}: these cannot be compared") from None
        if is_empty:
            raise refuse(low.token, f"BETWEEN {low.token} AND {high.token}: the first is larger than the second")
    return conjunction([comparison(left, ">=", low), comparison(left, "<=", high)])


def membership(left: Node, elements: Sequence[str], *, negated: bool) -> Node:
    """IN, NOT IN; NULL for a missing property."""
    if left.sort == "boolean":
        raise refuse(left.token, f"IN needs a property on its left side, not a condition{_NOT_HINT}")
    if left.sort != "name":
        raise refuse(left.token, f"IN needs a property on its left side, found {left.token}")
    members = frozenset(elements)

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = left.evaluate(properties)
        return None if value is None else (value in members) is not negated

    return _boolean(evaluate, left)


def text_test(left: Node, keyword: str, part: str, *, negated: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH: FALSE, with NOT too, for a value that is no text, and for the empty text."""
    test = _TEXT_TESTS[keyword]

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = left.evaluate(properties) if part else None
        return isinstance(value, str) and test(value, part) is not negated

    return _boolean(evaluate, left)


def _boolean(evaluate: Callable[[Mapping[str, str]], Value], *parts: Node) -> Node:
    first, depth = parts[0].token, 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise refuse(first, f"the selector is nested deeper than {DEPTH_MAX}")
    return Node(evaluate, "boolean", first, depth)
