"""Names of RocketMQ's versions by their numbers on the wire (MQVersion.java)."""

from __future__ import annotations

from typing import Final

# V4_0_0_SNAPSHOT has this number; from there on each version has two, of them ten in a minor one.
_FIRST: Final = 212
_FIRST_MAJOR: Final = 4


def version_name(number: int) -> str:
    """`V5_5_0` for 513; the number itself for versions before 4.0, whose numbers have gaps."""
    if number < _FIRST:
        return str(number)
    patches, is_release = divmod(number - _FIRST, 2)
    minors, patch = divmod(patches, 10)
    major, minor = divmod(minors, 10)
    return f"V{major + _FIRST_MAJOR}_{minor}_{patch}" + ("" if is_release else "_SNAPSHOT")
