"""Compares values in an SQL92 selector (control plane). Source: ComparisonExpression.java, ConstantExpression.java.

Types are those of Java: properties are strings; a constant is a string, a boolean, an Integer (32 bits), a Long or a
Double. Strings become numbers by the rules of the other side's type: `a = 3` refuses '3.5' and ' 3', `a = 3.0` takes
both. A value that cannot be converted ends the evaluation of the whole selector, and the message does not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rmq_store.errors import UsageError

Value = str | bool | int | float | None

_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
# The characters that String.trim removes: everything up to the space.
_TRIMMED = "".join(map(chr, range(0x21)))
_DOUBLE_MIN = 5e-324


class Long(int):
    """A constant that does not fit into 32 bits: the other operand may have 64 bits too."""


class NotComparableError(Exception):
    """Java throws here while it evaluates a message; the broker then treats the message as not matching."""


def integer_constant(text: str) -> int:
    """The value of an integer literal. UsageError beyond 64 bits."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) <= 19 else 1 << 63
    if value >= 1 << 63:
        raise UsageError(f"{text[:40]} is larger than {(1 << 63) - 1}")
    return value if value < 1 << 31 else Long(value)


def float_constant(text: str) -> float:
    """The value of a floating-point literal. UsageError for zero and beyond Double.MAX_VALUE, as Java has it."""
    value = float(text)
    if value == float("inf"):
        raise UsageError(f"{text[:40]} is larger than 1.7976931348623157E308")
    if value < _DOUBLE_MIN:
        raise UsageError(f"{text[:40]} is smaller than 4.9E-324; zero is written 0")
    return value


def equal(left: Value, right: Value) -> bool | None:
    """`=`: NULL only if the left side alone is NULL; two NULLs are equal. NotComparableError."""
    if left is None or right is None:
        return (True if right is None else None) if left is None else False
    return _compare(left, right) == 0


def ordered(test: Callable[[int], bool]) -> Callable[[str | int | float, Value], bool | None]:
    """Return the operator that applies `test` to -1, 0 or 1; its result is NULL if the right side is NULL.
    NotComparableError.
    """

    def operator(left: str | int | float, right: Value) -> bool | None:
        if right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            return test(_compare_doubles(_double(left), _double(right)))
        return test(_compare(left, right))

    return operator


def compare_constants(left: Value, right: Value) -> int:
    """-1, 0 or 1 for two literals. NotComparableError."""
    if left is None or right is None:
        raise NotComparableError
    return _compare(left, right)


def _compare(left: str | int | float, right: str | int | float) -> int:
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            raise NotComparableError  # ClassCastException: Java converts the wrong side
        return -1
    if isinstance(left, str):
        if isinstance(right, str):
            return 0 if left == right else -1
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        left = _number(left, right)
    elif isinstance(right, str):
        right = _number(right, left)
    elif isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _number(text: str, like: int | float) -> int | float:
    """Convert a text to the type of the other operand."""
    if isinstance(like, float):
        return _double(text)
    bits = 63 if isinstance(like, Long) else 31
    # More digits than any number of 64 bits has, and few enough for int().
    if len(text) <= 400 and _INTEGER.fullmatch(text):
        value = int(text)
        if -1 << bits <= value < 1 << bits:
            return value
    raise NotComparableError


def _double(text: str) -> float:
    """Double.valueOf."""
    text = text.strip(_TRIMMED)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise NotComparableError
    sign = -1.0 if text.startswith("-") else 1.0
    if match["decimal"]:
        return sign * float(match["decimal"])
    if match["hex"]:
        try:
            return sign * float.fromhex(match["hex"])
        except OverflowError:
            return sign * float("inf")
    return sign * float(text.lstrip("+-").lower())


def _compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN is equal to itself and larger than all others, -0.0 is smaller than 0.0."""
    if left != right:
        if left != left or right != right:
            return (left != left) - (right != right)
        return 1 if left > right else -1
    if left == 0:
        return _is_positive_zero(left) - _is_positive_zero(right)
    return 0


def _is_positive_zero(value: float) -> bool:
    return str(value) == "0.0"
