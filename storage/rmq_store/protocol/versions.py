"""RocketMQ's versions as numbers on the wire, from 4.0.0 on: those that differ in something, and the name of any other.

    V4_0_0_SNAPSHOT    212
    V4_0_0             213    each version has two numbers, a snapshot's and its own; a minor version has ten patches
    V5_0_0             413

Requests and answers have the version of their sender. Source: MQVersion.java.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 212
_FIRST_MAJOR: Final = 4


def version_number(major: int, minor: int, patch: int) -> int:
    """413 for 5.0.0."""
    return _FIRST + 2 * (((major - _FIRST_MAJOR) * 10 + minor) * 10 + patch) + 1


def version_name(number: int) -> str:
    """`V5_5_0` for 513; the number itself for versions before 4.0, whose numbers have gaps."""
    if number < _FIRST:
        return str(number)
    patches, is_release = divmod(number - _FIRST, 2)
    minors, patch = divmod(patches, 10)
    major, minor = divmod(minors, 10)
    return f"V{major + _FIRST_MAJOR}_{minor}_{patch}" + ("" if is_release else "_SNAPSHOT")


V4_9_3: Final = version_number(4, 9, 3)
V4_9_4: Final = version_number(4, 9, 4)
V4_9_8: Final = version_number(4, 9, 8)
V5_0_0: Final = version_number(5, 0, 0)
V5_1_1: Final = version_number(5, 1, 1)
V5_4_0: Final = version_number(5, 4, 0)
